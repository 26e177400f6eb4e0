//! Nodes and what is wrong with them.

use farrier_fleet::fleet::event::{Cordon, NodeInventory};
use farrier_fleet::fleet::{Location, NodeId, NodePhase, VerificationLevel};
use farrier_fleet::health::{Finding, Severity};
use jiff::Timestamp;

use super::reason::{RationaleView, ReasonView};
use super::schema::{plain, view};

/// Whether the server has a session with a node's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// The session is open, and heartbeats arrive.
    Connected,
    /// The session is open, and three heartbeats are missing: the network or the agent may have stopped.
    HeartbeatLate,
    /// The session is open, and reports wait: the node is over its quota, or the server's disk space is low. Findings may be missing.
    ReportsDelayed,
    /// The last session has ended.
    Disconnected,
    /// There was no session since the server started.
    Never,
    /// A newer server says something else.
    #[serde(other)]
    Unknown,
}

impl ConnectionState {
    /// All that a server says.
    pub const ALL: [Self; 5] = [
        Self::Connected,
        Self::HeartbeatLate,
        Self::ReportsDelayed,
        Self::Disconnected,
        Self::Never,
    ];

    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::HeartbeatLate => "heartbeat-late",
            Self::ReportsDelayed => "reports-delayed",
            Self::Disconnected => "disconnected",
            Self::Never => "never",
            Self::Unknown => "unknown",
        }
    }
}

plain! {
    ConnectionState => {
        "type": "string",
        "enum": ["connected", "heartbeat-late", "reports-delayed", "disconnected", "never"],
        "description": "`heartbeat-late`: the session is open and three heartbeats are missing; `reports-delayed`: the session is open and reports wait for the node's quota or for disk space, so findings may be missing; `never`: no session since the server started",
    },
}

view! { lenient
    /// Whether the server has a session with a node's agent.
    ConnectionView {
        /// How it is now.
        state: ConnectionState,
        /// Since when the session is open, or closed; for `never`, when the server started.
        since: Timestamp,
        /// Seconds since the last message of the agent; null: there was none since the server started.
        last_heartbeat_age_s: Option<u64>,
    }
}

impl std::fmt::Display for ConnectionView {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = self.since;
        match self.state {
            ConnectionState::Connected => write!(formatter, "connected since {since:.0}")?,
            ConnectionState::HeartbeatLate => {
                write!(formatter, "heartbeat late, on a session open since {since:.0}")?;
            }
            ConnectionState::ReportsDelayed => write!(
                formatter,
                "connected since {since:.0}, reports delayed: the node is over its quota, or disk space on the server is low"
            )?,
            ConnectionState::Disconnected => write!(formatter, "disconnected since {since:.0}")?,
            ConnectionState::Never => {
                return write!(formatter, "not connected since the server started at {since:.0}");
            }
            ConnectionState::Unknown => return write!(formatter, "not known"),
        }
        match self.last_heartbeat_age_s {
            Some(age_s) => write!(formatter, "; last heartbeat {age_s} s ago"),
            None => Ok(()),
        }
    }
}

view! { lenient
    /// A node in a list.
    NodeRow {
        node: NodeId,
        /// Where it stands, and whose it is.
        location: Location,
        /// How it stands.
        phase: NodePhase,
        since: Timestamp,
        reason: ReasonView,
        /// How many GPUs; null is not known.
        gpus: Option<u32>,
        /// The GPUs' name, where all have one.
        gpu: Option<String>,
        /// NVIDIA's driver; null is not known.
        driver: Option<String>,
        /// Open findings.
        findings: u32,
        /// The worst of them.
        worst: Option<Severity>,
        /// The order that is on its way.
        order: Option<String>,
        /// Why something is not done that should be.
        deferred: Option<ReasonView>,
        /// When it was last heard, while it is silent.
        heartbeat_lost_since: Option<Timestamp>,
        /// Whether the server has a session with its agent; null: an older server does not tell.
        connection: Option<ConnectionView>,
    }
}

view! { lenient
    /// Nodes by name.
    NodePage {
        nodes: Vec<NodeRow>,
        /// The cursor of the next page; null: this was the last.
        next: Option<String>,
    }
}

