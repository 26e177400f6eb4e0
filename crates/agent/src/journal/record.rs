//! One line of the journal.

use farrier_fleet::health::{Change, Finding};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use farrier_fleet::health::{LastTold, Remembered};

/// The version of the form in which records are written. In version 1 an Xid that only NVML
/// reported has evidence of the kind `kernel`, with a sentence as its line; since version 2 it is
/// `nvml`.
pub const VERSION: u32 = 2;

/// The oldest version that is read.
const OLDEST_VERSION: u32 = 1;

/// Whether records of a version are read.
pub(crate) fn is_readable(version: u32) -> bool {
    (OLDEST_VERSION..=VERSION).contains(&version)
}

/// What one decision of the engine changed, and how far the kernel log had been read for it. Both stand
/// in one line: there is no moment at which one is on disk without the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`VERSION`].
    pub v: u32,
    /// From 1, growing; a gap is damage, or a time in which the disk took nothing.
    pub seq: u64,
    /// When it was written.
    pub at: Timestamp,
    /// The boot in which it was written.
    pub boot: String,
    /// The last record of the kernel log of that boot behind the state that this leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_seq: Option<u64>,
    /// The whole state; what came before counts no more. Every segment begins with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// What changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Events of the kernel log that rules need beyond a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remembered: Vec<Remembered>,
    /// What the driver told of recovery since the record before, in this boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub told: Vec<LastTold>,
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The open findings.
    pub findings: Vec<Finding>,
    /// The number of the next finding.
    pub next_id: u64,
    /// What rules remember.
    pub remembered: Vec<Remembered>,
    /// What the driver last told of recovery.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub told: Vec<LastTold>,
    /// Findings opened so far, by code.
    pub opened: std::collections::BTreeMap<String, u64>,
}
