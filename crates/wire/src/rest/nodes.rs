//! Nodes and their findings.

use farrier_fleet::fleet::event::{Cordon, NodeCompliance, NodeInventory};
use farrier_fleet::fleet::{Location, NodeId, NodePhase, VerificationLevel};
use farrier_fleet::health::{Action, Finding, Severity};
use jiff::Timestamp;
use serde_json::Value;

use super::fleet::DomainFaultRow;
use super::reason::{RationaleView, ReasonView};
use super::schema::{plain, view};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// The session is open, and heartbeats arrive.
    Connected,
    /// The session is open, but three heartbeats are missing. The network or the agent may have
    /// stopped.
    HeartbeatLate,
    /// The session is open, but reports are delayed: the node exceeds its quota, or the server's
    /// disk space is low. Findings may be missing.
    ReportsDelayed,
    /// The last session has ended.
    Disconnected,
    /// There was no session since the server started.
    Never,
    /// A state from a newer server.
    #[serde(other)]
    Unknown,
}

impl ConnectionState {
    /// Every state that a server reports.
    pub const ALL: [Self; 5] = [
        Self::Connected,
        Self::HeartbeatLate,
        Self::ReportsDelayed,
        Self::Disconnected,
        Self::Never,
    ];

    /// The name, as in JSON.
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
        /// State of the connection.
        state: ConnectionState,
        /// When the session opened or closed; for `never`, when the server started.
        since: Timestamp,
        /// Seconds since the agent's last message; null if there was none since the server started.
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
            ConnectionState::Unknown => return write!(formatter, "unknown"),
        }
        match self.last_heartbeat_age_s {
            Some(age_s) => write!(formatter, "; last heartbeat {age_s} s ago"),
            None => Ok(()),
        }
    }
}

view! { lenient
    /// That a node needs a person, or may need one soon.
    AttentionView {
        /// Why, as a stable code listed in docs/api.md.
        code: String,
        /// Severity of the worst open fault; null if there is none.
        severity: Option<Severity>,
        since: Timestamp,
        /// What is wrong, in few words; null from older servers.
        problem: Option<String>,
    }
}

view! { lenient
    /// What a person does first about a node.
    NextStepView {
        /// Stable code: `reach-agent`, `repair-domain`, `service` or `repair-by-hand`.
        code: String,
        /// The step as text.
        text: String,
        /// Commands for the step, in the order in which they are run. Words in capitals are
        /// placeholders.
        commands: Vec<String>,
        /// The command that reports the repair afterwards; null if there is nothing to report.
        afterwards: Option<String>,
        /// Code of the runbook page, for `farrier runbook`; null if the pages of the findings
        /// apply.
        runbook: Option<String>,
    }
}

view! { lenient
    /// A node in a list.
    NodeRow {
        node: NodeId,
        /// Location and owner.
        location: Location,
        /// Node phase.
        phase: NodePhase,
        since: Timestamp,
        reason: ReasonView,
        /// Number of GPUs; null if unknown.
        gpus: Option<u32>,
        /// Name of the GPUs; null if they differ.
        gpu: Option<String>,
        /// Version of the NVIDIA driver; null if unknown.
        driver: Option<String>,
        /// Number of open coverage gaps, which are things that the agent cannot read; null if
        /// unknown, also from agents or servers that are older than this field.
        coverage_gaps: Option<u32>,
        /// Number of open findings.
        findings: u32,
        /// Severity of the worst open finding.
        worst: Option<Severity>,
        /// The pending order.
        order: Option<String>,
        /// Why an action that is due has to wait.
        deferred: Option<ReasonView>,
        /// When the last heartbeat arrived; null while heartbeats arrive.
        heartbeat_lost_since: Option<Timestamp>,
        /// Why the node needs a person; null if it needs none.
        attention: Option<AttentionView>,
        /// Session of the agent; null from older servers.
        connection: Option<ConnectionView>,
        /// Security features; null if unknown.
        compliance: Option<NodeCompliance>,
        /// Whether the node is cordoned, and by whom, as far as its agent has reported; null from
        /// older servers.
        cordon: Option<Cordon>,
        /// What a person does first, if it is more than the findings say; null otherwise, and from
        /// older servers.
        next_step: Option<NextStepView>,
    }
}

