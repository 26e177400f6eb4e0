//! What the node was seen to have, kept for the next start of the agent and of the node.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use farrier_hardware::host::HardwareBaseline;
use serde::{Deserialize, Serialize};

/// The version of the file's form.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    v: u32,
    hardware: HardwareBaseline,
}

/// The file, and what stands in it.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
    kept: HardwareBaseline,
}

impl Kept {
    /// Reads what was kept. Without it only what is seen from now on is missed when it goes.
    pub(super) fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("hardware.json");
        let kept = match read(&path) {
            Ok(kept) => kept,
            Err(err) if err.kind() == ErrorKind::NotFound => HardwareBaseline::default(),
            Err(err) => {
                tracing::warn!(%err, path = %path.display(), "what the node had is not known");
                HardwareBaseline::default()
            }
        };
        Self { path, kept }
    }

    pub(super) fn get(&self) -> &HardwareBaseline {
        &self.kept
    }

    /// Keeps what is new.
    pub(super) fn keep(&mut self, seen: HardwareBaseline) {
        if self.kept == seen {
            return;
        }
        self.kept = seen;
        if let Err(err) = write(&self.path, &self.kept) {
            tracing::warn!(%err, path = %self.path.display(), "what the node has is not kept");
        }
    }
}

fn read(path: &Path) -> io::Result<HardwareBaseline> {
    let form: Form = serde_json::from_slice(&fs::read(path)?)?;
    if form.v != VERSION {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("its version is {}", form.v)));
    }
    Ok(form.hardware)
}

fn write(path: &Path, hardware: &HardwareBaseline) -> io::Result<()> {
    let form = Form { v: VERSION, hardware: hardware.clone() };
    let part = path.with_extension("part");
    let mut file = File::create(&part)?;
    file.write_all(&serde_json::to_vec(&form)?)?;
    // After a power cut the old or the new one should be there, whole.
    file.sync_all()?;
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_there_again_and_a_damaged_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let seen = HardwareBaseline { gpus_most: 8, nics_most: 4, ..HardwareBaseline::default() };
        let mut kept = Kept::open(folder.path());
        assert_eq!(*kept.get(), HardwareBaseline::default());
        kept.keep(seen.clone());
        assert_eq!(*Kept::open(folder.path()).get(), seen);
        for damaged in ["", "{}", r#"{"v":2,"hardware":{}}"#] {
            fs::write(folder.path().join("hardware.json"), damaged).unwrap();
            assert_eq!(*Kept::open(folder.path()).get(), HardwareBaseline::default());
        }
    }

    #[test]
    fn the_first_version_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"v":1,"hardware":{"gpus":[{"uuid":"GPU-1","index":0,"minor":0,"pci":"0000:1b:00.0",
            "name":"NVIDIA H100 80GB HBM3"}],"gpus_most":8,"nics_most":2,"nics_ignored":["mlx5_9"]}}"#;
        fs::write(folder.path().join("hardware.json"), text).unwrap();
        let kept = Kept::open(folder.path());
        assert_eq!((kept.get().gpus.len(), kept.get().gpus_most), (1, 8));
    }
}
