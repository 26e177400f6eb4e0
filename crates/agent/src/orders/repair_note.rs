//! What a person did to the node, as the server reports it. One small file keeps it over a restart:
//! the agent's brain reads it when it starts.
//!
//! ```text
//! orders (thread) ─ write ─> repaired.json ─ read, at the start ──> brain
//!        └───────── Seen::Repaired, while it runs ──────────────────┘
//! farrier orders (another process) ─ write ─> repaired.json ─ RepairWatch ─> brain
//! ```

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Its name in the agent's state folder.
const FILE: &str = "repaired.json";
/// More than any that was written.
const BYTES_MAX: u64 = 64 << 10;

/// The last repair by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairNote {
    /// When the node was told.
    pub at: Timestamp,
    /// What was done, in that person's words.
    pub what: String,
}

/// Keeps it, whole or not at all.
pub(crate) fn write(state_dir: &Path, note: &RepairNote) -> io::Result<()> {
    let part = state_dir.join("repaired.part");
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create(true).truncate(true).mode(0o644).open(&part)?;
    file.write_all(&serde_json::to_vec(note)?)?;
    file.sync_all()?;
    fs::rename(&part, state_dir.join(FILE))?;
    fs::File::open(state_dir)?.sync_all()
}

/// The last one; none where there was none, or where it does not read: then what it says was not heard, and its findings stay.
pub(crate) fn read(state_dir: &Path) -> Option<RepairNote> {
    let mut bytes = Vec::new();
    fs::File::open(state_dir.join(FILE)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Looks for a note that another process writes. Only an agent that carries out no orders itself
/// needs it: beside it `farrier orders` may, and the lock on the journal of orders keeps the two
/// apart. The look is a `stat` with each tick of the brain, and not inotify, because the instances
/// of inotify of a user are few and the programs on a node that want one are many.
#[derive(Debug)]
pub struct RepairWatch {
    state_dir: PathBuf,
    /// The file as it was at the last look: each note is a new one.
    last: Option<FileIdentity>,
}

#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    inode: u64,
    changed: (i64, i64),
}

impl RepairWatch {
    /// Watches the file in a state folder.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), last: None }
    }

    /// The note, where there is another one than at the last look.
    pub(crate) fn look(&mut self) -> Option<RepairNote> {
        let file = fs::metadata(self.state_dir.join(FILE)).ok()?;
        let found = FileIdentity { inode: file.ino(), changed: (file.ctime(), file.ctime_nsec()) };
        if self.last.as_ref() == Some(&found) {
            return None;
        }
        self.last = Some(found);
        read(&self.state_dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_seen_once_and_the_next_one_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = RepairWatch::new(folder.path());
        assert_eq!(watch.look(), None);
        let note = |what: &str| RepairNote { at: Timestamp::UNIX_EPOCH, what: what.to_owned() };
        for what in ["a new riser", "a new board"] {
            write(folder.path(), &note(what)).unwrap();
            assert_eq!(watch.look(), Some(note(what)));
            assert_eq!(watch.look(), None);
        }
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(watch.look(), None, "it does not read");
    }
}
