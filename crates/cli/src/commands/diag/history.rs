//! What each card reached before: a file a card, a line a result, until somebody has it forgotten.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use farrier_facts::diag::Test;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A result that passed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) at: Timestamp,
    pub(super) driver: Option<String>,
    pub(super) test: Test,
    pub(super) value: f64,
}

/// Where it is kept, unless somebody names another folder.
pub(super) const FOLDER: &str = "/var/lib/farrier/diag";

/// The file of one card.
#[derive(Debug)]
pub(super) struct Ledger {
    file: PathBuf,
    kept: Vec<Kept>,
}

impl Ledger {
    /// Reads it; a card that is new has none. A line that does not read is left alone: it may be of a later version.
    pub(super) fn open(folder: &Path, uuid: &str) -> Result<Self, String> {
        let file = file(folder, uuid);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(err) => return Err(format!("failed to read `{}`: {err}", file.display())),
        };
        let kept = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok(Self { file, kept })
    }

    /// What the card reached in a test with this driver, oldest first: another one may be slower, and no fault of the card.
    pub(super) fn values(&self, test: Test, driver: Option<&str>) -> Vec<f64> {
        let is_it = |it: &&Kept| it.test == test && it.driver.as_deref() == driver;
        self.kept.iter().filter(is_it).map(|it| it.value).collect()
    }

    /// Forgets what a card reached: its slot, its host or its cooling is another now.
    pub(super) fn forget(folder: &Path, uuid: &str) -> Result<(), String> {
        let file = file(folder, uuid);
        match fs::remove_file(&file) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("failed to remove `{}`: {err}", file.display()))
            }
            _ => Ok(()),
        }
    }

    /// Keeps new results.
    pub(super) fn keep(&self, results: &[Kept]) -> Result<(), String> {
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
    let harmless = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let name: String = uuid.chars().filter(|letter| harmless(*letter)).collect();
    folder.join(format!("{name}.jsonl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_by_card_and_test() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |test, value| Kept { at: Timestamp::UNIX_EPOCH, driver: None, test, value };
        let ledger = Ledger::open(folder.path(), "GPU-1/../x").unwrap();
        assert_eq!(ledger.values(Test::HbmRead, None), [0.0; 0]);
        ledger.keep(&[kept(Test::HbmRead, 1.0), kept(Test::HbmCopy, 9.0)]).unwrap();
        for value in 2..30 {
            ledger.keep(&[kept(Test::HbmRead, f64::from(value))]).unwrap();
        }
        let file = folder.path().join("GPU-1x.jsonl");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}not json\n")).unwrap();
        let again = Ledger::open(folder.path(), "GPU-1/../x").unwrap();
        let values = again.values(Test::HbmRead, None);
        assert_eq!((values.len(), values[0], values[28]), (29, 1.0, 29.0));
        assert_eq!(again.values(Test::HbmCopy, None), [9.0]);
        assert_eq!(again.values(Test::HbmCopy, Some("580.95.05")), [0.0; 0], "another driver");
        let other = Ledger::open(folder.path(), "GPU-2").unwrap();
        assert_eq!(other.values(Test::HbmRead, None), [0.0; 0]);
        Ledger::forget(folder.path(), "GPU-1/../x").unwrap();
        Ledger::forget(folder.path(), "GPU-1/../x").unwrap();
        assert!(!file.exists());
    }
}
