//! Current values of everything that a profile can set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::control::Value;
use crate::node::{Package, PowerLimits, Reading, Setting};

/// Input of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readings {
    pub gpus: GpusSeen,
    /// CPU governors by file.
    pub governors: Reading<BTreeMap<String, Choice>>,
    /// Transparent huge pages.
    pub hugepages: Reading<Choice>,
    /// Files that a profile may write, by path, as [`Value::File`] or [`Value::NoFile`].
    pub files: BTreeMap<String, Reading<Value>>,
    /// Limits on locked memory.
    pub memlock: MemlockReadings,
    /// The packages of kernel and driver.
    pub packages: Reading<Vec<Package>>,
    /// Whether apt's configuration directory exists.
    pub has_apt: Reading<bool>,
    /// `nvidia-persistenced`; absent if not installed.
    pub persistenced: Reading<ServiceState>,
    /// Whether services can be started and stopped. False if another root than `/` is tuned.
    pub can_start_services: bool,
    /// Parameters of the loaded module, by name without `NVreg_`.
    pub module_parameters: Reading<BTreeMap<String, String>>,
}

/// Configuration that limits locked memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemlockReadings {
    /// Files of `pam_limits`, in the order in which `pam_limits` reads them.
    pub limits: Reading<Vec<ConfigFile>>,
    /// Installed services that start jobs, by unit name without `.service`: the unit file and its
    /// drop-ins, in the order in which systemd reads them.
    pub services: Reading<BTreeMap<String, Vec<ConfigFile>>>,
}

/// A configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: String,
    pub text: String,
}

/// State of a systemd service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceState {
    /// Enabled at boot.
    pub enabled: bool,
    /// Has a running process.
    pub running: bool,
    /// The unit is static (no `[Install]` section), so `systemctl enable` does not apply.
    pub is_static: bool,
}

/// A choice between words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Current choice.
    pub current: Reading<String>,
    /// All choices; absent if the kernel does not list them.
    pub available: Reading<Vec<String>>,
}

/// Result of querying the GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpusSeen {
    Answered(Vec<GpuReadings>),
    /// NVML did not answer, with the reason.
    Silent(String),
}

/// Readings of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuReadings {
    /// NVML index.
    pub index: u32,
    /// If unreadable, nothing else was queried.
    pub uuid: Reading<String>,
    /// Its product name.
    pub name: Reading<String>,
    /// Persistence mode.
    pub persistence: Reading<bool>,
    /// NVML's enum value.
    pub compute_mode: Reading<u32>,
    /// Current limit and the GPU's range.
    pub power: Reading<PowerLimits>,
    /// Application clocks.
    pub clocks: Reading<ApplicationClocks>,
    /// ECC mode.
    pub ecc: Reading<Setting>,
    /// MIG mode.
    pub mig: Reading<Setting>,
    /// MIG instances by profile name, such as `1g.10gb`. Absent if MIG is off.
    pub mig_layout: Reading<Vec<String>>,
    /// Per-process accounting.
    pub accounting: Reading<bool>,
}

/// Application clocks and the supported choices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationClocks {
    /// Current memory clock.
    pub memory_mhz: u32,
    /// Current SM clock.
    pub graphics_mhz: u32,
    /// Default memory clock.
    pub default_memory_mhz: u32,
    /// Default SM clock.
    pub default_graphics_mhz: u32,
    /// SM clocks supported at the current memory clock, highest first.
    pub supported_graphics_mhz: Vec<u32>,
}
