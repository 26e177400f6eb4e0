//! Log entries: inputs, operator requests and decisions. This version reads every entry format that
//! was ever written.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::access::AccessChange;
use super::coverage::CoverageReport;
use super::identity::{Actor, Domain, Location, NodeId};
use super::order::{Order, OrderKind, OrderStatus, VerificationLevel};
use super::policy::Policy;
use super::reason::{self, Rationale, Reason};
use super::state::{NodePhase, Symptom};
use crate::health::{Change, Finding, GpuUuid};
use crate::notify::MuteMatch;

/// Version of the entry format. Raise it when old bytes no longer decode, and keep the old decoder.
///
/// In version 1, reasons were sentences, and entries did not record the version of the decision
/// logic.
pub const VERSION: u32 = 3;

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Position in the log, from 1, without gaps.
    pub seq: u64,
    /// `seq` of the first entry of the batch. A batch is a series of inputs followed by the
    /// decisions on them.
    pub batch: u64,
    /// When the batch was written. Its decisions use this time as `now`. The time decreases only
    /// with [`Event::ClockStepped`].
    pub at: Timestamp,
    pub by: Actor,
    /// Version of the decision logic in force. 0 in entries of format 1, which do not record it.
    #[serde(default)]
    pub logic: u32,
    pub event: Event,
}

