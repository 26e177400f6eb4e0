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
    /// Whether the node is a virtual machine that its GPUs are passed through to.
    pub virtual_machine: bool,
    /// Calls that fail or hang, whichever GPU they are about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<CallFault>,
}

impl Node {
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
