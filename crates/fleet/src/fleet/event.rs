//! What the log holds: what happened, what people asked, what was decided. Every form that was ever written still reads.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::access::AccessChange;
use super::identity::{Actor, Domain, Location, NodeId};
use super::order::{Order, OrderKind, OrderStatus, VerificationLevel};
use super::policy::Policy;
use super::reason::{self, Rationale, Reason};
use super::state::{NodePhase, Symptom};
use crate::health::{Change, Finding, GpuUuid};

/// The version of the form below. A change that old bytes do not read as makes a new one, and the old one stays readable.
/// In version 1 reasons were sentences, and entries did not say by which logic they were decided.
pub const VERSION: u32 = 3;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its place, from 1, without gaps.
    pub seq: u64,
    /// The place of the first line of the batch: inputs, and then what was decided on them.
    pub batch: u64,
    /// When the batch was written; the `now` of its decisions. Never goes back.
    pub at: Timestamp,
    pub by: Actor,
    /// The version of the decision logic that was in force; 0 in entries of format 1, which do not say.
    #[serde(default)]
    pub logic: u32,
    pub event: Event,
}

/// Something that happened, was asked, or was decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A node joined, or came back after it was retired.
    Enrolled {
        node: NodeId,
        /// Where it stands.
        #[serde(alias = "place")]
        location: Location,
    },
    /// A node stands elsewhere.
    #[serde(alias = "placed")]
    LocationChanged {
        node: NodeId,
        #[serde(alias = "place")]
        location: Location,
    },
    /// A node is gone for good.
    Retired {
        node: NodeId,
        #[serde(alias = "why")]
        reason: String,
    },
    /// What a node is, where it is not what it was.
    #[serde(alias = "seen")]
    InventoryReported {
        node: NodeId,
        /// What it is.
        #[serde(alias = "makeup")]
        inventory: NodeInventory,
    },
    /// Nothing was heard of a node for too long.
    #[serde(alias = "silent")]
    HeartbeatLost {
        node: NodeId,
        /// When it was last heard.
        since: Timestamp,
    },
    /// A node is heard again.
    #[serde(alias = "heard")]
    HeartbeatRestored { node: NodeId },
    /// Findings of a node opened, changed or cleared: one record of its agent's journal.
    #[serde(alias = "found")]
    FindingsReported {
        node: NodeId,
        /// Where this stands in the agent's journal. What is not after the last one is not taken in twice.
        record: Record,
        changes: Vec<Change>,
    },
    /// All open findings of a node, where its journal does not go on from the last record that is here.
    #[serde(alias = "resynced")]
    FindingsSnapshot {
        node: NodeId,
        /// Up to where in the agent's journal.
        record: Record,
        /// Every open finding.
        open: Vec<Finding>,
    },
    /// What the node's scheduler says of new work there.
    #[serde(alias = "cordon-seen")]
    CordonObserved { node: NodeId, cordon: Cordon },
    /// What a node answered to an order.
    #[serde(alias = "answered")]
    OrderStatusReported {
        node: NodeId,
        /// To which order.
        generation: u64,
        #[serde(alias = "answer")]
        status: OrderStatus,
    },
    /// A node had orders that are not in the log, which is from a backup: the next must have a higher number.
    #[serde(alias = "orders-seen")]
    OrderGenerationObserved {
        node: NodeId,
        /// The number of the last one.
        generation: u64,
    },
    /// A node reports more than its quota: its reports wait.
    QuotaExceeded { node: NodeId },
    /// A node's reports keep to its quota again.
    #[serde(alias = "quota-kept")]
    QuotaRestored { node: NodeId },
    /// The server cannot read what a node reports of its findings: it does not know what is wrong there.
    ReportsUnreadable { node: NodeId },
    /// The server reads the findings of a node again.
    ReportsReadable { node: NodeId },
    /// A person wants something.
    #[serde(alias = "asked")]
    OperatorRequested {
        #[serde(alias = "what")]
        request: OperatorRequest,
    },
    /// The policy from here on.
    PolicySet {
        /// The whole of it.
        policy: Box<Policy>,
    },
    /// Who may speak was changed, by the server's command line or its interface.
    #[serde(alias = "access")]
    AccessChanged {
        /// Counts up with each change, so that none is taken in twice.
        number: u64,
        /// When it was changed.
        at: Timestamp,
        #[serde(alias = "what")]
        change: AccessChange,
    },
    /// Nothing happened but time.
    #[serde(alias = "time-passed")]
    Tick,
    /// The wall clock was stepped, and the log's time follows it. The only entry whose time may lie before that of the one before it.
    /// Timers keep what is left of them.
    ClockStepped {
        /// What the log's clock showed.
        from: Timestamp,
        /// What it shows from here on.
        to: Timestamp,
    },
    /// The controller runs again: after a start, or after a pause of its process or machine. Time in which it did not run counts towards
    /// no heartbeat timeout, lease or phase timeout.
    ControllerResumed {
        /// When it is last known to have run.
        last_ran: Timestamp,
    },
    /// Decided: where a node stands from here on.
    #[serde(alias = "moved")]
    PhaseChanged {
        node: NodeId,
        to: NodePhase,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
    /// Decided: an order.
    #[serde(alias = "ordered")]
    OrderIssued { order: Order },
    /// Decided: an order is not waited for any longer.
    #[serde(alias = "withdrawn")]
    OrderCancelled {
        node: NodeId,
        generation: u64,
        #[serde(alias = "why")]
        reason: Reason,
    },
    /// Decided: something should be done with a node and is not.
    #[serde(alias = "held-back")]
    Deferred {
        node: NodeId,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
    /// Decided: not the nodes are at fault but what they share.
    #[serde(alias = "blamed")]
    DomainFaultDetected {
        /// What they share.
        domain: Domain,
        /// What they have in common.
        symptom: Symptom,
        nodes: Vec<NodeId>,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
    /// Decided: what the nodes of a domain share is no longer to blame.
    #[serde(alias = "absolved")]
    DomainFaultCleared {
        /// What they share.
        domain: Domain,
        #[serde(alias = "why")]
        rationale: Rationale,
    },
}

impl Event {
    /// Whether it was decided, and not told or asked.
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

    /// The node that it is about.
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

/// What a node is made of, as far as the fleet needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeInventory {
    /// The boot, so that a reboot shows.
    pub boot: String,
    /// The agent's version.
    pub agent: String,
    /// The kernel; none where it could not be read. So for all that follows.
    pub kernel: Option<String>,
    /// NVIDIA's driver.
    pub driver: Option<String>,
    /// The highest CUDA version of the driver.
    pub cuda: Option<String>,
    /// The GPUs; none where they could not be read.
    pub gpus: Option<Vec<GpuInventory>>,
    /// Frameworks with their versions.
    #[serde(default)]
    pub frameworks: Vec<(String, String)>,
}

/// One GPU of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuInventory {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Its name; none where NVML does not tell.
    pub name: Option<String>,
    /// NVML's number of it; none where an older agent did not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Its address on the bus, such as `0000:1b:00.0`; none where NVML or an older agent does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
}

/// A record of an agent's journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The journal: a new one begins to count anew.
    pub journal: String,
    /// Its place in it.
    pub number: u64,
}

