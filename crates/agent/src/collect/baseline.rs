//! The hardware baseline: the GPUs with their addresses, the most GPUs and the most active network
//! ports ever seen at once, and the ports whose link was ever up. It is kept in a file across
//! restarts of the agent and of the node.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use farrier_hardware::host::HardwareBaseline;
use serde::{Deserialize, Serialize};

/// Version of the file format.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BaselineFormat {
    v: u32,
    hardware: HardwareBaseline,
}

/// The file and its content.
#[derive(Debug)]
pub(super) struct BaselineFile {
    path: PathBuf,
    baseline: HardwareBaseline,
}

impl BaselineFile {
    /// Reads the file. If it is missing or unreadable, the baseline starts empty.
    pub(super) fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("hardware.json");
        let baseline = match read(&path) {
            Ok(baseline) => baseline,
            Err(err) if err.kind() == ErrorKind::NotFound => HardwareBaseline::default(),
            Err(err) => {
                tracing::warn!(%err, path = %path.display(), "failed to read the hardware baseline");
                HardwareBaseline::default()
            }
        };
        Self { path, baseline }
    }

    pub(super) fn get(&self) -> &HardwareBaseline {
        &self.baseline
    }

    /// Stores the baseline if it changed.
    pub(super) fn store(&mut self, baseline: HardwareBaseline) {
        if self.baseline == baseline {
            return;
        }
        self.baseline = baseline;
        if let Err(err) = write(&self.path, &self.baseline) {
            tracing::warn!(%err, path = %self.path.display(), "failed to store the hardware baseline");
        }
    }
}

fn read(path: &Path) -> io::Result<HardwareBaseline> {
    let file: BaselineFormat = serde_json::from_slice(&fs::read(path)?)?;
    if file.v != VERSION {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("unknown format version {}", file.v),
        ));
    }
    Ok(file.hardware)
}

fn write(path: &Path, hardware: &HardwareBaseline) -> io::Result<()> {
    let content = BaselineFormat { v: VERSION, hardware: hardware.clone() };
    let temporary = path.with_extension("part");
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(&content)?)?;
    // After a power failure, there must be either the complete old file or the complete new file.
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_baseline_is_restored_and_a_damaged_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let stored = HardwareBaseline { gpus_most: 8, nics_most: 4, ..HardwareBaseline::default() };
        let mut file = BaselineFile::open(folder.path());
        assert_eq!(*file.get(), HardwareBaseline::default());
        file.store(stored.clone());
        assert_eq!(*BaselineFile::open(folder.path()).get(), stored);
        for damaged in ["", "{}", r#"{"v":2,"hardware":{}}"#] {
            fs::write(folder.path().join("hardware.json"), damaged).unwrap();
            assert_eq!(*BaselineFile::open(folder.path()).get(), HardwareBaseline::default());
        }
    }

    #[test]
    fn format_version_1_is_readable() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"v":1,"hardware":{"gpus":[{"uuid":"GPU-1","index":0,"minor":0,"pci":"0000:1b:00.0",
            "name":"NVIDIA H100 80GB HBM3"}],"gpus_most":8,"nics_most":2,"nics_ignored":["mlx5_9"]}}"#;
        fs::write(folder.path().join("hardware.json"), text).unwrap();
        let file = BaselineFile::open(folder.path());
        assert_eq!((file.get().gpus.len(), file.get().gpus_most), (1, 8));
    }
}
