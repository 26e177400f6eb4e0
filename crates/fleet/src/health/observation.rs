//! Data from collectors: values of signals, kernel log events, and check results.

use std::fmt;

use farrier_facts::decode;
use farrier_facts::node::Reading;
use farrier_facts::xid::XidFacts;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::finding::{Action, Severity};
use super::signal::Signal;

/// When something was observed.
///
/// Windows use `steady_ms`, which changes of the wall clock do not affect. Output shows the wall
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds since the node started. Negative for observations from before that start.
    pub steady_ms: i64,
    pub wall: Timestamp,
}

/// The UUID of a GPU, with its `GPU-` prefix. It stays the same wherever the GPU is installed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub String);

/// Prefix of the placeholder for an unknown UUID.
const UNKNOWN_UUID_PREFIX: &str = "unknown, GPU ";

impl GpuUuid {
    /// Placeholder for the UUID of a GPU that never answered. Only the index of the GPU is known.
    /// The placeholder identifies the GPU only while the indices do not change.
    pub fn placeholder(index: u32) -> Self {
        Self(format!("{UNKNOWN_UUID_PREFIX}{index}"))
    }

    /// Whether this is a placeholder for an unknown UUID.
    pub fn is_placeholder(&self) -> bool {
        self.0.starts_with(UNKNOWN_UUID_PREFIX)
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// The subject of an observation or finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Node,
    Agent,
    Gpu(GpuUuid),
    Link {
        gpu: GpuUuid,
        link: u32,
    },
    Nic {
        /// Device name, such as `mlx5_0`.
        device: String,
        /// Port number, from 1.
        port: u32,
    },
    /// A PCI device that matches no GPU in the inventory, such as `0000:1b:00`.
    Pci(String),
}

impl Subject {
    /// The GPU itself, or the GPU of the link.
    pub fn gpu(&self) -> Option<&GpuUuid> {
        match self {
            Self::Gpu(gpu) | Self::Link { gpu, .. } => Some(gpu),
            Self::Node | Self::Agent | Self::Nic { .. } | Self::Pci(_) => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Node => "node".to_owned(),
            Self::Agent => "agent".to_owned(),
            Self::Gpu(gpu) => gpu.0.clone(),
            Self::Link { gpu, link } => format!("{gpu}/link{link}"),
            Self::Nic { device, port } => format!("{device}/{port}"),
            Self::Pci(address) => address.clone(),
        };
        formatter.pad(&text)
    }
}

/// A value of a signal. `Absent` means that the subject does not have the signal. `Unreadable`
/// means that the value is unknown now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub subject: Subject,
    pub signal: Signal,
    pub reading: Reading<f64>,
    /// Details of the value that its number does not show, such as the call that is stuck. Findings
    /// that are based on the value show these details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An Xid that NVML reported, but that is not in the kernel log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmlXid {
    pub code: u32,
    pub gpu: GpuUuid,
    /// NVML index of that GPU. `None` if the GPU has left the inventory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
}

impl fmt::Display for NvmlXid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Xid {} of GPU ", self.code)?;
        match self.index {
            Some(index) => write!(formatter, "{index}")?,
            None => write!(formatter, "{}", self.gpu)?,
        }
        formatter.write_str(", reported by NVML but not in the kernel log")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSource {
    /// The kernel log.
    KernelLog {
        /// The line, or the first of several lines, in printable form.
        line: String,
    },
    /// NVML, because the kernel log could not be read or lost lines.
    Nvml(NvmlXid),
}

/// An event that the driver or the kernel reported, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelEvent {
    pub event: decode::DecodedEvent,
    pub source: EventSource,
    /// The boot in which the event was logged. With it, repeats within a boot can be told from
    /// repeats after a reboot.
    pub boot: String,
    /// When the event happened. Lines from the ring buffer may be older than the batch.
    pub at: Moment,
}

impl KernelEvent {
    /// Creates an event for an Xid that NVML reported. `pci` is the address of the GPU, if NVML
    /// knows the address.
    pub fn from_nvml(
        facts: &XidFacts,
        xid: NvmlXid,
        pci: Option<&str>,
        boot: String,
        at: Moment,
    ) -> Self {
        let event =
            decode::event_for_xid(facts, xid.code, pci.and_then(|address| address.parse().ok()));
        Self { event, source: EventSource::Nvml(xid), boot, at }
    }

    /// The GPU, if the source of the event identifies it by more than its address.
    pub fn gpu(&self) -> Option<&GpuUuid> {
        match &self.source {
            EventSource::KernelLog { .. } => None,
            EventSource::Nvml(xid) => Some(&xid.gpu),
        }
    }
}

/// A problem that a node check found. It stays open until a later check no longer reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckItem {
    /// The code that the node check gives the problem, such as `module-not-loaded-version`.
    pub code: String,
    pub severity: Severity,
    pub action: Action,
    pub text: String,
    /// A remedy with its command, if the check knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    pub uuid: GpuUuid,
    /// NVML index.
    pub index: u32,
    /// The number in `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// PCI address in the kernel's form, `0000:1b:00.0`. `None` if NVML does not report it.
    pub pci: Option<String>,
    /// NVML's name for the GPU. `None` if NVML does not report it.
    pub name: Option<String>,
}

impl GpuIdentity {
    /// Whether the GPU has this PCI address, with or without the function.
    pub fn has_pci_address(&self, address: &str) -> bool {
        let without_function =
            |text: &str| text.split('.').next().unwrap_or(text).to_ascii_lowercase();
        self.pci.as_deref().is_some_and(|pci| without_function(pci) == without_function(address))
    }
}

/// Observations since the last batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The GPUs, if they were enumerated again since the last batch.
    pub inventory: Option<Vec<GpuIdentity>>,
    pub samples: Vec<Sample>,
    /// Kernel log events, and Xids that only NVML reported.
    pub kernel: Vec<KernelEvent>,
    /// All problems that a node check found. `None` if no check ran.
    pub checks: Option<Vec<CheckItem>>,
}
