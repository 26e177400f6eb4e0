//! What collectors saw: values of signals, events of the kernel log, results of checks.

use std::fmt;

use farrier_facts::decode;
use farrier_facts::node::Reading;
use farrier_facts::xid::XidFacts;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::finding::{Action, Severity};
use super::signal::Signal;

/// When something was seen.
///
/// Windows are measured on `steady_ms`, which no change of the wall clock moves; people are told the wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds since the node started; negative for what was seen before.
    pub steady_ms: i64,
    /// The wall clock.
    pub wall: Timestamp,
}

/// The name that a GPU keeps wherever it sits: `GPU-` and a UUID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub String);

/// How the name of a GPU begins whose own nobody knows.
const NAMELESS: &str = "unknown, GPU ";

impl GpuUuid {
    /// What stands for the name of a GPU that never answered: only its number is known, and only for as long as the
    /// numbers stay.
    pub fn nameless(index: u32) -> Self {
        Self(format!("{NAMELESS}{index}"))
    }

    /// Whether it is no name, but stands for one that nobody knows.
    pub fn is_nameless(&self) -> bool {
        self.0.starts_with(NAMELESS)
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

/// What an observation or a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Node,
    /// The agent itself.
    Agent,
    /// A GPU.
    Gpu(GpuUuid),
    /// An NVLink.
    Link {
        gpu: GpuUuid,
        link: u32,
    },
    /// A port of a network adapter.
    Nic {
        /// Such as `mlx5_0`.
        device: String,
        /// From 1.
        port: u32,
    },
    /// A PCI device that no GPU in the inventory stands at, as `0000:1b:00`.
    Pci(String),
}

impl Subject {
    /// The GPU that it is, or whose link it is.
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

/// A value of a signal. Absent: this part does not have it. Unreadable: nobody knows it now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub subject: Subject,
    /// Which signal.
    pub signal: Signal,
    pub reading: Reading<f64>,
    /// What the number does not say, such as the call that is stuck. Findings that rest on the value show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An Xid that NVML reported and the kernel log did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmlXid {
    pub code: u32,
    /// The GPU that NVML reported it of.
    pub gpu: GpuUuid,
    /// NVML's number of that GPU; none where it has left the inventory.
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
        formatter.write_str(", told by NVML and not by the kernel log")
    }
}

/// Who reported a [`KernelEvent`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSource {
    /// The kernel log.
    KernelLog {
        /// The line itself, or the first of several, as it can be shown.
        line: String,
    },
    /// NVML. The kernel log could not be read, or its lines were lost.
    Nvml(NvmlXid),
}

/// What the driver or the kernel reported, and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelEvent {
    /// What was reported, decoded.
    pub event: decode::Event,
    /// Who reported it.
    pub source: EventSource,
    /// The boot in which it was logged; repeats are told from repeats after a reboot by it.
    pub boot: String,
    /// When, on the steady clock. Lines of the ring buffer may be older than the batch.
    pub at: Moment,
}

impl KernelEvent {
    /// The event of an Xid that NVML reported. `pci` is the address of its GPU, where NVML knows
    /// one.
    pub fn from_nvml(
        facts: &XidFacts,
        xid: NvmlXid,
        pci: Option<&str>,
        boot: String,
        at: Moment,
    ) -> Self {
        let event = decode::event_for_xid(facts, xid.code, pci.and_then(|it| it.parse().ok()));
        Self { event, source: EventSource::Nvml(xid), boot, at }
    }

    /// The GPU, where the source names it by more than an address.
    pub fn gpu(&self) -> Option<&GpuUuid> {
        match &self.source {
            EventSource::KernelLog { .. } => None,
            EventSource::Nvml(xid) => Some(&xid.gpu),
        }
    }
}

/// A property of the node that a check found wrong. It is wrong until a later batch has it no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckItem {
    /// The check's own code, such as `module-not-loaded-version`.
    pub code: String,
    pub severity: Severity,
    /// What to do.
    pub action: Action,
    /// What is wrong, in words.
    pub text: String,
    /// What would help, with the command, where the check knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// A GPU as it is known on the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// NVML's number of it.
    pub index: u32,
    /// The number in `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// `0000:1b:00.0`, as the kernel writes it; none where NVML does not tell.
    pub pci: Option<String>,
    /// What NVML calls it; none where it does not tell.
    pub name: Option<String>,
}

impl GpuIdentity {
    /// Whether an address, with or without the function, is its own.
    pub fn stands_at(&self, address: &str) -> bool {
        let without = |text: &str| text.split('.').next().unwrap_or(text).to_ascii_lowercase();
        self.pci.as_deref().is_some_and(|pci| without(pci) == without(address))
    }
}

/// What collectors saw since the last batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The GPUs, where they were counted anew.
    pub inventory: Option<Vec<GpuIdentity>>,
    /// Values.
    pub samples: Vec<Sample>,
    /// The kernel log, and Xids that only NVML reported.
    pub kernel: Vec<KernelEvent>,
    /// All that a check of the whole node found wrong, where one was made.
    pub checks: Option<Vec<CheckItem>>,
}
