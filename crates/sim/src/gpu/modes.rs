//! Driver modes and MIG.

use serde::{Deserialize, Serialize};

/// Driver modes that an administrator sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modes {
    /// Persistence mode.
    pub persistence: bool,
    /// NVML compute mode: 0 default, 2 prohibited, 3 exclusive process.
    pub compute: u32,
    /// Accounting mode.
    pub accounting: bool,
}

/// MIG mode and slice sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    pub enabled: bool,
    /// Mode after the next reset.
    pub pending: bool,
    pub instances_max: u32,
    /// Instance memory, by share of the GPU.
    #[serde(default)]
    pub memory: Vec<MigMemory>,
}

/// Memory of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigMemory {
    /// Share of the GPU memory in eighths.
    pub eighths: u32,
    pub mib: u64,
    /// Nominal gigabytes, as in the profile name.
    pub sold_gb: u64,
}
