//! Messages to the health monitor.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use farrier_facts::decode::PciBridge;
use farrier_facts::node::{NvmlStatus, ReadError};
use farrier_fleet::health::{CheckItem, GpuIdentity, GpuUuid, Sample};
use farrier_hardware::kmsg::KernelLog;
use farrier_hardware::nvml::watch;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError, Tiers, duration};
use crate::orders::RepairNote;

/// A source of readings. Each tier, which is a group of signals that are read equally often, counts
/// as a separate collector. A stalled tier is therefore visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collector {
    /// NVML signals that are cheap and change quickly.
    NvmlFast,
    /// Most NVML signals.
    NvmlMedium,
    /// NVML signals that are costly or change seldom.
    NvmlSlow,
    /// NVML signals that hardly ever change.
    NvmlRare,
    /// Host files, with the same tiers as NVML.
    HostFast,
    HostMedium,
    HostSlow,
    HostRare,
    /// The kernel log. Its collector sends a heartbeat while the log has no new lines.
    Kernel,
    /// The coherence check of the node.
    Check,
}

impl Collector {
    pub const ALL: [Self; 10] = [
        Self::NvmlFast,
        Self::NvmlMedium,
        Self::NvmlSlow,
        Self::NvmlRare,
        Self::HostFast,
        Self::HostMedium,
        Self::HostSlow,
        Self::HostRare,
        Self::Kernel,
        Self::Check,
    ];

    /// How often the reader of the kernel log sends a heartbeat.
    pub const KERNEL_PERIOD: Duration = Duration::from_secs(10);
    /// How often the check tests whether it is due.
    pub const CHECK_PERIOD: Duration = Duration::from_secs(60);

    /// The period of the collector. The periods of NVML tiers depend on the measured cost of the
    /// calls, and are not configurable.
    pub fn period(self, tiers: &Tiers) -> Duration {
        match self {
            Self::NvmlFast => watch::Tier::Fast.period(),
            Self::NvmlMedium => watch::Tier::Medium.period(),
            Self::NvmlSlow => watch::Tier::Slow.period(),
            Self::NvmlRare | Self::HostRare => watch::Tier::Rare.period(),
            Self::HostFast => duration(tiers.fast_s),
            Self::HostMedium => duration(tiers.medium_s),
            Self::HostSlow => duration(tiers.slow_s),
            Self::Kernel => Self::KERNEL_PERIOD,
            Self::Check => Self::CHECK_PERIOD,
        }
    }

    pub fn is_nvml(self) -> bool {
        matches!(self, Self::NvmlFast | Self::NvmlMedium | Self::NvmlSlow | Self::NvmlRare)
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::NvmlFast => "nvml-fast",
            Self::NvmlMedium => "nvml-medium",
            Self::NvmlSlow => "nvml-slow",
            Self::NvmlRare => "nvml-rare",
            Self::HostFast => "host-fast",
            Self::HostMedium => "host-medium",
            Self::HostSlow => "host-slow",
            Self::HostRare => "host-rare",
            Self::Kernel => "kernel",
            Self::Check => "check",
        })
    }
}

/// A process on a GPU and its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedGpuProcess {
    pub gpu: GpuUuid,
    pub pid: u32,
    /// `None` if the command line cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// GPU memory that the process uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// `slurm-job`, `pod`, `container` or `unit`. `None` if the owner is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// ID of the Slurm job, UID of the pod, ID of the container, or name of the unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The result of one read by a collector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollectorReport {
    pub collector: Option<Collector>,
    /// The GPUs, if this read enumerated them.
    pub inventory: Option<Vec<GpuIdentity>>,
    pub samples: Vec<Sample>,
    /// All GPU processes, if this read listed them.
    pub processes: Option<Vec<OwnedGpuProcess>>,
    /// Xids reported by NVML.
    pub xids: Vec<(GpuUuid, u64)>,
    pub driver: Option<String>,
    /// CPU time that the child process spent on this read.
    pub child_cpu_us: u64,
    /// Resident memory of the child process.
    pub child_rss_bytes: Option<u64>,
}

/// A check that could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedCheck {
    /// Code of the check.
    pub code: String,
    /// Which reading is missing, and why.
    pub reason: String,
}

/// Why a reloaded configuration is not in force. The text has the first problem, and the command
/// that lists all problems.
#[derive(Debug, thiserror::Error)]
#[error("{}; `farrier agent --check-config --config {}` lists all", err.first(), path.display())]
pub struct ConfigRejected {
    pub path: PathBuf,
    pub err: ConfigError,
}

/// Why NVML does not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvmlUnavailable {
    /// The probe has not reported since the agent started.
    #[error("no answer yet")]
    NotYet,
    /// The agent does not use the NVML library of this machine, because that library would report
    /// the GPUs of this machine instead of the GPUs of the monitored root.
    #[error("another root is monitored and no NVML library is configured")]
    NoLibraryNamed,
    /// A call has not returned by its deadline.
    #[error("a call has not returned for {after_s} s: {during} ({stuck} stuck)")]
    Hung {
        /// The call and its GPU.
        during: String,
        /// How long the agent has waited.
        after_s: u64,
        /// Number of child processes that are stuck in a call, including this one.
        stuck: u32,
    },
    /// The child process that calls NVML has died.
    #[error("the child process that calls it died: {0}")]
    Died(String),
    /// The library is not installed, or cannot be loaded.
    #[error("failed to load the library: {0}")]
    NoLibrary(String),
    /// The library returned this status at initialisation.
    #[error("refused to start: {0}")]
    Refused(NvmlStatus),
}

impl NvmlUnavailable {
    /// The same cause, in the form that readings use.
    pub(super) fn read_error(&self) -> ReadError {
        match self {
            Self::NotYet => ReadError::NotReadYet,
            Self::NoLibraryNamed => ReadError::Unavailable { detail: self.to_string().into() },
            // The duration is left out, because it changes while the call hangs.
            Self::Hung { during, .. } => ReadError::CallHung { call: during.clone() },
            Self::Died(detail) => ReadError::ProbeEnded { detail: detail.clone() },
            Self::NoLibrary(detail) => ReadError::NoLibrary { detail: detail.clone() },
            Self::Refused(status) => ReadError::Nvml { status: *status },
        }
    }
}

#[derive(Debug)]
pub enum CollectorMessage {
    Report(CollectorReport),
    /// NVML does not answer for some or all GPUs. Reports may still arrive for the others.
    NvmlUnavailable {
        why: NvmlUnavailable,
    },
    /// NVML answers for all GPUs again.
    NvmlRecovered,
    /// The PCI bridges of the node. Sent before the first record of the kernel log.
    Bridges(Vec<PciBridge>),
    Kernel(KernelLog),
    /// The coherence check ran.
    Checked {
        /// Failed checks.
        items: Vec<CheckItem>,
        /// Checks that could not be evaluated.
        skipped: Vec<SkippedCheck>,
    },
    /// Heartbeat of a collector that has nothing to report.
    Heartbeat(Collector),
    /// A thread ended without a stop request. These collectors ran on the thread.
    Ended(&'static [Collector]),
    /// A new configuration is in force.
    Reloaded(Box<Config>),
    /// The configuration on disk is invalid. The old one stays in force.
    ConfigRejected(ConfigRejected),
    /// A person repaired the node. The server sent this information to the order executor.
    Repaired(RepairNote),
    /// The agent is shutting down.
    Stop,
}
