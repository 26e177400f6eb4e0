//! `journal.jsonl`: records the old value of each change on disk before the change is made.
//!
//! A journal with a malformed line is rejected, because that line may contain an old value. Only a
//! last line without a newline is truncated, because no change was made after it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use farrier_facts::tune::{Target, Value};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::failpoint::{FailpointSite, TuneFailpoint};
use super::journal_file::{create_directory, read_all, sync_directory};
use super::permissions;

/// Name of the file in the state directory.
pub const FILE: &str = "journal.jsonl";
/// Name of the file that the writer locks.
const LOCK: &str = "lock";
/// Format version. Version 2 also records the resulting value, because GPUs round some requested
/// values.
const VERSION: u32 = 2;
/// Maximum size of the file. A change has about a kilobyte, so a larger file is not a journal.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TuneJournalError {
    #[error("failed to use `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Another user may have written the journal.
    #[error("refusing to read old values from `{}`", path.display())]
    Untrusted {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// A line targets something that no profile can name.
    #[error("line {line} of `{}` has a target that no profile can name: {target:?}", path.display())]
    Target { path: PathBuf, line: usize, target: Target },
    /// Another process is changing settings.
    #[error("another `farrier tune` is using `{}`", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// A line is malformed, so old values are unknown.
    #[error("line {line} of `{}` is malformed: the value before a change is unknown", path.display())]
    Damaged { path: PathBuf, line: usize },
    #[error("`{}` was written by a newer farrier (format version {version})", path.display())]
    Newer {
        path: PathBuf,
        /// The journal's format version.
        version: u32,
    },
}

impl TuneJournalError {
    fn from_io(path: &Path, err: io::Error) -> Self {
        let path = path.to_owned();
        if permissions::is_untrusted(&err) {
            Self::Untrusted { path, err }
        } else {
            Self::File { path, err }
        }
    }
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalLine {
    v: u32,
    at: Timestamp,
    #[serde(rename = "note")]
    entry: JournalEntry,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum JournalEntry {
    /// A change is about to be made.
    Begun(OpenChange),
    /// The change was made as requested.
    Ended { number: u64 },
    /// The change was accepted, but the resulting value is not the requested value, because GPUs
    /// round some values.
    Made { number: u64, now: Value },
    /// The change was not made. This was verified by reading the value.
    Failed { number: u64, why: String },
    /// The old value is restored, or the target no longer exists and the user asked to drop the
    /// entry.
    Reverted { number: u64 },
}

/// A change that was begun and not reverted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenChange {
    /// Sequence number.
    pub number: u64,
    pub profile: String,
    pub target: Target,
    pub old: Value,
    pub new: Value,
    /// Directories created for this change, or for another change that was open at the time,
    /// outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<String>,
    /// The resulting value. `None` if it could not be read, for example because of a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Value>,
    /// `true` for a possible side effect of another change, which the profile does not request.
    #[serde(rename = "is_beside", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_side_effect: bool,
}

impl OpenChange {
    /// Whether a profile could have requested this change.
    fn is_nameable(&self) -> bool {
        let leads = |dir: &String| match &self.target {
            Target::File { path } => Path::new(path).starts_with(dir),
            _ => false,
        };
        self.target.is_allowed() && self.folders.iter().all(leads)
    }
}

/// The file and its writer lock.
#[derive(Debug)]
struct Writer {
    file: File,
    _lock: File,
}

/// The journal and its open changes.
#[derive(Debug)]
pub struct TuneJournal {
    dir: PathBuf,
    path: PathBuf,
    /// `None` if opened read-only.
    writer: Option<Writer>,
    /// Length of the complete lines on disk.
    bytes: u64,
    open: Vec<OpenChange>,
    next: u64,
    failpoint: TuneFailpoint,
}

impl TuneJournal {
    /// Opens the journal for writing. Creates it if necessary.
    pub fn open(dir: &Path, failpoint: TuneFailpoint) -> Result<Self, TuneJournalError> {
        let path = dir.join(FILE);
        let failed = |err| TuneJournalError::from_io(&path, err);
        permissions::check_directory(dir).and_then(|()| create_directory(dir)).map_err(failed)?;
        let lock_path = dir.join(LOCK);
        let mut how = OpenOptions::new();
        let lock = permissions::open(&lock_path, how.write(true).create(true).mode(0o600));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(TuneJournalError::InUse { path: lock_path });
            }
            Err(TryLockError::Error(err)) => return Err(failed(err)),
        }
        let mut journal = Self::read(dir)?;
        let mut how = OpenOptions::new();
        let file =
            permissions::open(&path, how.append(true).create(true).mode(0o600)).map_err(failed)?;
        // Truncate the remains of an interrupted write.
        if file.metadata().map_err(failed)?.len() > journal.bytes {
            file.set_len(journal.bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        sync_directory(dir).map_err(failed)?;
        journal.writer = Some(Writer { file, _lock: lock });
        journal.failpoint = failpoint;
        Ok(journal)
    }

    /// Reads the journal without changing it. If the file is missing, there are no changes.
    pub fn read(dir: &Path) -> Result<Self, TuneJournalError> {
        #[derive(Deserialize)]
        struct VersionOnly {
            v: u32,
        }
        let path = dir.join(FILE);
        let bytes = permissions::check_directory(dir)
            .and_then(|()| read_all(&path, FILE_BYTES_MAX))
            .map_err(|err| TuneJournalError::from_io(&path, err))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut journal = Self {
            dir: dir.to_owned(),
            path: path.clone(),
            writer: None,
            bytes: whole as u64,
            open: Vec::new(),
            next: 1,
            failpoint: TuneFailpoint::default(),
        };
        for (place, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let version = serde_json::from_slice::<VersionOnly>(line).ok().map(|header| header.v);
            if let Some(version) = version.filter(|version| *version > VERSION) {
                return Err(TuneJournalError::Newer { path, version });
            }
            let Ok(line) = serde_json::from_slice::<JournalLine>(line) else {
                return Err(TuneJournalError::Damaged { path, line: place + 1 });
            };
            if let JournalEntry::Begun(change) = &line.entry
                && !change.is_nameable()
            {
                let target = change.target.clone();
                return Err(TuneJournalError::Target { path, line: place + 1, target });
            }
            journal.apply_entry(line.entry);
        }
        Ok(journal)
    }

    /// Changes that were begun and not reverted, oldest first.
    pub fn open_changes(&self) -> &[OpenChange] {
        &self.open
    }

    /// Sequence number of the next change.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn failpoint(&self) -> &TuneFailpoint {
        &self.failpoint
    }

