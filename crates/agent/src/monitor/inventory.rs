//! GPU identities: UUID, index and PCI address. They are stored for an agent that starts while NVML
//! does not answer. The kernel log names PCI addresses, and a fault must be assigned to the same
//! GPU as before. Status output uses indices, so a GPU that is no longer listed keeps its index.

use std::fs;
use std::path::{Path, PathBuf};

use farrier_fleet::health::{GpuIdentity, GpuUuid};
use serde::{Deserialize, Serialize};

/// Version of the file format.
const VERSION: u32 = 1;

/// Maximum number of delisted GPUs that are remembered. No node has more GPUs, so at most the
/// oldest replaced GPUs are forgotten.
const DELISTED_MAX: usize = 32;

#[derive(Debug, Serialize, Deserialize)]
struct InventoryFile {
    v: u32,
    boot: String,
    gpus: Vec<GpuIdentity>,
    /// GPUs that were listed before, but are not now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<GpuIdentity>,
    /// The GPUs in `gone` that left the list during this boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left: Vec<GpuUuid>,
}

/// The GPUs of the last enumeration in this boot, and the GPUs that were listed before it, also in
/// earlier boots. The file contains only identities, so no finding is lost with it.
#[derive(Debug)]
pub struct BootInventory {
    path: PathBuf,
    boot: String,
    gpus: Vec<GpuIdentity>,
    /// GPUs that were listed before, but are not now. The newest is last.
    delisted: Vec<GpuIdentity>,
    /// The GPUs in `delisted` that left the list during this boot.
    delisted_this_boot: Vec<GpuUuid>,
}

impl BootInventory {
    /// Reads the file. If the file is from an earlier boot, all its GPUs count as delisted, because
    /// their addresses may have changed.
    pub fn open(state_dir: &Path, boot: &str) -> Self {
        let mut inventory = Self::last(state_dir);
        if inventory.boot != boot {
            boot.clone_into(&mut inventory.boot);
            let before = std::mem::take(&mut inventory.gpus);
            inventory.delist(before);
            inventory.delisted_this_boot.clear();
        }
        inventory
    }

    /// Reads the file, no matter in which boot it was written.
    pub fn last(state_dir: &Path) -> Self {
        let path = state_dir.join("inventory.json");
        let bytes = fs::read(&path).ok();
        let file = bytes.and_then(|bytes| serde_json::from_slice::<InventoryFile>(&bytes).ok());
        let file = file.filter(|file| file.v == VERSION);
        let (boot, gpus, delisted, delisted_this_boot) =
            file.map(|file| (file.boot, file.gpus, file.gone, file.left)).unwrap_or_default();
        Self { path, boot, gpus, delisted, delisted_this_boot }
    }

    /// The GPUs of the last enumeration. Empty if no GPU is known.
    pub fn gpus(&self) -> &[GpuIdentity] {
        &self.gpus
    }

    /// GPUs that were listed before, but are not now.
    pub fn delisted(&self) -> &[GpuIdentity] {
        &self.delisted
    }

    /// GPUs that left the list during this boot. As far as is known, their addresses are still the
    /// same.
    pub fn delisted_this_boot(&self) -> Vec<GpuIdentity> {
        self.delisted
            .iter()
            .filter(|gpu| self.delisted_this_boot.contains(&gpu.uuid))
            .cloned()
            .collect()
    }

    /// Stores the enumerated GPUs if they changed.
    pub(super) fn store(&mut self, gpus: &[GpuIdentity]) {
        if gpus.is_empty() || self.gpus == gpus {
            return;
        }
        let before = std::mem::replace(&mut self.gpus, gpus.to_vec());
        self.delist(before);
        let file = InventoryFile {
            v: VERSION,
            boot: self.boot.clone(),
            gpus: self.gpus.clone(),
            gone: self.delisted.clone(),
            left: self.delisted_this_boot.clone(),
        };
        let temporary = self.path.with_extension("part");
        let written = serde_json::to_vec(&file)
            .map_err(std::io::Error::from)
            .and_then(|bytes| fs::write(&temporary, bytes))
            .and_then(|()| fs::rename(&temporary, &self.path));
        if let Err(err) = written {
            tracing::debug!(%err, "failed to store the inventory");
        }
    }

    /// Moves GPUs that are no longer listed to `delisted`.
    fn delist(&mut self, before: Vec<GpuIdentity>) {
        let is_in = |list: &[GpuIdentity], gpu: &GpuIdentity| {
            list.iter().any(|other| other.uuid == gpu.uuid)
        };
        self.delisted.retain(|gpu| !is_in(&before, gpu) && !is_in(&self.gpus, gpu));
        let leaving: Vec<GpuIdentity> =
            before.into_iter().filter(|gpu| !is_in(&self.gpus, gpu)).collect();
        self.delisted_this_boot.extend(leaving.iter().map(|gpu| gpu.uuid.clone()));
        self.delisted.extend(leaving);
        let surplus = self.delisted.len().saturating_sub(DELISTED_MAX);
        self.delisted.drain(..surplus);
        self.delisted_this_boot.retain(|uuid| self.delisted.iter().any(|gpu| gpu.uuid == *uuid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> GpuIdentity {
        GpuIdentity {
            uuid: GpuUuid(format!("GPU-{index}")),
            index,
            minor: None,
            pci: Some(format!("0000:{index:02x}:00.0")),
            name: Some("H100".to_owned()),
        }
    }

    #[test]
    fn a_delisted_gpu_keeps_its_identity_across_a_reboot() {
        let folder = tempfile::tempdir().unwrap();
        let mut inventory = BootInventory::open(folder.path(), "first");
        inventory.store(&[gpu(0), gpu(1), gpu(2)]);
        inventory.store(&[gpu(0), gpu(2)]);
        assert_eq!(inventory.delisted(), [gpu(1)]);
        let inventory = BootInventory::open(folder.path(), "first");
        assert_eq!(
            (inventory.gpus(), inventory.delisted()),
            (&[gpu(0), gpu(2)][..], &[gpu(1)][..])
        );
        assert_eq!(inventory.delisted_this_boot(), [gpu(1)]);
        // After a reboot, the addresses are unknown until NVML answers.
        let mut inventory = BootInventory::open(folder.path(), "second");
        assert_eq!(
            (inventory.gpus(), inventory.delisted()),
            (&[][..], &[gpu(1), gpu(0), gpu(2)][..])
        );
        assert_eq!(inventory.delisted_this_boot(), []);
        inventory.store(&[gpu(0), gpu(1), gpu(2)]);
        assert_eq!(inventory.delisted(), []);
        assert_eq!(BootInventory::last(folder.path()).gpus().len(), 3);
    }
}
