//! Past results of each GPU. They are the baseline for new results. Each GPU has a JSONL file with
//! one line per result.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use farrier_facts::diag::Test;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A result that passed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PastResult {
    pub(super) at: Timestamp,
    pub(super) driver: Option<String>,
    pub(super) test: Test,
    pub(super) value: f64,
}

/// Default of `--history`.
pub(super) const DEFAULT_DIRECTORY: &str = "/var/lib/farrier/diag";

/// Past results of one GPU.
#[derive(Debug)]
pub(super) struct ResultHistory {
    file: PathBuf,
    results: Vec<PastResult>,
}

impl ResultHistory {
    /// Reads the file of the GPU. A new GPU has no file. Lines that do not parse are skipped,
    /// because a later version may have written them.
    pub(super) fn open(folder: &Path, uuid: &str) -> Result<Self, String> {
        let file = file(folder, uuid);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(err) => return Err(format!("failed to read `{}`: {err}", file.display())),
        };
        let results = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok(Self { file, results })
    }

    /// Past values of a test with this driver, oldest first. Values with another driver are left
    /// out, because that driver may be slower although nothing is faulty.
    pub(super) fn values(&self, test: Test, driver: Option<&str>) -> Vec<f64> {
        let matches =
            |result: &&PastResult| result.test == test && result.driver.as_deref() == driver;
        self.results.iter().filter(matches).map(|result| result.value).collect()
    }

    /// Deletes the results of a GPU, for example after a change of slot, host or cooling.
    pub(super) fn delete(folder: &Path, uuid: &str) -> Result<(), String> {
        let file = file(folder, uuid);
        match fs::remove_file(&file) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("failed to remove `{}`: {err}", file.display()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn append(&self, results: &[PastResult]) -> Result<(), String> {
        if results.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for result in results {
            let line = serde_json::to_string(result).map_err(|err| err.to_string())?;
            text.push_str(&line);
            text.push('\n');
        }
        let write = || {
            if let Some(folder) = self.file.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.file)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(|err| format!("failed to write `{}`: {err}", self.file.display()))
    }
}

fn file(folder: &Path, uuid: &str) -> PathBuf {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let name: String = uuid.chars().filter(|letter| allowed(*letter)).collect();
    folder.join(format!("{name}.jsonl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_stored_by_gpu_and_test() {
        let folder = tempfile::tempdir().unwrap();
        let result =
            |test, value| PastResult { at: Timestamp::UNIX_EPOCH, driver: None, test, value };
        let history = ResultHistory::open(folder.path(), "GPU-1/../x").unwrap();
        assert_eq!(history.values(Test::HbmRead, None), [0.0; 0]);
        history.append(&[result(Test::HbmRead, 1.0), result(Test::HbmCopy, 9.0)]).unwrap();
        for value in 2..30 {
            history.append(&[result(Test::HbmRead, f64::from(value))]).unwrap();
        }
        let file = folder.path().join("GPU-1x.jsonl");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}not json\n")).unwrap();
        let again = ResultHistory::open(folder.path(), "GPU-1/../x").unwrap();
        let values = again.values(Test::HbmRead, None);
        assert_eq!((values.len(), values[0], values[28]), (29, 1.0, 29.0));
        assert_eq!(again.values(Test::HbmCopy, None), [9.0]);
        assert_eq!(again.values(Test::HbmCopy, Some("580.95.05")), [0.0; 0], "another driver");
        let other = ResultHistory::open(folder.path(), "GPU-2").unwrap();
        assert_eq!(other.values(Test::HbmRead, None), [0.0; 0]);
        ResultHistory::delete(folder.path(), "GPU-1/../x").unwrap();
        ResultHistory::delete(folder.path(), "GPU-1/../x").unwrap();
        assert!(!file.exists());
    }
}
