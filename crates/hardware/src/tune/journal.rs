//! `journal.jsonl`: what was there before each change is on disk before the change is made.
//!
//! A line that does not read may be the one that says what was there: such a file is not gone on with. Only a last line
//! without its end was never acted on, and is cut.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farrier_facts::tune::{Target, Value};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::interrupt::{Interrupt, Point};
use super::trust;

/// The file below the state folder.
pub const FILE: &str = "journal.jsonl";
/// Held by the one who writes it.
const LOCK: &str = "lock";
/// The version of the form. The second knows what a card made of a value.
const VERSION: u32 = 2;
/// A change has about a kilobyte; more than this is no such file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be used.
    #[error("failed to use `{}`", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// Somebody else may have written it.
    #[error("what was there before is not taken from `{}`", path.display())]
    Untrusted {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        err: io::Error,
    },
    /// A line is about what no profile can name.
    #[error("line {line} of `{}` is about what no profile can name: {target:?}", path.display())]
    Target {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What it is about.
        target: Target,
    },
    /// Somebody else changes settings.
    #[error("another `farrier tune` works with `{}`", path.display())]
    InUse {
        /// The lock.
        path: PathBuf,
    },
    /// What was there cannot be known.
    #[error("line {line} of `{}` does not read: what was there before a change is not known", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
    },
    /// A newer farrier wrote it.
    #[error("`{}` was written by a newer farrier (version {version} of the form)", path.display())]
    Newer {
        /// Which.
        path: PathBuf,
        /// Of the form.
        version: u32,
    },
}

impl JournalError {
    fn of(path: &Path, err: io::Error) -> Self {
        let path = path.to_owned();
        if trust::is_untrusted(&err) {
            Self::Untrusted { path, err }
        } else {
            Self::File { path, err }
        }
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    v: u32,
    at: Timestamp,
    note: Note,
}

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Note {
    /// A change is about to be made.
    Begun(Open),
    /// It was made, as it was asked for.
    Ended { number: u64 },
    /// It was taken, and something else came of it: a card rounds.
    Made { number: u64, now: Value },
    /// It was not made, which was looked at.
    Failed { number: u64, why: String },
    /// What was there before is there again, or what was changed is no longer there and somebody said to forget it.
    Reverted { number: u64 },
}

/// A change that was begun and not given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Its place in the order of all.
    pub number: u64,
    /// For which profile.
    pub profile: String,
    /// What.
    pub target: Target,
    /// What was there.
    pub old: Value,
    /// What shall be there.
    pub new: Value,
    /// Folders that are made for it, or for another change that was open then, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<String>,
    /// What came of it; none where that could not be looked at, also after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Value>,
    /// Nobody asked for it: another change may make it on the side.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_beside: bool,
}

impl Open {
    /// Whether a profile can have led to it.
    fn is_nameable(&self) -> bool {
        let leads = |folder: &String| match &self.target {
            Target::File { path } => Path::new(path).starts_with(folder),
            _ => false,
        };
        self.target.is_allowed() && self.folders.iter().all(leads)
    }
}

/// The file, and the lock of who writes it.
#[derive(Debug)]
struct Writer {
    file: File,
    _lock: File,
}

/// The file and what its lines come to.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    path: PathBuf,
    /// None where it is only looked at.
    writer: Option<Writer>,
    /// Bytes that are whole lines on disk.
    bytes: u64,
    open: Vec<Open>,
    next: u64,
    interrupt: Interrupt,
}

