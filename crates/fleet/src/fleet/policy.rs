//! What may be decided without a person, how fast, and how much at once. Data with an owner; the defaults are careful.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::identity::{DomainKind, Pool};
use super::order::{OrderKind, VerificationLevel};
use super::window::Window;

/// The rules of change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// How many nodes may be out of service at once, by kind of domain. All that apply must hold.
    #[serde(alias = "breakers")]
    pub disruption_budgets: BTreeMap<DomainKind, DisruptionBudget>,
    /// How pools are treated that have no entry of their own.
    pub pools_default: PoolPolicy,
    /// By pool.
    pub pools: BTreeMap<Pool, PoolPolicy>,
    /// When what nodes share is to blame.
    #[serde(alias = "blame")]
    pub common_cause: CommonCausePolicy,
    /// When a node fails too often to be trusted.
    pub lemon: LemonPolicy,
    /// Services whose restart mends a finding, by the finding's code.
    pub services: BTreeMap<String, String>,
}

impl Policy {
    /// The policy of a pool.
    pub fn for_pool(&self, pool: &Pool) -> &PoolPolicy {
        self.pools.get(pool).unwrap_or(&self.pools_default)
    }
}

impl Default for Policy {
    fn default() -> Self {
        let share = |share| DisruptionBudget { share, nodes: None };
        Self {
            disruption_budgets: BTreeMap::from([
                (DomainKind::Fleet, share(0.1)),
                (DomainKind::Pool, share(0.2)),
                (DomainKind::Leaf, share(0.5)),
                (DomainKind::Rack, share(0.5)),
                (DomainKind::Nvlink, share(0.5)),
            ]),
            pools_default: PoolPolicy::default(),
            pools: BTreeMap::new(),
            common_cause: CommonCausePolicy::default(),
            lemon: LemonPolicy::default(),
            services: BTreeMap::new(),
        }
    }
}

/// The most that may be out of service at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisruptionBudget {
    /// As a share of the nodes; rounded down, but one node may always go.
    pub share: f64,
    /// As a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
}

impl DisruptionBudget {
    /// The most of so many.
    pub fn limit(&self, members: u32) -> u32 {
        let share = (f64::from(members) * self.share.clamp(0.0, 1.0)).floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and `members`"
        )]
        let share = (share as u32).max(1);
        self.nodes.map_or(share, |nodes| nodes.min(share))
    }
}

/// How far the server may go by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Autonomy {
    /// Says what it would do, and orders nothing.
    Observe,
    /// Takes nodes out of service, and leaves the repair to people.
    Quarantine,
    /// Repairs, proves and returns.
    Repair,
}

/// How the nodes of a pool are treated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolPolicy {
    /// How far without a person.
    pub autonomy: Autonomy,
    /// Whether a reboot waits for a person.
    #[serde(alias = "approve_reboot")]
    pub reboot_needs_approval: bool,
    /// When nodes may be repaired by order; none: at any time. What a person approves does not wait for it.
    pub repair_windows: Vec<Window>,
    /// How long work may take to end.
    #[serde(alias = "drain_wait_s")]
    pub drain_timeout_s: u32,
    /// How long a node may be silent before it is taken out.
    #[serde(alias = "silent_s")]
    pub heartbeat_timeout_s: u32,
    /// How long a doubt may last before the node is taken out.
    #[serde(alias = "suspect_s")]
    pub suspect_timeout_s: u32,
    /// How long findings may take to clear after a repair.
    pub settle_s: u32,
    /// How long an order may go unanswered; draining has its own time on top.
    pub lease_s: u32,
    /// How often an order that fails is tried.
    #[serde(alias = "tries")]
    pub max_attempts: u32,
    /// How long until it is tried again; doubled each time.
    #[serde(alias = "retry_s")]
    pub retry_backoff_s: u32,
    /// What a node must pass to be in service.
    #[serde(alias = "prove")]
    pub required_verifications: Vec<VerificationLevel>,
    /// Whether a node that joins is cordoned until it is verified: for pools whose nodes come up empty. Without it a node that joins
    /// takes work as it did before it was managed, and installing agents on a busy fleet cordons nothing.
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
            settle_s: 180,
            lease_s: 600,
            max_attempts: 3,
            retry_backoff_s: 60,
            required_verifications: vec![VerificationLevel::V0, VerificationLevel::V1],
            cordon_joining: false,
        }
    }
}

/// When what nodes share is to blame and not the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommonCausePolicy {
    /// At least so many nodes of the domain.
    pub nodes: u32,
    /// And this share of it.
    pub share: f64,
    /// Within this time.
    pub window_s: u32,
}

impl Default for CommonCausePolicy {
    fn default() -> Self {
        Self { nodes: 3, share: 0.5, window_s: 300 }
    }
}

/// When a node fails too often to be trusted with a repair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LemonPolicy {
    /// Over this time.
    pub days: u32,
    /// So many times out of service for a fault.
    pub quarantines: u32,
}

impl Default for LemonPolicy {
    fn default() -> Self {
        // 28 days as Meta counts lemons; five remediations are NVSentinel's limit in a week.
        Self { days: 28, quarantines: 5 }
    }
}

impl PoolPolicy {
    /// How long an order may go unanswered, with the time that its work takes.
    pub fn lease_for(&self, what: &OrderKind) -> u32 {
        self.lease_s.saturating_add(what.spec().work_s)
    }

    /// How long to wait after so many failures.
    pub fn retry_backoff_after(&self, failures: u32) -> u32 {
        let doublings = failures.saturating_sub(1).min(6);
        self.retry_backoff_s.saturating_mul(1 << doublings)
    }
}