/// An input, an operator request or a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A node joined, or came back after it was retired.
    Enrolled {
        node: NodeId,
        #[serde(alias = "place")]
        location: Location,
    },
    #[serde(alias = "placed")]
    LocationChanged {
        node: NodeId,
        #[serde(alias = "place")]
        location: Location,
    },
    /// A node left the fleet permanently.
    Retired {
        node: NodeId,
        #[serde(alias = "why")]
        reason: String,
    },
    /// A node reported an inventory that differs from its previous inventory.
    #[serde(alias = "seen")]
    InventoryReported {
        node: NodeId,
        #[serde(alias = "makeup")]
        inventory: NodeInventory,
    },
    /// The heartbeats of a node are overdue, so it becomes suspect. Its heartbeat timeout has not
    /// expired yet.
    #[serde(alias = "silent")]
    HeartbeatLost {
        node: NodeId,
        /// When the last heartbeat arrived.
        since: Timestamp,
    },
    #[serde(alias = "heard")]
    HeartbeatRestored { node: NodeId },
    /// Findings of a node opened, changed or cleared. This is one record of the agent's journal.
    #[serde(alias = "found")]
    FindingsReported {
        node: NodeId,
        /// Position in the agent's journal. Records up to the last applied one are ignored.
        record: JournalPosition,
        changes: Vec<Change>,
    },
    /// All open findings of a node. The agent sends them if its journal does not continue from the
    /// last record in the log.
    #[serde(alias = "resynced")]
    FindingsSnapshot {
        node: NodeId,
        /// The last journal record that the report includes.
        record: JournalPosition,
        open: Vec<Finding>,
    },
    /// The cordon that the node's scheduler reports.
    #[serde(alias = "cordon-seen")]
    CordonObserved { node: NodeId, cordon: Cordon },
    /// A node reported the status of an order.
    #[serde(alias = "answered")]
    OrderStatusReported {
        node: NodeId,
        /// Generation of the order, which identifies it on its node.
        generation: u64,
        #[serde(alias = "answer")]
        status: OrderStatus,
    },
    /// A node got orders that the log lacks, because the log was restored from a backup. The next
    /// order needs a higher generation.
    #[serde(alias = "orders-seen")]
    OrderGenerationObserved {
        node: NodeId,
        /// Generation of the last order that the node got.
        generation: u64,
    },
    /// A node reports more than its quota, so the server delays its reports.
    QuotaExceeded { node: NodeId },
    /// A node's reports are within its quota again.
    #[serde(alias = "quota-kept")]
    QuotaRestored { node: NodeId },
    /// The server cannot decode a node's findings, so the node's health is unknown.
    ReportsUnreadable { node: NodeId },
    /// The server can decode the node's findings again.
    ReportsReadable { node: NodeId },
    /// The coverage gaps of a node changed. A node whose agent is older never reports them.
    CoverageReported { node: NodeId, coverage: CoverageReport },
    #[serde(alias = "asked")]
    OperatorRequested {
        #[serde(alias = "what")]
        request: OperatorRequest,
    },
    /// Replaces the policy.
    PolicySet { policy: Box<Policy> },
    /// Tokens, users or certificates changed, through the command line of the server or its REST
    /// API.
    #[serde(alias = "access")]
    AccessChanged {
        /// Increases with each change, so that no change is applied twice.
        number: u64,
        at: Timestamp,
        #[serde(alias = "what")]
        change: AccessChange,
    },
    /// Time passed, and nothing else happened.
    #[serde(alias = "time-passed")]
    Tick,
    /// The wall clock was stepped, and the time of the log follows it. Only this entry may have an
    /// earlier time than the entry before it. Timers keep their remaining time.
    ClockStepped { from: Timestamp, to: Timestamp },
    /// The controller runs again after a start, or after a pause of its process or machine. The
    /// pause does not count towards any heartbeat timeout, lease or phase timeout.
    ControllerResumed {
        /// When the controller last ran, as far as it knows.
        last_ran: Timestamp,
    },
    /// Decision: a node enters another phase.
    #[serde(alias = "moved")]
    PhaseChanged {
        node: NodeId,
        to: NodePhase,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
    /// Decision: an order is issued.
    #[serde(alias = "ordered")]
    OrderIssued { order: Order },
    /// Decision: the controller no longer waits for an order.
    #[serde(alias = "withdrawn")]
    OrderCancelled {
        node: NodeId,
        generation: u64,
        #[serde(alias = "why")]
        reason: Reason,
    },
    /// Decision: an action is due, but has to wait.
    #[serde(alias = "held-back")]
    Deferred {
        node: NodeId,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
    /// Decision: a shared failure domain, and not its nodes, explains a symptom.
    #[serde(alias = "blamed")]
    DomainFaultDetected {
        domain: Domain,
        symptom: Symptom,
        nodes: Vec<NodeId>,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
    /// Decision: a domain fault is over.
    #[serde(alias = "absolved")]
    DomainFaultCleared {
        domain: Domain,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
}

impl Event {
    /// Whether this is a decision of the controller. All other events are inputs.
    pub fn is_decision(&self) -> bool {
        matches!(
            self,
            Self::PhaseChanged { .. }
                | Self::OrderIssued { .. }
                | Self::OrderCancelled { .. }
                | Self::Deferred { .. }
                | Self::DomainFaultDetected { .. }
                | Self::DomainFaultCleared { .. }
        )
    }

    /// The node that the event is about.
    pub fn node(&self) -> Option<&NodeId> {
        match self {
            Self::Enrolled { node, .. }
            | Self::LocationChanged { node, .. }
            | Self::Retired { node, .. }
            | Self::InventoryReported { node, .. }
            | Self::HeartbeatLost { node, .. }
            | Self::HeartbeatRestored { node }
            | Self::FindingsReported { node, .. }
            | Self::FindingsSnapshot { node, .. }
            | Self::CordonObserved { node, .. }
            | Self::OrderStatusReported { node, .. }
            | Self::OrderGenerationObserved { node, .. }
            | Self::QuotaExceeded { node }
            | Self::QuotaRestored { node }
            | Self::ReportsUnreadable { node }
            | Self::ReportsReadable { node }
            | Self::CoverageReported { node, .. }
            | Self::PhaseChanged { node, .. }
            | Self::OrderCancelled { node, .. }
            | Self::Deferred { node, .. } => Some(node),
            Self::OrderIssued { order } => Some(&order.node),
            Self::OperatorRequested { .. }
            | Self::PolicySet { .. }
            | Self::AccessChanged { .. }
            | Self::Tick
            | Self::ClockStepped { .. }
            | Self::ControllerResumed { .. }
            | Self::DomainFaultDetected { .. }
            | Self::DomainFaultCleared { .. } => None,
        }
    }
}

/// Inventory of a node, as far as the fleet needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeInventory {
    /// Boot ID. It changes with each reboot.
    pub boot: String,
    /// Agent version.
    pub agent: String,
    /// Kernel version. Here and in the fields below, `None` means that the value was unreadable.
    pub kernel: Option<String>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// Highest CUDA version that the driver supports.
    pub cuda: Option<String>,
    pub gpus: Option<Vec<GpuInventory>>,
    /// Frameworks and their versions.
    #[serde(default)]
    pub frameworks: Vec<(String, String)>,
    /// Security features. `None` from agents that are older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compliance: Option<NodeCompliance>,
}

/// Security features of a node, for auditors. `None` means unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeCompliance {
    pub tpm: Option<bool>,
    pub secure_boot: Option<bool>,
    /// Whether LUKS encrypts every data volume. `None` also if there is no data volume.
    pub volumes_encrypted: Option<bool>,
    /// Default requirement for container images: `none` without a policy, `accept-anything`,
    /// `reject`, `signed` or `other`.
    pub image_policy: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuInventory {
    pub uuid: GpuUuid,
    /// `None` if NVML does not report it.
    pub name: Option<String>,
    /// NVML index. `None` from agents that are older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// PCI address, such as `0000:1b:00.0`. `None` if NVML does not report it, or from agents that
    /// are older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Serial number of the board. `None` if NVML does not report it, or from agents that are older
    /// than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
}

/// A position in an agent's journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalPosition {
    /// Journal ID. A new journal starts again with record 1.
    pub journal: String,
    pub number: u64,
}

/// The cordon of a node, as its agent reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cordon {
    /// Not reported yet.
    #[default]
    Unknown,
    /// Not cordoned.
    None,
    /// Cordoned by Farrier.
    #[serde(alias = "ours")]
    ByFarrier,
    /// Cordoned by another tool or person. Farrier never removes such a cordon.
    #[serde(alias = "theirs")]
    External {
        /// The owner, as far as the scheduler reports it.
        owner: String,
        reason: String,
    },
}

