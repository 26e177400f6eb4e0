//! The part of the policy about driver changes: which drivers nodes should run, when they may
//! change, and who has to approve. Empty means that the policy says nothing about changes.

use std::collections::BTreeMap;
use std::fmt;

use farrier_bundle::ModuleFlavour;
use farrier_facts::driver::Lifecycle;
use farrier_facts::version::{Branch, DriverVersion};
use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::DisruptionBudget;
use super::selector::NodeSelector;
use crate::fleet::identity::{Domain, DomainKind, Tenant, Unit};
use crate::fleet::window::Window;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangePolicy {
    /// What applies to which nodes, by name of the rule.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, ChangeRule>,
    /// Versions that the software of a tenant needs. They take precedence over rules.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<Tenant, Vec<TenantPin>>,
    /// Times in which changes may not start.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub freezes: BTreeMap<String, ChangeFreeze>,
    /// Deviations, each with a reason, an owner and an end. They take precedence over everything
    /// else.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exceptions: BTreeMap<String, PolicyException>,
    /// How many nodes of a domain may take no work while nodes are changed, whatever took them out
    /// of service. A kind of domain without an entry has its disruption budget.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub budgets: BTreeMap<DomainKind, DisruptionBudget>,
    /// Rules and freezes of single sites. They may only tighten the policy. The signature of the
    /// policy does not cover them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub overlays: BTreeMap<Unit, SiteOverlay>,
}

impl ChangePolicy {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Values for the nodes that a selector selects. Each value comes from the most specific rule that
/// sets it, except that forbidden versions of all rules add up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeRule {
    #[serde(skip_serializing_if = "NodeSelector::is_empty")]
    pub select: NodeSelector,
    /// The team that answers for these nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Which driver branch the nodes follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub track: Option<DriverTrack>,
    /// The oldest allowed driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum: Option<DriverVersion>,
    /// Drivers that may not be installed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbidden: Vec<DriverVersion>,
    /// The only allowed driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<DriverVersion>,
    /// Which kernel modules are installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flavour: Option<ModuleFlavour>,
    /// How old a release has to be before it is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_gate: Option<AgeGate>,
    /// Days within which every node gets a routine update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cadence_days: Option<u32>,
    /// Days within which every node gets the fix of an advisory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_deadline_days: Option<u32>,
    /// How far the drivers of a pool may differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_skew: Option<MaxSkew>,
    /// When a change of a node may start. Empty means at any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<Window>>,
    /// How long the change of one node takes, at most. A change that does not fit into the rest of
    /// a window does not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_minutes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalPolicy>,
}

/// The driver branch that nodes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverTrack {
    /// The newest supported long-term support branch.
    LongTerm,
    /// The newest supported production or long-term support branch.
    Production,
    /// The newest branch except those for evaluation only.
    NewFeature,
    /// This branch.
    Branch(Branch),
}

impl DriverTrack {
    /// Whether branches of this class belong to the track.
    pub fn includes(self, branch: Branch, lifecycle: Lifecycle) -> bool {
        match (self, lifecycle) {
            (Self::Branch(own), _) => own == branch,
            (_, Lifecycle::LongTerm)
            | (Self::Production | Self::NewFeature, Lifecycle::Production)
            | (Self::NewFeature, Lifecycle::NewFeature) => true,
            _ => false,
        }
    }
}

impl fmt::Display for DriverTrack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LongTerm => formatter.write_str("long-term"),
            Self::Production => formatter.write_str("production"),
            Self::NewFeature => formatter.write_str("new-feature"),
            Self::Branch(branch) => write!(formatter, "{branch}"),
        }
    }
}

/// A release is not installed before it has this age.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgeGate {
    /// Days since the release.
    pub days: u32,
    /// A release that fixes an advisory with at least this CVSS score need not wait. `None` means
    /// that every release waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless_advisory_score: Option<f64>,
}

impl fmt::Display for AgeGate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} days", self.days)?;
        match self.unless_advisory_score {
            Some(score) => {
                write!(formatter, ", unless it fixes an advisory scored {score} or more")
            }
            None => Ok(()),
        }
    }
}

/// How far the drivers of a pool may differ. Without a number, there is no such limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaxSkew {
    /// Days between the releases of the oldest and the newest driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
    /// Number of different drivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions: Option<u32>,
}

impl fmt::Display for MaxSkew {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.days.map(|days| format!("{days} days"));
        let versions = self.versions.map(|versions| format!("{versions} versions"));
        let parts: Vec<String> = days.into_iter().chain(versions).collect();
        formatter.write_str(if parts.is_empty() { "no limit" } else { "" })?;
        formatter.write_str(&parts.join(", "))
    }
}

/// How many people have to approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalPolicy {
    /// Number of approvals before each stage, by name of the stage. A stage without an entry needs
    /// none.
    pub stages: BTreeMap<String, u32>,
    /// Whether the author of a change may not approve it.
    pub distinct_from_author: bool,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self { stages: BTreeMap::new(), distinct_from_author: true }
    }
}

impl fmt::Display for ApprovalPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages: Vec<String> =
            self.stages.iter().map(|(stage, count)| format!("{stage} {count}")).collect();
        formatter.write_str(if stages.is_empty() { "none" } else { "" })?;
        formatter.write_str(&stages.join(", "))?;
        formatter.write_str(if self.distinct_from_author {
            ", not by the author"
        } else {
            ", also by the author"
        })
    }
}

/// Drivers that the software of a tenant needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantPin {
    /// Which of the tenant's nodes; empty means all of them.
    #[serde(skip_serializing_if = "NodeSelector::is_empty")]
    pub select: NodeSelector,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum: Option<DriverVersion>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbidden: Vec<DriverVersion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<DriverVersion>,
}

/// A time in which changes of a domain may not start. Changes that have started finish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeFreeze {
    pub scope: Domain,
    pub from: Timestamp,
    pub to: Timestamp,
    pub reason: String,
    pub owner: String,
    /// What may start in spite of the freeze.
    #[serde(default)]
    pub allow: FreezeAllowance,
}

/// What may start in spite of a freeze.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FreezeAllowance {
    #[default]
    None,
    /// Rollbacks.
    Rollback,
    /// Fixes of advisories, and rollbacks.
    Security,
}

/// A deviation from the policy, until a day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyException {
    pub select: NodeSelector,
    /// The only driver that these nodes may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<DriverVersion>,
    /// What does not apply to these nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waive: Vec<Waiver>,
    pub reason: String,
    pub owner: String,
    /// The last day on which the exception applies.
    pub expires: Date,
}

/// What an exception can suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiver {
    /// A driver past its end of support is allowed.
    EndOfSupport,
    /// Releases need no minimum age.
    AgeGate,
    /// There is no deadline for fixes of advisories.
    SecurityDeadline,
    /// Drivers older than the minimum are allowed.
    Minimum,
    /// The nodes do not count for the skew of their pool.
    MaxSkew,
}

impl Waiver {
    pub const ALL: [Self; 5] =
        [Self::EndOfSupport, Self::AgeGate, Self::SecurityDeadline, Self::Minimum, Self::MaxSkew];

    /// Name as serialised.
    pub fn name(self) -> &'static str {
        match self {
            Self::EndOfSupport => "end-of-support",
            Self::AgeGate => "age-gate",
            Self::SecurityDeadline => "security-deadline",
            Self::Minimum => "minimum",
            Self::MaxSkew => "max-skew",
        }
    }
}

/// Rules and freezes of a site. They apply to the nodes of the site only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SiteOverlay {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, ChangeRule>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub freezes: BTreeMap<String, ChangeFreeze>,
}