view! { lenient
    /// Something that the agent of a node cannot read.
    CoverageGapView {
        /// What cannot be read: a stable code, listed in docs/reasons.md.
        source: String,
        /// Subject, such as `GPU 3 at 0000:3b:00.0`.
        subject: String,
        /// When the gap opened, by the clock of the server.
        since: Timestamp,
        /// Why it cannot be read: the code of an unreadable reading in docs/reasons.md, with its
        /// parameters.
        cause: Value,
        /// The gap with its subject and cause, for people.
        text: String,
        /// What to do about it, for people.
        remedy: String,
    }
}

view! { lenient
    /// Nodes by name.
    NodePage {
        nodes: Vec<NodeRow>,
        /// Cursor of the next page; null on the last page.
        next: Option<String>,
    }
}

view! { lenient
    /// A hold by an operator.
    HoldView {
        by: String,
        reason: String,
    }
}

view! { lenient
    /// A pending order.
    OrderView {
        /// Identifies the order, together with the node.
        generation: u64,
        /// The order as text.
        text: String,
        reason: ReasonView,
        /// Deadline for the final status of the order.
        lease_until: Timestamp,
        /// Whether the agent has accepted the order.
        accepted: bool,
    }
}

view! { lenient
    /// A verification result.
    VerificationView {
        level: VerificationLevel,
        /// Whether the verification passed.
        passed: bool,
        at: Timestamp,
        /// What the agent observed.
        evidence: String,
    }
}

view! { lenient
    /// Result of an operator-requested order.
    RequestedOrderView {
        /// Code of the order.
        code: String,
        /// Generation of the order; null from older servers.
        generation: Option<u64>,
        /// The order as text.
        text: String,
        /// `done` (for a test: it passed), `failed` (it ran and failed) or `refused` (it did not
        /// start).
        status: String,
        at: Timestamp,
        /// What the agent observed, or why the order failed.
        evidence: String,
    }
}

view! { lenient
    /// A node with all details.
    NodeDetail {
        node: NodeId,
        /// Location and owner.
        location: Location,
        /// Node phase.
        phase: NodePhase,
        since: Timestamp,
        /// Why the node is in this phase, and what would change that.
        rationale: RationaleView,
        /// Why an action that is due has to wait, and what unblocks it.
        deferred: Option<RationaleView>,
        /// Whether a repair waits for an approver.
        waits_for_approval: bool,
        /// Inventory; null before the first report.
        inventory: Option<NodeInventory>,
        /// Open findings.
        findings: Vec<Finding>,
        /// Open coverage gaps; null if unknown, also from agents or servers that are older than this
        /// field.
        coverage_gaps: Option<Vec<CoverageGapView>>,
        /// Subject of each finding, such as `GPU 3 at 0000:3b:00.0`; null from older servers.
        finding_subjects: Option<Vec<String>>,
        /// Whether the node is cordoned, and by whom.
        cordon: Cordon,
        /// Whether work from before the cordon has ended.
        drained: bool,
        /// The hold by an operator.
        hold: Option<HoldView>,
        /// The pending order.
        order: Option<OrderView>,
        /// Verification results from this boot and since the last repair.
        verifications: Vec<VerificationView>,
        /// The operator-requested order that has not run yet.
        requested_order: Option<String>,
        /// The last result of each kind of operator-requested order.
        requested_order_results: Vec<RequestedOrderView>,
        /// Repairs since the node was last in service.
        repairs: Vec<String>,
        /// When the node was quarantined, in the last year.
        quarantines: Vec<Timestamp>,
        /// Domain faults that affect the node.
        domain_faults: Vec<ReasonView>,
        /// When the last heartbeat arrived; null while heartbeats arrive.
        heartbeat_lost_since: Option<Timestamp>,
        /// Session of the agent; null from older servers.
        connection: Option<ConnectionView>,
        /// REST path of the node's history.
        history: String,
    }
}

view! { lenient
    /// A component of a node that findings are about.
    ComponentView {
        /// The component as text, such as `GPU 3 at 0000:3b:00.0`.
        name: String,
        /// NVML index of the GPU; null if the component is not a GPU, or if the index is unknown.
        gpu_index: Option<u32>,
        /// PCI address of the GPU; null if the component is not a GPU, or if the address is
        /// unknown.
        pci: Option<String>,
    }
}

