//! The policy: which decisions the controller may make without a person, how fast, and for how many
//! nodes at once; which drivers nodes should run, and when they may change. The defaults are
//! conservative.
//!
//! ```text
//! document ─ check (one value at a time) ─ conflicts (values together, facts, day, nodes) ─> Policy
//! Policy, facts of a node, day ─ resolve ─> EffectivePolicy: every value with its source
//!                                             └─ judge: may this driver be installed?
//! ```

mod canonical;
mod changes;
mod check;
mod conflict;
mod difference;
mod driver_choice;
mod report;
mod resolve;
mod rule_value;
mod selector;
mod tighten;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::identity::{DomainKind, Pool};
use super::order::{OrderKind, VerificationLevel};
use super::window::Window;
use crate::notify::NotificationPolicy;
pub use canonical::PolicySignature;
pub use changes::{
    AgeGate, ApprovalPolicy, ChangeFreeze, ChangePolicy, ChangeRule, DriverTrack, FreezeAllowance,
    MaxSkew, PolicyException, SiteOverlay, TenantPin, Waiver,
};
pub use check::PolicyError;
pub use conflict::{PolicyConflict, PolicyContext};
pub use difference::{
    NodePolicyDifference, NodeValueDifference, PolicyDifference, differences, node_differences,
};
pub use driver_choice::{BranchChoice, VersionRefusal};
pub use report::{
    DeviationRow, EmptyBudgetRow, EndingRow, ExceptionRow, ExposureRow, PolicyReport,
    SUPPORT_SOON_DAYS, SkewRow, SupportRow, TenantPinRow, policy_report,
};
pub use resolve::{
    ChangePurpose, EffectivePolicy, NodeFreeze, PolicySource, PolicyTie, Sourced, UndeterminedRule,
    resolve,
};
pub use rule_value::{RuleField, RuleValue};
pub use selector::{NamePattern, NodeSelector, PolicyNode, SelectorKey, name_skus, skus};

/// The current version of the document.
///
/// 1: without a `version` key. A budget whose share rounds to no node allows one node.
///
/// 2: such a budget has to say `allow_min_one`. May have `changes`.
pub const POLICY_VERSION: u32 = 2;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Version of the document, see [`POLICY_VERSION`].
    #[serde(skip_serializing_if = "is_first_version")]
    pub version: u32,
    /// How many nodes the controller may keep out of service at once, by kind of domain. The
    /// budgets of all domains of a node apply to the node.
    #[serde(alias = "breakers")]
    pub disruption_budgets: BTreeMap<DomainKind, DisruptionBudget>,
    /// Share of the domain's nodes that have to take work, by kind of domain. The number of nodes
    /// is rounded down. Every node that takes no work counts as missing, whatever took it out of
    /// service.
    pub capacity_floors: BTreeMap<DomainKind, f64>,
    /// Applies to pools without an entry in `pools`.
    pub pools_default: PoolPolicy,
    pub pools: BTreeMap<Pool, PoolPolicy>,
    /// When a shared failure domain explains a symptom.
    #[serde(alias = "blame")]
    pub common_cause: CommonCausePolicy,
    /// When a node counts as a lemon.
    pub lemon: LemonPolicy,
    /// Systemd units by finding code. A restart of the unit repairs findings with this code.
    pub services: BTreeMap<String, String>,
    /// Who is notified of what.
    #[serde(skip_serializing_if = "NotificationPolicy::is_empty")]
    pub notifications: NotificationPolicy,
    /// Which drivers nodes should run, and when they may change.
    #[serde(skip_serializing_if = "ChangePolicy::is_empty")]
    pub changes: ChangePolicy,
    /// Signatures of the document without this key and without the overlays of sites.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<PolicySignature>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_first_version(version: &u32) -> bool {
    *version == 1
}

impl Policy {
    /// How many nodes of a domain with this many members the controller may keep out of service.
    /// `None` if there is no budget for this kind of domain.
    pub fn disruption_limit(&self, kind: DomainKind, members: u32) -> Option<u32> {
        Some(self.disruption_budgets.get(&kind)?.limit(members, self.version))
    }

