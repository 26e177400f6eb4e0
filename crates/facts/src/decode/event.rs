//! Decoded events.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::xid::{Action, Severity};

/// One event. Its JSON always has all twelve keys, with `null` for missing values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodedEvent {
    /// Line number from 1; 0 for events without a line.
    pub line: u64,
    pub kind: Kind,
    /// The number of an Xid or SXid.
    pub xid: Option<u32>,
    /// The device as `0000:17:00`: domain, bus and device without the function, usable as a join
    /// key. A PCIe port has its function: `0000:16:01.0`.
    pub pci: Option<String>,
    /// PID of the process that the log names.
    pub pid: Option<u32>,
    /// The name of that process.
    pub process: Option<String>,
    pub severity: Severity,
    pub action: Action,
    /// Meaning and action.
    pub text: String,
    /// Sources, including those that disagree.
    pub source: String,
    /// The host that the line names.
    #[serde(default)]
    pub host: Option<String>,
    /// The time as the line prints it, or in RFC 3339 for the microseconds of the journal.
    #[serde(default)]
    pub time: Option<String>,
    /// Stable event code used by rules: `xid.79`, `xid.unreadable`, `sxid.20034`,
    /// `aer.gpu.fatal`, or a message id such as `hung-task`. Not in the JSON.
    #[serde(skip)]
    pub code: String,
    /// The affected component, such as `GPC7 TPC5`, `link 14`, a disk or a server. Not in the JSON.
    #[serde(skip)]
    pub unit: Option<String>,
}

/// Kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An Xid of a GPU.
    Xid,
    /// An error of an NVSwitch.
    Sxid,
    /// GSP (GPU system processor) errors, initialisation failures and GSP watchdog timeouts.
    Gsp,
    /// A GPU no longer reachable over PCIe.
    FellOffBus,
    /// User-space libraries and kernel module differ in version.
    VersionMismatch,
    /// An error of the PCIe bus.
    PcieAer,
    /// A ConnectX NIC.
    Nic,
    /// The host.
    Host,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Xid => "xid",
            Self::Sxid => "sxid",
            Self::Gsp => "gsp",
            Self::FellOffBus => "fell-off-bus",
            Self::VersionMismatch => "version-mismatch",
            Self::PcieAer => "pcie-aer",
            Self::Nic => "nic",
            Self::Host => "host",
        })
    }
}
