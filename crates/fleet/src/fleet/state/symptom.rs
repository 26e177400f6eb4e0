//! What several nodes can show from one cause outside of them.

use serde::{Deserialize, Serialize};

/// What several nodes can have from one cause outside of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Symptom {
    /// Nothing is heard of them.
    Silence,
    /// Their network adapters complain.
    Network,
    /// Their links or the fabric complain.
    Fabric,
    /// They are hot, or short of power.
    PowerOrCooling,
}

impl Symptom {
    /// The symptom that a finding is, by its code.
    pub fn of(code: &str) -> Option<Self> {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| code.starts_with(prefix));
        if starts(&["nic.", "host.nfs"]) {
            Some(Self::Network)
        } else if starts(&["link.", "switch.", "gpu.nvlink", "gpu.fabric"]) {
            Some(Self::Fabric)
        } else if starts(&["gpu.slowdown-", "gpu.temperature-margin"]) {
            Some(Self::PowerOrCooling)
        } else {
            None
        }
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Silence => "silence",
            Self::Network => "faults of the network",
            Self::Fabric => "faults of NVLink or the fabric",
            Self::PowerOrCooling => "heat or want of power",
        }
    }
}
