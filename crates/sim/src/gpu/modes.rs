//! Settings that a person may change.

use serde::{Deserialize, Serialize};

/// Settings that a person may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modes {
    /// The driver stays loaded without clients.
    pub persistence: bool,
    /// NVML's number: 0 default, 2 prohibited, 3 exclusive process.
    pub compute: u32,
    /// Processes are accounted for.
    pub accounting: bool,
}

/// Partitioning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// On now.
    pub enabled: bool,
    /// On after the next reset.
    pub pending: bool,
    /// Most instances.
    pub instances_max: u32,
    /// What instances get of the memory, by share.
    #[serde(default)]
    pub memory: Vec<MigMemory>,
}

/// What an instance gets of the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigMemory {
    /// Of the whole.
    pub eighths: u32,
    /// In mebibytes.
    pub mib: u64,
    /// In gigabytes, as in the profile's name.
    pub sold_gb: u64,
}
