//! A record, which is one line of the journal.

use farrier_fleet::health::{Change, Finding};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use farrier_fleet::health::{RecoverySignal, StoredEvent};

/// Format version of new records. In version 1, an Xid that only NVML reported has evidence of kind
/// `kernel`, whose line is a sentence. Since version 2, the kind is `nvml`.
pub const VERSION: u32 = 2;

/// The oldest version that can be read.
const OLDEST_VERSION: u32 = 1;

pub(crate) fn is_readable(version: u32) -> bool {
    (OLDEST_VERSION..=VERSION).contains(&version)
}

/// The changes of one decision of the engine, and the kernel log cursor after the decision. One
/// line contains both, so that neither can be on disk without the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalRecord {
    /// Version of the format.
    pub v: u32,
    /// Increases by one, beginning with 1. A gap means that lines are damaged, or that records were
    /// merged while writes failed.
    pub seq: u64,
    /// When the record was made.
    pub at: Timestamp,
    /// The boot in which the record was made.
    pub boot: String,
    /// Kernel log cursor after this record, within that boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_seq: Option<u64>,
    /// The whole state. It supersedes all earlier records. Every segment except the first begins
    /// with a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<JournalSnapshot>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Kernel log events that rules need after a restart.
    #[serde(rename = "remembered", default, skip_serializing_if = "Vec::is_empty")]
    pub stored_events: Vec<StoredEvent>,
    /// Recovery signals that changed since the previous record.
    #[serde(rename = "told", default, skip_serializing_if = "Vec::is_empty")]
    pub recovery_signals: Vec<RecoverySignal>,
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalSnapshot {
    pub findings: Vec<Finding>,
    /// Id of the next finding.
    pub next_id: u64,
    /// Events that rules need after a restart.
    #[serde(rename = "remembered")]
    pub stored_events: Vec<StoredEvent>,
    /// The last value of each recovery signal.
    #[serde(rename = "told", default, skip_serializing_if = "Vec::is_empty")]
    pub recovery_signals: Vec<RecoverySignal>,
    /// Findings opened so far, by code.
    pub opened: std::collections::BTreeMap<String, u64>,
}
