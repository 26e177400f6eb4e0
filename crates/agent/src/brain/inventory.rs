//! Which GPU stood where, for an agent that starts while NVML does not answer: the kernel log names addresses, and a
//! fault must be found on the GPU on which it was found before. Who reads the status goes by numbers, so that a GPU
//! that is no longer listed keeps the one it had.

use std::fs;
use std::path::{Path, PathBuf};

use farrier_fleet::health::GpuIdentity;
use serde::{Deserialize, Serialize};

/// The version of the file's form.
const VERSION: u32 = 1;

/// GPUs that were listed once and are not now: no node has more, and replaced ones need no name for ever.
const GONE_MAX: usize = 32;

#[derive(Debug, Serialize, Deserialize)]
struct Form {
    v: u32,
    boot: String,
    gpus: Vec<GpuIdentity>,
    /// Listed once and not now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<GpuIdentity>,
}

/// The GPUs as they were last counted in this boot. A file that is lost or damaged costs no more than the names.
#[derive(Debug)]
pub struct Inventory {
    path: PathBuf,
    boot: String,
    gpus: Vec<GpuIdentity>,
    gone: Vec<GpuIdentity>,
}

impl Inventory {
    /// Reads what was kept in this boot; of an earlier one only the names are left.
    pub fn open(state_dir: &Path, boot: &str) -> Self {
        let mut kept = Self::last(state_dir);
        if kept.boot != boot {
            boot.clone_into(&mut kept.boot);
            let before = std::mem::take(&mut kept.gpus);
            kept.retire(before);
        }
        kept
    }

    /// Reads what was kept last, in whatever boot.
    pub fn last(state_dir: &Path) -> Self {
        let path = state_dir.join("inventory.json");
        let kept =
            fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Form>(&bytes).ok());
        let kept = kept.filter(|kept| kept.v == VERSION);
        let (boot, gpus, gone) =
            kept.map(|kept| (kept.boot, kept.gpus, kept.gone)).unwrap_or_default();
        Self { path, boot, gpus, gone }
    }

    /// The GPUs; empty: none are known.
    pub fn gpus(&self) -> &[GpuIdentity] {
        &self.gpus
    }

    /// Those that were listed once and are not now.
    pub fn gone(&self) -> &[GpuIdentity] {
        &self.gone
    }

    /// Keeps what was counted, where it is something new.
    pub(super) fn keep(&mut self, gpus: &[GpuIdentity]) {
        if gpus.is_empty() || self.gpus == gpus {
            return;
        }
        let before = std::mem::replace(&mut self.gpus, gpus.to_vec());
        self.retire(before);
        let (boot, gpus, gone) = (self.boot.clone(), self.gpus.clone(), self.gone.clone());
        let form = Form { v: VERSION, boot, gpus, gone };
        let part = self.path.with_extension("part");
        let written = serde_json::to_vec(&form)
            .map_err(std::io::Error::from)
            .and_then(|bytes| fs::write(&part, bytes))
            .and_then(|()| fs::rename(&part, &self.path));
        if let Err(err) = written {
            tracing::debug!(%err, "the inventory is not kept");
        }
    }

    /// Those of before that are not listed now are gone, the newest last.
    fn retire(&mut self, before: Vec<GpuIdentity>) {
        let is_in =
            |list: &[GpuIdentity], gpu: &GpuIdentity| list.iter().any(|it| it.uuid == gpu.uuid);
        self.gone.retain(|gpu| !is_in(&before, gpu) && !is_in(&self.gpus, gpu));
        self.gone.extend(before.into_iter().filter(|gpu| !is_in(&self.gpus, gpu)));
        let surplus = self.gone.len().saturating_sub(GONE_MAX);
        self.gone.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::GpuUuid;

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
    fn a_gpu_that_is_no_longer_listed_keeps_its_name_also_after_a_reboot() {
        let folder = tempfile::tempdir().unwrap();
        let mut inventory = Inventory::open(folder.path(), "first");
        inventory.keep(&[gpu(0), gpu(1), gpu(2)]);
        inventory.keep(&[gpu(0), gpu(2)]);
        assert_eq!(inventory.gone(), [gpu(1)]);
        let inventory = Inventory::open(folder.path(), "first");
        assert_eq!((inventory.gpus(), inventory.gone()), (&[gpu(0), gpu(2)][..], &[gpu(1)][..]));
        // Where they stand now is not known before NVML says it.
        let mut inventory = Inventory::open(folder.path(), "second");
        assert_eq!((inventory.gpus(), inventory.gone()), (&[][..], &[gpu(1), gpu(0), gpu(2)][..]));
        inventory.keep(&[gpu(0), gpu(1), gpu(2)]);
        assert_eq!(inventory.gone(), []);
        assert_eq!(Inventory::last(folder.path()).gpus().len(), 3);
    }
}
