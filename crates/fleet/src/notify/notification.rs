//! One message to one receiver, as values. Receivers render it with their templates.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeId;
use crate::fleet::identity::{Pool, Tenant, Unit};
use crate::health::Severity;

/// Affected nodes that a notification names. [`Notification::nodes_total`] counts all of them.
pub const NODES_MAX: usize = 20;

/// A message about one group of alerts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notification {
    /// Idempotency key. It is the same in each delivery of this notification, so that a receiver
    /// can drop duplicates.
    pub key: String,
    /// Key of the group. All notifications about the group have it: the first, the repeats and the
    /// resolution.
    pub group: String,
    pub status: NotificationStatus,
    pub severity: Severity,
    pub kind: NotificationKind,
    /// Code of the finding or reason, such as `gpu.xid`.
    pub code: String,
    /// What broke, in one line, such as `Xid 79: the GPU is not reachable over PCIe`.
    pub cause: String,
    /// The most affected nodes, at most [`NODES_MAX`].
    pub nodes: Vec<AffectedNode>,
    pub nodes_total: u32,
    /// What Farrier did, such as `cordoned; drain ordered`.
    pub action_taken: Option<String>,
    /// What a person has to do. `None` if nothing.
    pub action_needed: Option<String>,
    /// Link to the runbook page.
    pub runbook_url: Option<String>,
    /// When the group started to fire.
    pub started: Timestamp,
    /// The time of the entry or timer that caused this notification.
    pub at: Timestamp,
}

/// A node in a notification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffectedNode {
    pub node: NodeId,
    /// `None` on a node without a server.
    pub pool: Option<Pool>,
    pub site: Option<Unit>,
    pub tenant: Option<Tenant>,
    /// The GPU or other part, such as `GPU 3 (0000:1b:00.0)`. `None` if it is the whole node.
    pub part: Option<String>,
}

/// Identifies a gap in the notifications. The position in the log does not: a database may be lost
/// several times at the same position, and an older copy of a log has its positions again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapId {
    /// Identity of the notification database. The one that replaces it after a loss has another.
    pub database: String,
    /// Number of the gap in this database.
    pub number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotificationStatus {
    Firing,
    Resolved,
}

/// What a notification is about. Routes select by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotificationKind {
    /// A finding of a node.
    Finding,
    /// The heartbeats of a node are overdue.
    HeartbeatLost,
    /// The controller took a node out of service, or returned it.
    NodePhase,
    /// An action waits for a person, a budget or a window.
    Deferred,
    /// A failure domain explains the faults of its nodes.
    DomainFault,
    /// An order failed, or exhausted its attempts.
    OrderFailed,
    /// The notifications themselves: some may be missing, or are summarised.
    Notifier,
    /// A test message of `farrier notify test`.
    Test,
}

impl NotificationKind {
    /// The code, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finding => "finding",
            Self::HeartbeatLost => "heartbeat-lost",
            Self::NodePhase => "node-phase",
            Self::Deferred => "deferred",
            Self::DomainFault => "domain-fault",
            Self::OrderFailed => "order-failed",
            Self::Notifier => "notifier",
            Self::Test => "test",
        }
    }
}
