//! `node.json`: the state that all GPUs of a node share.

use serde::{Deserialize, Serialize};

use crate::fault::CallFault;

/// The state that all GPUs of a node share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedNodeState {
    pub format: u32,
    /// Canonical GPU model name, such as `H100-SXM5-80GB`.
    pub sku: String,
    /// Seed of UUIDs, serial numbers and the host name.
    pub seed: u64,
    pub hostname: String,
    /// Running kernel, as printed by `uname -r`.
    pub kernel: String,
    /// Loaded driver version, such as `580.95.05`.
    pub driver: String,
    /// Boot time, Unix milliseconds.
    pub booted_unix_ms: u64,
    /// Highest CUDA version that the driver supports: major, minor.
    pub cuda: [u32; 2],
    /// Whether setters succeed for any user (`true`), for none (`false`), or only for root
    /// (`None`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_root: Option<bool>,
    /// Frozen clock, Unix milliseconds. `None` if the node follows the real clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_unix_ms: Option<u64>,
    /// Whether the node has rebooted since it was created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
    #[serde(default = "default_true", skip_serializing_if = "Clone::clone")]
    pub driver_loaded: bool,
    /// Driver version on disk. `None` if it is the loaded version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Whether the node is a virtual machine with passed-through GPUs.
    pub virtual_machine: bool,
    /// Injected failures of calls that concern no particular GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<CallFault>,
}

fn default_true() -> bool {
    true
}

impl SharedNodeState {
    /// Version of the modules, libraries and packages on disk.
    pub fn driver_on_disk(&self) -> &str {
        self.replaced_by.as_deref().unwrap_or(&self.driver)
    }

    /// The node's time: its frozen clock if it has one, else `real_unix_ms`.
    pub fn now_unix_ms(&self, real_unix_ms: u64) -> u64 {
        self.clock_unix_ms.unwrap_or(real_unix_ms)
    }

    /// Uptime by the frozen clock. If the clock is not frozen, the uptime is constant: 0 after a
    /// reboot, else one day.
    pub fn uptime_ms(&self) -> u64 {
        match self.clock_unix_ms {
            Some(now) => now.saturating_sub(self.booted_unix_ms),
            None if self.restarted => 0,
            None => crate::builder::UPTIME_MS,
        }
    }

    /// NVML library version: the CUDA major version followed by the driver version.
    pub fn nvml_version(&self) -> String {
        format!("{}.{}", self.cuda[0], self.driver)
    }

    /// Driver version as numbers, for comparison. A component that is not a number counts as 0.
    pub fn driver_numbers(&self) -> [u32; 3] {
        let mut parts = self.driver.split('.').map(|part| part.parse().unwrap_or(0));
        std::array::from_fn(|_| parts.next().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_strings_and_numbers() {
        let node: SharedNodeState = serde_json::from_str(
            r#"{"format": 1, "sku": "H200-SXM5-141GB", "seed": 1, "hostname": "a", "kernel": "6.8.0", "booted_unix_ms": 0, "virtual_machine": false,
                "driver": "580.159.04", "cuda": [13, 0]}"#,
        )
        .unwrap();
        assert_eq!(node.nvml_version(), "13.580.159.04");
        assert_eq!(node.driver_numbers(), [580, 159, 4]);
        assert_eq!(node.as_root, None);
    }
}