/// A request from an operator. The log entry records who made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperatorRequest {
    /// Keep a node out of service.
    Hold { node: NodeId, reason: String },
    /// End a hold.
    Release { node: NodeId },
    /// A node was repaired by hand. It may be verified now.
    Repaired {
        node: NodeId,
        #[serde(alias = "what")]
        repair: String,
    },
    /// Let a repair that waits for approval run.
    Approve { node: NodeId },
    /// Stop orders that change nodes until the given time.
    Freeze { domain: Domain, until: Timestamp, reason: String },
    /// End a freeze.
    #[serde(alias = "thaw")]
    Unfreeze { domain: Domain },
    /// The fault of a failure domain was repaired. Its nodes are judged on their own again.
    DomainRepaired { domain: Domain, repair: String },
    /// Verify a node now, whatever its phase.
    Verify {
        node: NodeId,
        #[serde(alias = "rung")]
        level: VerificationLevel,
    },
    /// Run an order once and report its result.
    #[serde(alias = "errand")]
    RunOrder {
        node: NodeId,
        /// `diag`, `tune` or `collect-logs`.
        #[serde(alias = "what")]
        order: OrderKind,
    },
    /// Send no notifications of these alerts until the given time.
    Mute {
        #[serde(rename = "match")]
        matches: MuteMatch,
        /// What the operator may see. Alerts of other nodes are not muted, even if they match.
        /// Entries without it are from before this was recorded.
        #[serde(default = "Domain::whole_fleet", skip_serializing_if = "Domain::is_fleet")]
        scope: Domain,
        until: Timestamp,
        reason: String,
    },
    /// End a mute before its time.
    Unmute {
        /// Position of the mute in the log.
        mute: u64,
    },
    /// An operator takes care of a group of alerts: it is neither repeated nor escalated.
    AcknowledgeAlerts {
        /// The group, as in its notifications.
        group: String,
    },
    /// Deliver queued and undeliverable notifications of a receiver now. The queue is not part of
    /// the log; this records who did it.
    RetryNotifications {
        receiver: String,
        /// Only the notification with this key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// Remove queued and undeliverable notifications of a receiver.
    DropNotifications {
        receiver: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
}

#[derive(Debug, thiserror::Error)]
#[error("failed to encode the event")]
pub struct EncodeError(#[source] serde_json::Error);

#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("the event has version {found}, but this program knows only versions up to {VERSION}")]
    Newer { found: u32 },
    #[error("the event has version 0, which does not exist")]
    NoVersion,
    #[error("the event is malformed")]
    Unreadable(#[from] serde_json::Error),
}

#[derive(Serialize)]
struct Out<'a> {
    v: u32,
    entry: &'a Entry,
}

#[derive(Deserialize)]
struct Header {
    v: u32,
}

#[derive(Deserialize)]
struct In {
    entry: Entry,
}

/// An entry of format 1.
#[derive(Deserialize)]
struct InV1 {
    entry: serde_json::Value,
}

impl Entry {
    /// Encodes an entry for the log. Equal entries give equal bytes.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        serde_json::to_vec(&Out { v: VERSION, entry: self }).map_err(EncodeError)
    }

    /// Decodes an entry of any version up to [`VERSION`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Header { v } = serde_json::from_slice(bytes)?;
        if v > VERSION {
            return Err(DecodeError::Newer { found: v });
        }
        if v == 0 {
            return Err(DecodeError::NoVersion);
        }
        if v == 1 {
            let InV1 { mut entry } = serde_json::from_slice(bytes)?;
            entry.get_mut("event").into_iter().for_each(reason::upgrade_event);
            return Ok(serde_json::from_value(entry)?);
        }
        let In { entry } = serde_json::from_slice(bytes)?;
        Ok(entry)
    }
}
