//! The inventory of a node.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fleet::event::{GpuInventory, NodeInventory};
use crate::health::GpuUuid;

/// Maximum number of missing GPUs to remember per node.
const MISSING_GPUS_MAX: usize = 32;

/// The last reported inventory, and the GPUs that are missing from it.
///
/// A node that never reported an inventory cannot have missing GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    #[serde(alias = "makeup")]
    pub reported: Arc<NodeInventory>,
    /// GPUs that disappeared in this boot, and missing GPUs that an open finding names. A GPU that
    /// fell off the bus is in no inventory, although operators look for exactly this GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_gpus: Vec<GpuInventory>,
}

impl Inventory {
    /// Returns the inventory after another report. `is_in_finding` tells whether an open finding
    /// names a GPU.
    pub(super) fn after(
        before: Option<&Self>,
        reported: &NodeInventory,
        is_in_finding: impl Fn(&GpuUuid) -> bool,
    ) -> Self {
        let mut missing =
            before.map(|inventory| inventory.missing_gpus.clone()).unwrap_or_default();
        if let Some(listed) = &reported.gpus {
            let is_same_boot =
                before.is_some_and(|inventory| inventory.reported.boot == reported.boot);
            let previous = before.and_then(|inventory| inventory.reported.gpus.clone());
            missing.extend(previous.into_iter().flatten());
            missing.retain(|gpu| {
                !listed.iter().any(|other| other.uuid == gpu.uuid)
                    && (is_same_boot || is_in_finding(&gpu.uuid))
            });
            missing.truncate(MISSING_GPUS_MAX);
        }
        Self { reported: Arc::new(reported.clone()), missing_gpus: missing }
    }

    /// The GPUs that are present, then those that are missing.
    pub(super) fn gpus(&self) -> impl Iterator<Item = &GpuInventory> {
        self.reported.gpus.as_ref().into_iter().flatten().chain(&self.missing_gpus)
    }

    /// Finds a GPU that is present or missing.
    pub(super) fn gpu(&self, uuid: &GpuUuid) -> Option<&GpuInventory> {
        self.gpus().find(|gpu| gpu.uuid == *uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str) -> GpuInventory {
        let uuid = GpuUuid(name.to_owned());
        GpuInventory { uuid, name: None, index: None, pci: None, serial: None }
    }

    fn reported(boot: &str, gpus: Option<&[&str]>) -> NodeInventory {
        let gpus = gpus.map(|names| names.iter().map(|name| gpu(name)).collect());
        NodeInventory { boot: boot.to_owned(), gpus, ..NodeInventory::default() }
    }

    #[test]
    fn a_lost_gpu_is_missing_until_a_reboot_or_until_its_findings_clear() {
        let first = Inventory::after(None, &reported("1", Some(&["a", "b"])), |_| false);
        assert_eq!(first.missing_gpus, []);
        let lost = Inventory::after(Some(&first), &reported("1", Some(&["a"])), |_| false);
        assert_eq!(lost.missing_gpus, [gpu("b")]);
        assert!(lost.gpu(&GpuUuid("b".to_owned())).is_some());
        let unread = Inventory::after(Some(&lost), &reported("1", None), |_| false);
        assert_eq!(unread.missing_gpus, [gpu("b")], "its current GPUs are unknown");
        let booted = |is_in_finding: bool| {
            let reported = reported("2", Some(&["a"]));
            Inventory::after(Some(&lost), &reported, |_| is_in_finding).missing_gpus
        };
        assert_eq!((booted(false), booted(true)), (vec![], vec![gpu("b")]));
    }
}