/// Whether a node takes new work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cordon {
    /// Nobody has said.
    #[default]
    Unknown,
    /// It does.
    None,
    /// It does not, by our mark.
    #[serde(alias = "ours")]
    ByFarrier,
    /// It does not, by somebody else's. Only they take it away.
    #[serde(alias = "theirs")]
    External {
        /// Who, as far as the scheduler says.
        owner: String,
        reason: String,
    },
}

/// What a person may ask for. Who asked is in the entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperatorRequest {
    /// Hold a node out of service.
    Hold { node: NodeId, reason: String },
    /// A hold is over.
    Release { node: NodeId },
    /// A node was repaired by hand and may be proven.
    Repaired {
        node: NodeId,
        /// What was done.
        #[serde(alias = "what")]
        repair: String,
    },
    /// A repair that waits for a person may go on.
    Approve { node: NodeId },
    /// No order that changes anything, for a while.
    Freeze { domain: Domain, until: Timestamp, reason: String },
    /// A freeze is over.
    #[serde(alias = "thaw")]
    Unfreeze { domain: Domain },
    /// Prove a node now, whatever it stands.
    Verify {
        node: NodeId,
        #[serde(alias = "rung")]
        level: VerificationLevel,
    },
    /// Have something done on a node once, and tell what came of it.
    #[serde(alias = "errand")]
    RunOrder {
        node: NodeId,
        /// What: `diag` or `tune`.
        #[serde(alias = "what")]
        order: OrderKind,
    },
}

/// Why an entry cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the event cannot be written as bytes")]
pub struct EncodeError(#[source] serde_json::Error);

/// Why bytes are no event.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// They are of a later version.
    #[error("the event is of version {found}, and this program knows up to {VERSION}")]
    Newer { found: u32 },
    /// Versions count from 1.
    #[error("the event is of version 0, which there is not")]
    NoVersion,
    /// They do not read.
    #[error("the event does not read")]
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

/// An entry as format 1 has it.
#[derive(Deserialize)]
struct InV1 {
    entry: serde_json::Value,
}

impl Entry {
    /// The bytes that the log keeps. The same entry gives the same bytes.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        serde_json::to_vec(&Out { v: VERSION, entry: self }).map_err(EncodeError)
    }

    /// Reads what any version up to this one wrote.
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