impl Journal {
    /// Opens it to write, and makes it where it is not there.
    pub fn open(folder: &Path, interrupt: Interrupt) -> Result<Self, JournalError> {
        let path = folder.join(FILE);
        let failed = |err| JournalError::of(&path, err);
        trust::folder(folder).and_then(|()| make_folder(folder)).map_err(failed)?;
        let lock_path = folder.join(LOCK);
        let mut how = OpenOptions::new();
        let lock = trust::open(&lock_path, how.write(true).create(true).mode(0o600));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse { path: lock_path }),
            Err(TryLockError::Error(err)) => return Err(failed(err)),
        }
        let mut journal = Self::read(folder)?;
        let mut how = OpenOptions::new();
        let file = trust::open(&path, how.append(true).create(true).mode(0o600)).map_err(failed)?;
        // What a write that was cut short has left behind.
        if file.metadata().map_err(failed)?.len() > journal.bytes {
            file.set_len(journal.bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        sync_folder(folder).map_err(failed)?;
        journal.writer = Some(Writer { file, _lock: lock });
        journal.interrupt = interrupt;
        Ok(journal)
    }

    /// Reads it and changes nothing; one that is not there has no changes.
    pub fn read(folder: &Path) -> Result<Self, JournalError> {
        #[derive(Deserialize)]
        struct OnlyVersion {
            v: u32,
        }
        let path = folder.join(FILE);
        let bytes = trust::folder(folder)
            .and_then(|()| all_of(&path))
            .map_err(|err| JournalError::of(&path, err))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut journal = Self {
            folder: folder.to_owned(),
            path: path.clone(),
            writer: None,
            bytes: whole as u64,
            open: Vec::new(),
            next: 1,
            interrupt: Interrupt::default(),
        };
        for (place, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let version = serde_json::from_slice::<OnlyVersion>(line).ok().map(|it| it.v);
            if let Some(version) = version.filter(|version| *version > VERSION) {
                return Err(JournalError::Newer { path, version });
            }
            let Ok(line) = serde_json::from_slice::<Line>(line) else {
                return Err(JournalError::Damaged { path, line: place + 1 });
            };
            if let Note::Begun(change) = &line.note
                && !change.is_nameable()
            {
                let target = change.target.clone();
                return Err(JournalError::Target { path, line: place + 1, target });
            }
            journal.take(line.note);
        }
        Ok(journal)
    }

    /// Changes that were begun and not given back, oldest first.
    pub fn open_changes(&self) -> &[Open] {
        &self.open
    }

    /// The number of the next change.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Begun(change) => {
                self.next = self.next.max(change.number + 1);
                self.open.push(change);
            }
            Note::Ended { number } => {
                if let Some(change) = self.opened(number) {
                    change.made = Some(change.new.clone());
                }
            }
            Note::Made { number, now } => {
                if let Some(change) = self.opened(number) {
                    change.made = Some(now);
                }
            }
            Note::Failed { number, .. } | Note::Reverted { number } => {
                self.open.retain(|change| change.number != number);
            }
        }
    }

    fn opened(&mut self, number: u64) -> Option<&mut Open> {
        self.open.iter_mut().find(|change| change.number == number)
    }

    /// Writes a line; it is on disk when this returns.
    pub(super) fn write(&mut self, at: Timestamp, note: Note) -> Result<(), JournalError> {
        self.append(at, &note)
            .map_err(|err| JournalError::File { path: self.path.clone(), err })?;
        self.take(note);
        Ok(())
    }

    fn append(&mut self, at: Timestamp, note: &Note) -> io::Result<()> {
        let Some(Writer { file, .. }) = &mut self.writer else {
            return Err(io::Error::other("it is open to be read only"));
        };
        // A write that failed may have left half a line.
        if file.metadata()?.len() > self.bytes {
            file.set_len(self.bytes)?;
        }
        let mut bytes = serde_json::to_vec(&Line { v: VERSION, at, note: note.clone() })?;
        bytes.push(b'\n');
        if self.interrupt.is_due(Point::HalfWritten) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            self.interrupt.die();
        }
        file.write_all(&bytes)?;
        self.interrupt.reach(Point::Written);
        file.sync_data()?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Lets every write fail as on a full disk, or no longer.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self, full: bool) {
        let path = if full { Path::new("/dev/full") } else { &self.path };
        let file = OpenOptions::new().append(true).open(path).expect("both are there");
        if let Some(writer) = &mut self.writer {
            writer.file = file;
        }
    }

    /// Begins it anew where nothing is left to give back, so that it does not grow for ever.
    pub(super) fn fold(&mut self) -> Result<(), JournalError> {
        let failed = |err| JournalError::File { path: self.path.clone(), err };
        if !self.open.is_empty() || self.bytes == 0 {
            return Ok(());
        }
        if let Some(Writer { file, .. }) = &self.writer {
            file.set_len(0).and_then(|()| file.sync_all()).map_err(failed)?;
            self.bytes = 0;
        }
        sync_folder(&self.folder).map_err(failed)
    }
}

/// A file's bytes; none where it is not there.
fn all_of(path: &Path) -> io::Result<Vec<u8>> {
    let file = match trust::open(path, OpenOptions::new().read(true)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Makes a folder, and brings it to disk with those on the way to it: a journal that is gone
/// after the power went would be none.
fn make_folder(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        folder.ancestors().take_while(|it| !it.as_os_str().is_empty() && !it.exists()).collect();
    for made in missing.iter().rev() {
        match fs::DirBuilder::new().mode(0o755).create(made) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
            _ => {}
        }
        let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_folder(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
