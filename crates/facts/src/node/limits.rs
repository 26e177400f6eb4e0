//! Limits of the node rules, from `rules/limits.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::origin::Origin;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLimits {
    pub disk: DiskLimits,
    pub pcie: PcieLimits,
}

/// When a file system is full. The smaller share of free space and free inodes counts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskLimits {
    pub full_percent: u64,
    pub nearly_full_percent: u64,
    /// A file system with this much space left is not nearly full.
    pub enough_bytes: u64,
    pub origin: Origin,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLimits {
    /// Above this utilisation, a healthy link runs at full speed.
    pub busy_percent: u32,
    pub origin: Origin,
}

impl NodeLimits {
    pub fn embedded() -> &'static Self {
        static EMBEDDED: LazyLock<NodeLimits> = LazyLock::new(|| {
            let json = include_str!(concat!(env!("OUT_DIR"), "/limits.json"));
            serde_json::from_str(json).expect("a test parses the embedded limits")
        });
        &EMBEDDED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_limits_are_consistent_and_have_sources() {
        let NodeLimits { disk, pcie } = NodeLimits::embedded();
        assert!(disk.full_percent < disk.nearly_full_percent && disk.nearly_full_percent < 100);
        assert!(disk.enough_bytes > 0 && pcie.busy_percent < 100);
        for origin in [&disk.origin, &pcie.origin] {
            assert!(!origin.source.is_empty());
        }
    }
}
