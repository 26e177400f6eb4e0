//! The last manual repair that the server reported. A small file keeps this note across restarts.
//! The health monitor reads the file at startup.
//!
//! ```text
//! orders (thread) ─ write ─> repaired.json ─ read at startup ────────> health monitor
//!        └──────── CollectorMessage::Repaired, while running ──────────┘
//! farrier orders (another process) ─ write ─> repaired.json ─ RepairWatch ─> health monitor
//! ```

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// File name in the state directory.
const FILE: &str = "repaired.json";
/// Maximum size of the file, larger than any note.
const BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairNote {
    /// When the agent accepted the order that reports the repair.
    pub at: Timestamp,
    /// What was done, as the operator described it.
    #[serde(rename = "what")]
    pub repair: String,
}

/// Writes the note atomically.
pub(crate) fn write(state_dir: &Path, note: &RepairNote) -> io::Result<()> {
    let part = state_dir.join("repaired.part");
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create(true).truncate(true).mode(0o644).open(&part)?;
    file.write_all(&serde_json::to_vec(note)?)?;
    file.sync_all()?;
    fs::rename(&part, state_dir.join(FILE))?;
    fs::File::open(state_dir)?.sync_all()
}

/// The last note. `None` if there is no note, or if it does not parse. Findings that wait for a
/// repair then stay open.
pub(crate) fn read(state_dir: &Path) -> Option<RepairNote> {
    let mut bytes = Vec::new();
    fs::File::open(state_dir.join(FILE)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Watches for a note that another process writes. Only an agent that executes no orders needs
/// this: the order journal is locked by the process that executes orders, so `farrier orders`
/// cannot run next to an agent that executes them. The watch calls `stat` with each tick. It does
/// not use inotify, because each user has few inotify instances, and many programs on a node use
/// them.
#[derive(Debug)]
pub struct RepairWatch {
    state_dir: PathBuf,
    /// Identity of the file at the last call. Each note is written to a new file.
    last: Option<FileIdentity>,
}

#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    inode: u64,
    changed: (i64, i64),
}

impl RepairWatch {
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), last: None }
    }

    /// The note, if it changed since the last call.
    pub(crate) fn poll(&mut self) -> Option<RepairNote> {
        let file = fs::metadata(self.state_dir.join(FILE)).ok()?;
        let identity =
            FileIdentity { inode: file.ino(), changed: (file.ctime(), file.ctime_nsec()) };
        if self.last.as_ref() == Some(&identity) {
            return None;
        }
        self.last = Some(identity);
        read(&self.state_dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_note_is_returned_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = RepairWatch::new(folder.path());
        assert_eq!(watch.poll(), None);
        let note =
            |repair: &str| RepairNote { at: Timestamp::UNIX_EPOCH, repair: repair.to_owned() };
        for repair in ["a new riser", "a new board"] {
            write(folder.path(), &note(repair)).unwrap();
            assert_eq!(watch.poll(), Some(note(repair)));
            assert_eq!(watch.poll(), None);
        }
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(watch.poll(), None, "a damaged note");
    }
}
