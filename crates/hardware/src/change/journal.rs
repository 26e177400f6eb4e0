//! `journal.jsonl`: every decision and result of the changes of a node. Each line is on disk before
//! its effect happens.
//!
//! A journal with a malformed line is refused, because that line may record an effect. Only a last
//! line without a newline is truncated, because nothing was done after it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use farrier_fleet::change::{CHANGE_JOURNAL_VERSION, ChangeEntry, ChangeHistory, ChangeRecord};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::failpoint::{ChangeFailpoint, ChangeFailpointSite};
use crate::tune::journal_file::{create_directory, read_all, sync_directory};
use crate::tune::permissions;

/// Directory of the journal. It is root's, so it is not below the directory of the agent, which
/// runs as another user.
pub const CHANGE_STATE_DIR: &str = "/var/lib/farrier-change";
const FILE: &str = "journal.jsonl";
const LOCK: &str = "lock";
/// A change has 50 kilobytes, so a larger file is not a journal.
const FILE_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ChangeJournalError {
    #[error("failed to use `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Another user may have written the journal.
    #[error("refusing to read `{}`", path.display())]
    Untrusted {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Another process executes a change.
    #[error("another `farrier change` is using `{}`", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    #[error("line {line} of `{}` is malformed: it is unknown what was done to the node", path.display())]
    Damaged { path: PathBuf, line: usize },
    #[error("`{}` was written by a newer farrier (format version {version})", path.display())]
    Newer {
        path: PathBuf,
        /// The journal's format version.
        version: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeLine {
    v: u32,
    at: Timestamp,
    entry: ChangeEntry,
}

#[derive(Debug)]
struct ChangeWriter {
    file: File,
    _lock: File,
}

/// The journal, and the changes that follow from it.
#[derive(Debug)]
pub struct ChangeJournal {
    path: PathBuf,
    /// `None` if opened read-only.
    writer: Option<ChangeWriter>,
    /// Length of the complete lines on disk.
    bytes: u64,
    history: ChangeHistory,
    failpoint: ChangeFailpoint,
}

impl ChangeJournal {
    /// Opens the journal for writing, and creates it if necessary. Only one process can do this.
    pub fn open(dir: &Path, failpoint: ChangeFailpoint) -> Result<Self, ChangeJournalError> {
        let path = dir.join(FILE);
        let failed = |err| from_io(&path, err);
        permissions::check_directory(dir).and_then(|()| create_directory(dir)).map_err(failed)?;
        let lock_path = dir.join(LOCK);
        let mut how = OpenOptions::new();
        let lock = permissions::open(&lock_path, how.write(true).create(true).mode(0o600));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ChangeJournalError::InUse { path: lock_path });
            }
            Err(TryLockError::Error(err)) => return Err(failed(err)),
        }
        let mut journal = Self::read(dir)?;
        let mut how = OpenOptions::new();
        let file = permissions::open(&path, how.append(true).create(true).mode(0o644));
        let file = file.map_err(failed)?;
        if file.metadata().map_err(failed)?.len() > journal.bytes {
            file.set_len(journal.bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        sync_directory(dir).map_err(failed)?;
        journal.writer = Some(ChangeWriter { file, _lock: lock });
        journal.failpoint = failpoint;
        Ok(journal)
    }

    /// Reads the journal without changing it. A missing file has no changes.
    pub fn read(dir: &Path) -> Result<Self, ChangeJournalError> {
        #[derive(Deserialize)]
        struct VersionOnly {
            v: u32,
        }
        let path = dir.join(FILE);
        let bytes = permissions::check_directory(dir)
            .and_then(|()| read_all(&path, FILE_BYTES_MAX))
            .map_err(|err| from_io(&path, err))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut history = ChangeHistory::default();
        for (place, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let version = serde_json::from_slice::<VersionOnly>(line).ok().map(|header| header.v);
            if let Some(version) = version.filter(|version| *version > CHANGE_JOURNAL_VERSION) {
                return Err(ChangeJournalError::Newer { path, version });
            }
            let Ok(line) = serde_json::from_slice::<ChangeLine>(line) else {
                return Err(ChangeJournalError::Damaged { path, line: place + 1 });
            };
            history.apply(line.at, &line.entry);
        }
        let failpoint = ChangeFailpoint::default();
        Ok(Self { path, writer: None, bytes: whole as u64, history, failpoint })
    }

    pub fn history(&self) -> &ChangeHistory {
        &self.history
    }

    /// The change that has not ended.
    pub fn current(&self) -> Option<&ChangeRecord> {
        self.history.current()
    }

    pub(super) fn failpoint(&self) -> &ChangeFailpoint {
        &self.failpoint
    }

    /// Appends an entry. The entry is on disk when this function returns.
    pub fn write(&mut self, at: Timestamp, entry: &ChangeEntry) -> Result<(), ChangeJournalError> {
        self.append(at, entry)
            .map_err(|err| ChangeJournalError::File { path: self.path.clone(), err })?;
        self.history.apply(at, entry);
        Ok(())
    }

    fn append(&mut self, at: Timestamp, entry: &ChangeEntry) -> io::Result<()> {
        let Some(ChangeWriter { file, .. }) = &mut self.writer else {
            return Err(io::Error::other("the journal is open read-only"));
        };
        // A failed write may have left a partial line.
        if file.metadata()?.len() > self.bytes {
            file.set_len(self.bytes)?;
        }
        let line = ChangeLine { v: CHANGE_JOURNAL_VERSION, at, entry: entry.clone() };
        let mut bytes = serde_json::to_vec(&line)?;
        bytes.push(b'\n');
        if self.failpoint.is_due(ChangeFailpointSite::HalfWritten) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            self.failpoint.crash();
        }
        file.write_all(&bytes)?;
        self.failpoint.hit(ChangeFailpointSite::Written);
        file.sync_data()?;
        self.bytes += bytes.len() as u64;
        self.failpoint.hit(ChangeFailpointSite::Synced);
        Ok(())
    }
}

fn from_io(path: &Path, err: io::Error) -> ChangeJournalError {
    let path = path.to_owned();
    if permissions::is_untrusted(&err) {
        ChangeJournalError::Untrusted { path, err }
    } else {
        ChangeJournalError::File { path, err }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn entry(by: &str) -> ChangeEntry {
        ChangeEntry::CancelRequested { by: by.to_owned() }
    }

    #[test]
    fn a_torn_last_line_is_dropped_and_a_damaged_line_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let mut journal = ChangeJournal::open(folder.path(), ChangeFailpoint::default()).unwrap();
        journal.write(now, &entry("ann")).unwrap();
        drop(journal);
        let path = folder.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        let mut torn = whole.clone();
        torn.extend_from_slice(&whole[..whole.len() / 2]);
        fs::write(&path, &torn).unwrap();
        drop(ChangeJournal::open(folder.path(), ChangeFailpoint::default()).unwrap());
        assert_eq!(fs::read(&path).unwrap(), whole);
        let mut damaged = b"{\"v\":1,\n".to_vec();
        damaged.extend_from_slice(&whole);
        fs::write(&path, &damaged).unwrap();
        let err = ChangeJournal::open(folder.path(), ChangeFailpoint::default()).unwrap_err();
        assert!(matches!(err, ChangeJournalError::Damaged { line: 1, .. }), "{err}");
        let newer = String::from_utf8(whole).unwrap().replace("\"v\":1", "\"v\":2");
        fs::write(&path, newer).unwrap();
        let err = ChangeJournal::read(folder.path()).unwrap_err();
        assert!(matches!(err, ChangeJournalError::Newer { version: 2, .. }), "{err}");
    }

    #[test]
    fn a_second_writer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _first = ChangeJournal::open(folder.path(), ChangeFailpoint::default()).unwrap();
        let err = ChangeJournal::open(folder.path(), ChangeFailpoint::default()).unwrap_err();
        assert!(matches!(err, ChangeJournalError::InUse { .. }), "{err}");
        ChangeJournal::read(folder.path()).unwrap();
    }
}