    /// How many nodes of a domain with this many members may take no work while nodes are changed.
    pub fn change_limit(&self, kind: DomainKind, members: u32) -> Option<u32> {
        let budget = self.changes.budgets.get(&kind);
        let budget = budget.or_else(|| self.disruption_budgets.get(&kind))?;
        Some(budget.limit(members, self.version))
    }

    /// How long a domain fault still matters after its end. This is the longer of two times: the
    /// time that findings may take to clear, and the window in which symptoms are counted.
    pub fn recovery_s(&self) -> u32 {
        let pools = self.pools.values().chain([&self.pools_default]);
        pools.map(|pool| pool.settle_s).fold(self.common_cause.window_s, u32::max)
    }

    /// The number of nodes that have to take work in a domain with this many members. `None` if
    /// there is no floor for this kind of domain.
    pub fn capacity_floor(&self, kind: DomainKind, members: u32) -> Option<u32> {
        let share = self.capacity_floors.get(&kind)?;
        Some(share_of(*share, members))
    }

    pub fn for_pool(&self, pool: &Pool) -> &PoolPolicy {
        self.pools.get(pool).unwrap_or(&self.pools_default)
    }
}

impl Default for Policy {
    fn default() -> Self {
        let share = |share| DisruptionBudget { share, nodes: None, allow_min_one: None };
        Self {
            version: 1,
            disruption_budgets: BTreeMap::from([
                (DomainKind::Fleet, share(0.1)),
                (DomainKind::Pool, share(0.2)),
                (DomainKind::Leaf, share(0.5)),
                (DomainKind::Rack, share(0.5)),
                (DomainKind::Nvlink, share(0.5)),
            ]),
            // If more than half of the nodes take no work, the cause is hardly in the nodes
            // themselves. Kubernetes stops evictions for the same reason when 55 % of the nodes in
            // a zone are not ready (`--unhealthy-zone-threshold`). Racks and switches have no
            // floor, because they are emptied for maintenance, and a faulty node in them must still
            // leave service.
            capacity_floors: BTreeMap::from([(DomainKind::Fleet, 0.5), (DomainKind::Pool, 0.5)]),
            pools_default: PoolPolicy::default(),
            pools: BTreeMap::new(),
            common_cause: CommonCausePolicy::default(),
            lemon: LemonPolicy::default(),
            services: BTreeMap::new(),
            notifications: NotificationPolicy::default(),
            changes: ChangePolicy::default(),
            signatures: Vec::new(),
        }
    }
}

/// A share of the members. The number of nodes is rounded down.
fn share_of(share: f64, members: u32) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and `members`"
    )]
    let count = (f64::from(members) * share.clamp(0.0, 1.0)).floor() as u32;
    count
}

/// How many nodes of a domain the controller may keep out of service at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisruptionBudget {
    /// Share of the domain's nodes. The number of nodes is rounded down.
    pub share: f64,
    /// Absolute limit. The lower of the two limits applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Whether one node is allowed if the share rounds to none. `None` means yes in a document of
    /// version 1, and no in later ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_min_one: Option<bool>,
}

impl DisruptionBudget {
    /// The limit for a domain with this many members.
    fn limit(&self, members: u32, version: u32) -> u32 {
        let minimum = u32::from(self.allow_min_one.unwrap_or(version == 1));
        let share = share_of(self.share, members).max(minimum);
        self.nodes.map_or(share, |nodes| nodes.min(share))
    }

    /// Whether the share of this many members rounds to no node, although the budget should allow
    /// some.
    fn rounds_to_none(&self, members: u32, version: u32) -> bool {
        self.nodes != Some(0) && self.limit(members, version) == 0
    }
}

