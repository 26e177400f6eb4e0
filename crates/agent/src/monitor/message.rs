//! What reaches the brain.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use farrier_facts::node::NvmlStatus;
use farrier_fleet::health::{CheckItem, GpuIdentity, GpuUuid, Sample};
use farrier_hardware::kmsg::KernelLog;
use farrier_hardware::nvml::watch;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError, Tiers, duration};
use crate::orders::RepairNote;

/// One of those who look. Each tier is one: a tier that stands still is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collector {
    /// NVML, what is cheap and changes quickly.
    NvmlFast,
    /// NVML, most signals.
    NvmlMedium,
    /// NVML, what is costly or changes seldom.
    NvmlSlow,
    /// NVML, what hardly ever changes.
    NvmlRare,
    /// The host's files, as for NVML.
    HostFast,
    /// The host's files.
    HostMedium,
    /// The host's files.
    HostSlow,
    /// The host's files.
    HostRare,
    /// The kernel log: it says that it is there also while the log is quiet.
    Kernel,
    /// The node's check.
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

    /// How often the one that reads the kernel log says that it is there.
    pub const KERNEL_PERIOD: Duration = Duration::from_secs(10);
    /// How often the check looks whether it is due.
    pub const CHECK_PERIOD: Duration = Duration::from_secs(60);

    /// How often it looks. NVML's tiers go by what its calls cost, and are not configured.
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

    /// Whether it goes by NVML.
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

/// A process on a GPU and to whom it belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The process.
    pub pid: u32,
    /// Its command, where it can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Memory that it uses there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// `pod`, `slurm-job`, `unit`, or none where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The pod's UID, the job's number, the unit's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What one look gave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Who looked.
    pub collector: Option<Collector>,
    /// The GPUs, where they were counted.
    pub inventory: Option<Vec<GpuIdentity>>,
    /// Values.
    pub samples: Vec<Sample>,
    /// All processes on GPUs, where they were listed.
    pub processes: Option<Vec<Held>>,
    /// Xids that NVML told of.
    pub xids: Vec<(GpuUuid, u64)>,
    /// The driver's version.
    pub driver: Option<String>,
    /// Processor time of a child for this look.
    pub child_cpu_us: u64,
    /// Memory of a child.
    pub child_rss_bytes: Option<u64>,
}

/// An item of the node's check that could not be judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedCheck {
    /// The item's code.
    pub code: String,
    /// What could not be read.
    pub why: String,
}

/// Why a configuration that was read again is not in force: what is wrong, and how to see all of it.
#[derive(Debug, thiserror::Error)]
#[error("{}; `farrier agent --check-config --config {}` lists all", err.first(), path.display())]
pub struct ConfigRejected {
    pub path: PathBuf,
    /// What is wrong.
    pub err: ConfigError,
}

/// Why NVML does not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvmlUnavailable {
    /// The probe has not reported since the agent started.
    #[error("it has not answered yet")]
    NotYet,
    /// This machine's own library would report other GPUs than those of the watched root.
    #[error("another root is watched and no NVML library was named")]
    NoLibraryNamed,
    /// A call has not returned.
    #[error("a call has not returned for {after_s} s: {during} ({stuck} stuck)")]
    Hung {
        /// The call, and the GPU that it is about.
        during: String,
        /// How long the agent has waited for it.
        after_s: u64,
        /// Child processes that are stuck in a call, this one included.
        stuck: u32,
    },
    /// The child process that calls NVML has died.
    #[error("the child that asks it died: {0}")]
    Died(String),
    /// There is no library.
    #[error("there is no library: {0}")]
    NoLibrary(String),
    /// The library returned this at initialisation.
    #[error("it refused to start: {0}")]
    Refused(NvmlStatus),
}

/// What a message says.
#[derive(Debug)]
pub enum CollectorMessage {
    /// A collector looked.
    Report(Report),
    /// NVML does not answer, or not for all GPUs, and why; reports may go on to come for others.
    NvmlBlind { why: NvmlUnavailable },
    /// NVML answers for all again.
    NvmlBack,
    /// The kernel log.
    Kernel(KernelLog),
    /// The node was checked.
    Checked {
        /// What is wrong.
        items: Vec<CheckItem>,
        /// What could not be judged.
        unseen: Vec<SkippedCheck>,
    },
    /// A collector is there, with nothing to tell.
    Alive(Collector),
    /// A thread has ended before it was told to, and with it these.
    Ended(&'static [Collector]),
    /// A new configuration is in force.
    Reloaded(Box<Config>),
    /// The configuration on disk is wrong, and the old one stays.
    ConfigBad(ConfigRejected),
    /// A person has repaired the node, as the server told the thread that carries out orders.
    Repaired(RepairNote),
    /// It is time to end.
    Stop,
}