view! { lenient
    /// A person who holds a node.
    HoldView {
        by: String,
        reason: String,
    }
}

view! { lenient
    /// An order on its way.
    OrderView {
        /// With the node it is the order's name.
        generation: u64,
        /// What, in words.
        text: String,
        reason: ReasonView,
        /// Until when it must be answered.
        lease_until: Timestamp,
        /// Whether the agent is at it.
        accepted: bool,
    }
}

view! { lenient
    /// What was proven, or not.
    VerificationView {
        level: VerificationLevel,
        /// Whether it passed.
        passed: bool,
        at: Timestamp,
        /// What was seen.
        evidence: String,
    }
}

view! { lenient
    /// What came of something that a person wanted done.
    RequestedOrderView {
        /// The code of the order.
        code: String,
        /// The generation of the order; null: an older server does not tell.
        generation: Option<u64>,
        /// What, in words.
        text: String,
        /// `done` (a test passed), `failed` (it was begun, and did not come about; a test did not pass), `refused` (it was not begun).
        status: String,
        at: Timestamp,
        /// What was seen, or why not.
        evidence: String,
    }
}

view! { lenient
    /// A node with all that is known of it.
    NodeDetail {
        node: NodeId,
        /// Where it stands, and whose it is.
        location: Location,
        /// How it stands.
        phase: NodePhase,
        since: Timestamp,
        /// Why, and what would change it.
        rationale: RationaleView,
        /// What should be done and is not.
        deferred: Option<RationaleView>,
        /// Whether a repair waits for an approver.
        waits_for_approval: bool,
        /// What it is made of; null before its first report.
        inventory: Option<NodeInventory>,
        /// Open findings.
        findings: Vec<Finding>,
        /// What each of these is about, as people find it: `GPU 3 at 0000:3b:00.0`; null: an older server does not tell.
        findings_on: Option<Vec<String>>,
        /// Whether it takes new work.
        cordon: Cordon,
        /// Whether its work has ended.
        drained: bool,
        /// A person who holds it.
        hold: Option<HoldView>,
        /// The order that is on its way.
        order: Option<OrderView>,
        /// What was proven in this boot, since the last repair.
        verifications: Vec<VerificationView>,
        /// What a person wants done there and was not yet.
        requested_order: Option<String>,
        /// What came of what a person wanted done, the last of each kind.
        requested_order_results: Vec<RequestedOrderView>,
        /// What was done to mend it since it was last in service.
        repairs: Vec<String>,
        /// When it was taken out of service, for as long as that counts.
        quarantines: Vec<Timestamp>,
        /// What it shares with others and is to blame.
        domain_faults: Vec<ReasonView>,
        /// When it was last heard, while it is silent.
        heartbeat_lost_since: Option<Timestamp>,
        /// Whether the server has a session with its agent; null: an older server does not tell.
        connection: Option<ConnectionView>,
        /// Where all that happened to it is.
        history: String,
    }
}

view! { lenient
    /// Why a node stands where it stands, and what would change it.
    NodeExplanation {
        node: NodeId,
        /// How it stands.
        phase: NodePhase,
        since: Timestamp,
        /// Why, and what would change it.
        rationale: RationaleView,
        /// The findings behind it, in words.
        findings: Vec<String>,
        /// The order that is on its way.
        order: Option<String>,
        /// What should be done and is not, and until when.
        deferred: Option<RationaleView>,
        /// What it shares with others and is to blame.
        domain_faults: Vec<ReasonView>,
        /// A freeze that holds it back.
        frozen: Vec<String>,
        /// Whether the server has a session with its agent; null: an older server does not tell.
        connection: Option<ConnectionView>,
    }
}

view! { lenient
    /// A finding, with its node.
    FindingRow {
        node: NodeId,
        /// What it is about, as people find it: `GPU 3 at 0000:3b:00.0`; null: an older server does not tell.
        on: Option<String>,
        finding: Finding,
    }
}

view! { lenient
    /// Open findings by node and number.
    FindingPage {
        findings: Vec<FindingRow>,
        /// The cursor of the next page; null: this was the last.
        next: Option<String>,
    }
}