view! { lenient
    /// An open finding in a group.
    GroupedFinding {
        /// The finding's number on its node.
        id: u64,
        severity: Severity,
        /// Code of the rule.
        code: String,
        /// A text, such as `Xid 79`, that distinguishes findings of the same rule and subject.
        /// Often empty.
        detail: String,
        /// Subject of the finding, such as `link 4 of GPU 3 at 0000:3b:00.0`.
        subject: String,
        text: String,
        /// How often the fault happened or was detected again.
        count: u64,
        since: Timestamp,
        /// What would clear the finding.
        clears: String,
        /// Code of the finding's runbook page, for `farrier runbook`.
        runbook: String,
        /// The last observation, in one line; null if there is none, and from older servers.
        evidence: Option<String>,
    }
}

view! { lenient
    /// The open findings of one component. Most of the time they have one cause, so the group has
    /// one first action.
    FindingGroup {
        component: ComponentView,
        /// The first action.
        action: Action,
        /// The first action as text.
        text: String,
        /// What a person does first instead of the action, because the action would not help; null
        /// if the action applies, and from older servers.
        first_step: Option<String>,
        /// The findings, starting with the one that the action comes from.
        findings: Vec<GroupedFinding>,
    }
}

view! { lenient
    /// Why a node is in its phase, and what would change that.
    NodeExplanation {
        node: NodeId,
        /// Node phase.
        phase: NodePhase,
        since: Timestamp,
        /// Why the node is in this phase, and what would change that.
        rationale: RationaleView,
        /// Open coverage gaps; null if unknown, also from agents or servers that are older than this
        /// field.
        coverage_gaps: Option<Vec<CoverageGapView>>,
        /// The findings that caused the phase, and other problems, as text.
        findings: Vec<String>,
        /// The same findings by component, most severe first; null from older servers.
        finding_groups: Option<Vec<FindingGroup>>,
        /// The other problems, as text; null from older servers.
        problems: Option<Vec<String>>,
        /// The pending order. If none is pending, how the last one failed.
        order: Option<String>,
        /// Why an action that is due has to wait, and what unblocks it.
        deferred: Option<RationaleView>,
        /// Domain faults that affect the node.
        domain_faults: Vec<ReasonView>,
        /// Freezes that apply to the node.
        frozen: Vec<String>,
        /// Session of the agent; null from older servers.
        connection: Option<ConnectionView>,
        /// Whether the node is cordoned, and by whom, as far as its agent has reported; null from
        /// older servers.
        cordon: Option<Cordon>,
        /// Whether work from before the cordon has ended; null from older servers.
        drained: Option<bool>,
        /// When the last heartbeat arrived; null while heartbeats arrive, and from older servers.
        heartbeat_lost_since: Option<Timestamp>,
        /// What a person does first, if it is more than the findings say; null otherwise, and from
        /// older servers.
        next_step: Option<NextStepView>,
        /// The domain faults with their nodes; null from older servers.
        domain_fault_rows: Option<Vec<DomainFaultRow>>,
        /// What happened to the node in the last 24 hours, newest first; null from older servers.
        history: Option<Vec<HistoryRow>>,
    }
}

view! { lenient
    /// Something that happened to a node.
    HistoryRow {
        /// Position in the log.
        seq: u64,
        at: Timestamp,
        text: String,
    }
}

view! { lenient
    /// A finding with its node.
    FindingRow {
        node: NodeId,
        /// Subject of the finding, such as `GPU 3 at 0000:3b:00.0`; null from older servers.
        subject: Option<String>,
        /// The component that the finding is about; null from older servers.
        component: Option<ComponentView>,
        /// Code of the finding's runbook page, for `farrier runbook`; null from older servers.
        runbook: Option<String>,
        /// What a person does first instead of the finding's action, because the action would not
        /// help; null if the action applies, and from older servers.
        first_step: Option<String>,
        finding: Finding,
    }
}

view! { lenient
    /// A node whose findings are unknown. The open findings in the list are those of its last
    /// report.
    UnknownFindingsRow {
        node: NodeId,
        /// Why they are unknown: a reason code, such as `heartbeat-lost`.
        code: String,
        /// Since when; null if there was never a report.
        since: Option<Timestamp>,
        /// The reason as text.
        text: String,
        /// Number of open findings in the last report; null if there was never a report.
        open: Option<u32>,
    }
}

view! { lenient
    /// Open findings, by node and number.
    FindingPage {
        findings: Vec<FindingRow>,
        /// Nodes whose findings are unknown, such as silent nodes; null from older servers. The
        /// filters of findings do not apply to them, because they may have any finding.
        unknown: Option<Vec<UnknownFindingsRow>>,
        /// Cursor of the next page; null on the last page.
        next: Option<String>,
    }
}