/// What the controller may do without an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Autonomy {
    /// Reports what it would do, and issues only verifications.
    Observe,
    /// Takes nodes out of service, and leaves repairs to people.
    Quarantine,
    /// Repairs, verifies and returns nodes to service.
    Repair,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolPolicy {
    pub autonomy: Autonomy,
    /// Whether a reboot needs an approval.
    #[serde(alias = "approve_reboot")]
    pub reboot_needs_approval: bool,
    /// When repair orders may run. Empty means at any time. An approved repair does not wait for a
    /// window.
    pub repair_windows: Vec<Window>,
    /// How long a drain waits for running work to end.
    #[serde(alias = "drain_wait_s")]
    pub drain_timeout_s: u32,
    /// How long heartbeats of a node may be missing before the node is quarantined.
    #[serde(alias = "silent_s")]
    pub heartbeat_timeout_s: u32,
    /// How long a node may stay suspect before it is quarantined.
    #[serde(alias = "suspect_s")]
    pub suspect_timeout_s: u32,
    /// How long a coverage gap may last before the node is suspect. `None` means forever.
    pub coverage_gap_timeout_s: Option<u32>,
    /// Whether `suspect_timeout_s` also applies to a node that is suspect only because of a
    /// coverage gap. If not, the node keeps taking work, because a missing reading is no fault.
    pub coverage_gap_quarantines: bool,
    /// How long findings may take to clear after a repair.
    pub settle_s: u32,
    /// How long an order may take until its final status is reported. Drains and other long orders
    /// add their own time.
    pub lease_s: u32,
    /// Maximum number of attempts of a failing order. This is also the maximum number of runs of
    /// the same repair before the node is in service again.
    #[serde(alias = "tries")]
    pub max_attempts: u32,
    /// Delay before the first retry. It doubles with each failure.
    #[serde(alias = "retry_s")]
    pub retry_backoff_s: u32,
    /// Levels that a node must pass to be in service.
    #[serde(alias = "prove")]
    pub required_verifications: Vec<VerificationLevel>,
    /// Whether joining nodes are cordoned until they are verified. This is meant for pools whose
    /// nodes have no work when they enrol. Otherwise a joining node keeps taking work, so that
    /// installing agents on a busy fleet cordons nothing.
    pub cordon_joining: bool,
}

impl Default for PoolPolicy {
    fn default() -> Self {
        Self {
            autonomy: Autonomy::Repair,
            reboot_needs_approval: false,
            repair_windows: Vec::new(),
            drain_timeout_s: 4 * 3600,
            heartbeat_timeout_s: 300,
            suspect_timeout_s: 900,
            coverage_gap_timeout_s: Some(900),
            coverage_gap_quarantines: false,
            settle_s: 180,
            lease_s: 600,
            max_attempts: 3,
            retry_backoff_s: 60,
            required_verifications: vec![VerificationLevel::V0, VerificationLevel::V1],
            cordon_joining: false,
        }
    }
}

/// When a shared failure domain, and not its nodes, explains a symptom. All three conditions must
/// hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommonCausePolicy {
    /// Minimum number of the domain's nodes that are affected.
    pub nodes: u32,
    /// Minimum share of the domain's nodes that are affected.
    pub share: f64,
    /// The nodes must begin to show the symptom within this time.
    pub window_s: u32,
}

impl Default for CommonCausePolicy {
    fn default() -> Self {
        Self { nodes: 3, share: 0.5, window_s: 300 }
    }
}

/// When a node has failed so often that orders no longer repair it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LemonPolicy {
    /// Period over which quarantines are counted.
    pub days: u32,
    /// Number of quarantines in that period that make a node a lemon.
    pub quarantines: u32,
}

impl Default for LemonPolicy {
    fn default() -> Self {
        // Meta counts lemons over 28 days. NVSentinel limits remediations to five in a week.
        Self { days: 28, quarantines: 5 }
    }
}

impl PoolPolicy {
    /// The lease of an order: `lease_s`, and the time that the order needs for its work.
    pub fn lease_for(&self, what: &OrderKind) -> u32 {
        self.lease_s.saturating_add(what.spec().work_s)
    }

    /// Back-off after this many failures. It doubles with each failure, up to 64 times the first
    /// delay.
    pub fn retry_backoff_after(&self, failures: u32) -> u32 {
        let doublings = failures.saturating_sub(1).min(6);
        self.retry_backoff_s.saturating_mul(1 << doublings)
    }
}
