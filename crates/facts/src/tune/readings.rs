//! What was read of everything that a profile may speak of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::control::Value;
use crate::node::{Package, PowerLimits, Reading, Setting};

/// Everything that a plan rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readings {
    /// The GPUs.
    pub gpus: GpusSeen,
    /// The governors, by their file.
    pub governors: Reading<BTreeMap<String, Choice>>,
    /// Transparent huge pages.
    pub hugepages: Reading<Choice>,
    /// Files that a profile may write, by path: [`Value::File`] or [`Value::NoFile`].
    pub files: BTreeMap<String, Reading<Value>>,
    /// The packages of kernel and driver.
    pub packages: Reading<Vec<Package>>,
    /// Whether apt has a folder for its configuration.
    pub has_apt: Reading<bool>,
    /// `nvidia-persistenced`; absent where it is not installed.
    pub persistenced: Reading<ServiceState>,
    /// Whether services can be started and stopped here; below another root they cannot.
    pub can_start_services: bool,
    /// Parameters of the loaded module, by their name without `NVreg_`.
    pub module_parameters: Reading<BTreeMap<String, String>>,
}

/// A service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceState {
    /// It starts at boot.
    pub enabled: bool,
    /// It has a process.
    pub running: bool,
    /// Its unit says nothing of being enabled (no `[Install]`): whether it starts is not a matter of `systemctl enable`.
    pub is_static: bool,
}

/// One word of some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The one in force.
    pub current: Reading<String>,
    /// All; absent where the kernel does not list them.
    pub available: Reading<Vec<String>>,
}

/// What came of asking for the GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpusSeen {
    /// NVML answered.
    Answered(Vec<GpuReadings>),
    /// It did not, and why.
    Silent(String),
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuReadings {
    /// NVML's number for it.
    pub index: u32,
    /// Its UUID; when it cannot be read nothing else was asked.
    pub uuid: Reading<String>,
    /// Its product name.
    pub name: Reading<String>,
    /// The driver stays initialised without clients.
    pub persistence: Reading<bool>,
    /// NVML's number.
    pub compute_mode: Reading<u32>,
    /// The limit and the card's own range.
    pub power: Reading<PowerLimits>,
    /// Clocks of applications.
    pub clocks: Reading<Clocks>,
    /// Error correction.
    pub ecc: Reading<Setting>,
    /// Partitioning.
    pub mig: Reading<Setting>,
    /// The instances, by the profile's name: `1g.10gb`. Absent where partitioning is off.
    pub mig_layout: Reading<Vec<String>>,
    /// Processes are accounted for.
    pub accounting: Reading<bool>,
}

/// Clocks of applications, and what can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// The memory's, in force.
    pub memory_mhz: u32,
    /// The multiprocessors', in force.
    pub graphics_mhz: u32,
    /// The memory's without a choice.
    pub default_memory_mhz: u32,
    /// The multiprocessors' without a choice.
    pub default_graphics_mhz: u32,
    /// What the multiprocessors take at the memory clock in force, highest first.
    pub supported_graphics_mhz: Vec<u32>,
}