    fn apply_entry(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Begun(change) => {
                self.next = self.next.max(change.number + 1);
                self.open.push(change);
            }
            JournalEntry::Ended { number } => {
                if let Some(change) = self.open_change(number) {
                    change.made = Some(change.new.clone());
                }
            }
            JournalEntry::Made { number, now } => {
                if let Some(change) = self.open_change(number) {
                    change.made = Some(now);
                }
            }
            JournalEntry::Failed { number, .. } | JournalEntry::Reverted { number } => {
                self.open.retain(|change| change.number != number);
            }
        }
    }

    fn open_change(&mut self, number: u64) -> Option<&mut OpenChange> {
        self.open.iter_mut().find(|change| change.number == number)
    }

    /// Appends an entry. The entry is on disk when this function returns.
    pub(super) fn write(
        &mut self,
        at: Timestamp,
        entry: JournalEntry,
    ) -> Result<(), TuneJournalError> {
        self.append(at, &entry)
            .map_err(|err| TuneJournalError::File { path: self.path.clone(), err })?;
        self.apply_entry(entry);
        Ok(())
    }

    fn append(&mut self, at: Timestamp, entry: &JournalEntry) -> io::Result<()> {
        let Some(Writer { file, .. }) = &mut self.writer else {
            return Err(io::Error::other("the journal is open read-only"));
        };
        // A failed write may have left a partial line.
        if file.metadata()?.len() > self.bytes {
            file.set_len(self.bytes)?;
        }
        let mut bytes = serde_json::to_vec(&JournalLine { v: VERSION, at, entry: entry.clone() })?;
        bytes.push(b'\n');
        if self.failpoint.is_due(FailpointSite::HalfWritten) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            self.failpoint.trigger();
        }
        file.write_all(&bytes)?;
        self.failpoint.hit(FailpointSite::Written);
        file.sync_data()?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Makes every write fail as on a full disk, or succeed again.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self, full: bool) {
        let path = if full { Path::new("/dev/full") } else { &self.path };
        let file = OpenOptions::new().append(true).open(path).expect("both files exist");
        if let Some(writer) = &mut self.writer {
            writer.file = file;
        }
    }

    /// Truncates the journal if no change is open, so that it does not grow forever.
    pub(super) fn compact(&mut self) -> Result<(), TuneJournalError> {
        let failed = |err| TuneJournalError::File { path: self.path.clone(), err };
        if !self.open.is_empty() || self.bytes == 0 {
            return Ok(());
        }
        if let Some(Writer { file, .. }) = &self.writer {
            file.set_len(0).and_then(|()| file.sync_all()).map_err(failed)?;
            self.bytes = 0;
        }
        sync_directory(&self.dir).map_err(failed)
    }
}
