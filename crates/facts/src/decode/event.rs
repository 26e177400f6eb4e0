//! What a line of a log told us.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::xid::{Action, Severity};

/// One thing that happened. All ten keys stand in its JSON, `null` where the log names none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// The line that says it, from 1; 0 where no line does.
    pub line: u64,
    /// What it is about.
    pub kind: Kind,
    /// The number of an Xid or SXid.
    pub xid: Option<u32>,
    /// The device as `0000:17:00`: domain, bus and device, never the function, so that it can be joined on.
    pub pci: Option<String>,
    /// The process that the log names.
    pub pid: Option<u32>,
    /// The name of that process.
    pub process: Option<String>,
    /// How bad.
    pub severity: Severity,
    /// What to do.
    pub action: Action,
    /// What it means and what to do, in words.
    pub text: String,
    /// Who says so, with opinions that differ.
    pub source: String,
    /// What happened, as a rule names it and for good: `xid.79`, `sxid.20034`, `aer.gpu.fatal`, or the id of the
    /// message, such as `hung-task`. Not in the JSON.
    #[serde(skip)]
    pub code: String,
    /// The part of the device that the log names, such as `GPC7 TPC5` or `link 14`, or a disk or a server. Not in the JSON.
    #[serde(skip)]
    pub unit: Option<String>,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An Xid of a GPU.
    Xid,
    /// An error of an NVSwitch.
    Sxid,
    /// The GPU's system processor, its initialisation, or the driver's watchdog over it.
    Gsp,
    /// A GPU that PCIe no longer reaches.
    FellOffBus,
    /// Libraries and kernel module of different versions.
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
