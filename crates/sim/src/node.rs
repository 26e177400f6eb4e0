//! `node.json`: what all GPUs of a node share.

use serde::{Deserialize, Serialize};

use crate::fault::CallFault;

/// A simulated node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The version of this form.
    pub format: u32,
    /// The canonical name of its GPUs' model, such as `H100-SXM5-80GB`.
    pub sku: String,
    /// What decided its UUIDs and serial numbers.
    pub seed: u64,
    /// Its name.
    pub hostname: String,
    /// The kernel that runs, as `uname -r` prints it.
    pub kernel: String,
    /// The driver that is loaded, such as `580.95.05`.
    pub driver: String,
    /// When it was started, milliseconds of the Unix clock.
    pub booted_unix_ms: u64,
    /// The newest CUDA that the driver speaks, as major and minor number.
    pub cuda: [u32; 2],
    /// Whether writes succeed whoever asks (`true`), never (`false`), or only as root (absent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_root: Option<bool>,
    /// The present, if it stands still: milliseconds of the Unix clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_unix_ms: Option<u64>,
    /// Whether it was started anew since it was made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
    /// Whether the driver is loaded.
    #[serde(default = "loaded", skip_serializing_if = "Clone::clone")]
    pub driver_loaded: bool,
    /// The driver on disk, where it is not the one that was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Whether the node is a virtual machine that its GPUs are passed through to.
    pub virtual_machine: bool,
    /// Calls that fail or hang, whichever GPU they are about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<CallFault>,
}

fn loaded() -> bool {
    true
}

impl Node {
    /// The version of modules, libraries and packages.
    pub fn driver_on_disk(&self) -> &str {
        self.replaced_by.as_deref().unwrap_or(&self.driver)
    }

    /// Now, if the node's clock stands still, or else `real`.
    pub fn now_unix_ms(&self, real_unix_ms: u64) -> u64 {
        self.clock_unix_ms.unwrap_or(real_unix_ms)
    }

    /// For how long it has run: by its own clock, or as when it was made or started.
    pub fn uptime_ms(&self) -> u64 {
        match self.clock_unix_ms {
            Some(now) => now.saturating_sub(self.booted_unix_ms),
            None if self.restarted => 0,
            None => crate::builder::UPTIME_MS,
        }
    }

    /// What NVML says of its own version: the CUDA generation before the driver's version.
    pub fn nvml_version(&self) -> String {
        format!("{}.{}", self.cuda[0], self.driver)
    }

    /// The driver's version as numbers, for comparison; what is no number counts as nought.
    pub fn driver_numbers(&self) -> [u32; 3] {
        let mut parts = self.driver.split('.').map(|part| part.parse().unwrap_or(0));
        std::array::from_fn(|_| parts.next().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let node: Node = serde_json::from_str(
            r#"{"format": 1, "sku": "H200-SXM5-141GB", "seed": 1, "hostname": "a", "kernel": "6.8.0", "booted_unix_ms": 0, "virtual_machine": false,
                "driver": "580.159.04", "cuda": [13, 0]}"#,
        )
        .unwrap();
        assert_eq!(node.nvml_version(), "13.580.159.04");
        assert_eq!(node.driver_numbers(), [580, 159, 4]);
        assert_eq!(node.as_root, None);
    }
}
