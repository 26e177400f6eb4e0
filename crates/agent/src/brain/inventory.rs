//! Which GPU stood where, for an agent that starts while NVML does not answer: the kernel log names addresses, and a
//! fault must be found on the GPU on which it was found before.

use std::fs;
use std::path::{Path, PathBuf};

use farrier_fleet::health::GpuIdentity;
use serde::{Deserialize, Serialize};

/// The version of the file's form.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Form {
    v: u32,
    boot: String,
    gpus: Vec<GpuIdentity>,
}

/// The GPUs as they were last counted in this boot. A file that is lost or damaged costs no more than the names.
#[derive(Debug)]
pub struct Inventory {
    path: PathBuf,
    boot: String,
    gpus: Vec<GpuIdentity>,
}

impl Inventory {
    /// Reads what was kept in this boot.
    pub fn open(state_dir: &Path, boot: &str) -> Self {
        let path = state_dir.join("inventory.json");
        let kept =
            fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Form>(&bytes).ok());
        let kept = kept.filter(|kept| kept.v == VERSION && kept.boot == boot);
        Self { path, boot: boot.to_owned(), gpus: kept.map(|kept| kept.gpus).unwrap_or_default() }
    }

    /// The GPUs; empty: none are known.
    pub(super) fn gpus(&self) -> &[GpuIdentity] {
        &self.gpus
    }

    /// Keeps what was counted, where it is something new.
    pub(super) fn keep(&mut self, gpus: &[GpuIdentity]) {
        if gpus.is_empty() || self.gpus == gpus {
            return;
        }
        self.gpus = gpus.to_vec();
        let form = Form { v: VERSION, boot: self.boot.clone(), gpus: self.gpus.clone() };
        let part = self.path.with_extension("part");
        let written = serde_json::to_vec(&form)
            .map_err(std::io::Error::from)
            .and_then(|bytes| fs::write(&part, bytes))
            .and_then(|()| fs::rename(&part, &self.path));
        if let Err(err) = written {
            tracing::debug!(%err, "the inventory is not kept");
        }
    }
}
