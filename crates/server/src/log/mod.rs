//! The log: entries in order, each bound to all before it by a hash, durable when `append` returns.

mod accept;
mod archive;
mod base_snapshot;
mod chain;
mod damage;
mod head_file;
mod integrity;
pub mod sqlite;
mod state_file;
mod verify;

use std::path::PathBuf;

use farrier_fleet::fleet::event::{DecodeError, EncodeError};
use farrier_fleet::fleet::{Entry, FleetState};

pub use accept::{Accepted, accept};
pub use archive::{Archived, archive, check_joined, sync};
pub use chain::Hash;
pub use damage::Damage;
pub use head_file::{RecordedHead, head_path, recorded_head, replace_head};
pub use integrity::Integrity;
use sqlite::FORMAT;
pub use verify::{IntegrityError, verify, verify_entries};

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The last entry's place; 0 where there is none.
    pub seq: u64,
    /// The hash over everything up to it.
    pub hash: Hash,
    /// Who may write: a writer of an older epoch is refused.
    pub epoch: u64,
}

/// What was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The end of the log with it.
    pub head: Head,
    /// Bytes of each entry.
    pub entry_bytes: Vec<usize>,
}

/// What stands before the first entry of a log: nothing, or what was moved to an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// The last entry that is not here; 0 where all are.
    pub seq: u64,
    /// The hash over everything up to it.
    pub hash: Hash,
}

impl Anchor {
    /// Of a log from its first entry on.
    pub fn genesis() -> Self {
        Self { seq: 0, hash: Hash::genesis() }
    }
}

/// An entry as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its place.
    pub seq: u64,
    /// Its bytes, as [`Entry::encode`] made them.
    pub bytes: Vec<u8>,
    /// The hash over it and everything before.
    pub hash: Hash,
}

impl Stored {
    pub fn entry(&self) -> Result<Entry, LogError> {
        Entry::decode(&self.bytes).map_err(|err| LogError::DecodeEntry { seq: self.seq, err })
    }
}

/// A state that was kept so that not everything must be folded again.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub state: FleetState,
    /// The hash at its last entry.
    pub hash: Hash,
}

/// Where entries are kept. One writer at a time, told apart by epochs.
pub trait Log {
    /// The end of it.
    fn head(&self) -> Result<Head, LogError>;

    /// What stands before its first entry.
    fn anchor(&self) -> Result<Anchor, LogError>;

    /// Becomes the writer: the epoch from here on, higher than all before.
    fn take_over(&mut self) -> Result<u64, LogError>;

    /// Appends entries that follow on `head`, all or none. They are durable when this returns.
    fn append(&mut self, head: &Head, entries: &[Entry]) -> Result<Appended, LogError>;

    /// Up to `most` entries after `seq`, in order.
    fn read(&self, seq: u64, limit: usize) -> Result<Vec<Stored>, LogError>;

    /// What keeps states, also while entries are appended.
    fn snapshot_writer(&self) -> Box<dyn SnapshotWriter + Send>;

    /// Keeps a state. Older ones may go.
    fn write_snapshot(&self, snapshot: &Snapshot) -> Result<(), LogError> {
        self.snapshot_writer().write(snapshot)
    }

    /// The newest state that was kept and is whole; one that does not read is passed over.
    fn latest_snapshot(&self) -> Result<Option<Snapshot>, LogError>;

    /// The state at its anchor: what its entries are folded on.
    fn base_state(&self) -> Result<FleetState, LogError>;

    /// Forgets the entries up to and with that of a state, with which the log begins from here on.
    fn truncate(&mut self, begin: &Snapshot) -> Result<(), LogError>;

    /// The end of it as it was last acknowledged; none: nobody has written that down, as beside a backup.
    fn recorded_head(&self) -> Result<Option<RecordedHead>, LogError>;

    /// Writes down an end of it that is durable. On disk when this returns.
    fn record_head(&mut self, head: &RecordedHead) -> Result<(), LogError>;

    /// Whether the database is sound, before anything is written to it.
    fn check_integrity(&self) -> Result<Integrity, LogError>;

    /// Deletes what was forgotten: whoever forgets may die before that is done, and nobody sees it any more.
    fn delete_truncated(&mut self) -> Result<(), LogError>;
}

/// Keeps states, on whatever thread has the time: it takes seconds where the fleet is large.
pub trait SnapshotWriter {
    /// Keeps a state. Older ones may go.
    fn write(&mut self, snapshot: &Snapshot) -> Result<(), LogError>;
}

/// What a file is that this version does not read as a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatMismatch {
    /// A log whose tables have another format.
    #[error("its format is {0}, this one's {FORMAT}")]
    Format(i64),
    /// A log that begins with the state of a later version.
    #[error("the state that it begins with is of a later version")]
    State,
    /// A database without tables.
    #[error("it is empty: its WAL is gone, or it was never written")]
    Empty,
    /// Another program's database.
    #[error("it is a database of something else")]
    Database,
}

/// Why the log could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Somebody else wrote in between.
    #[error("the log ends at entry {found} and not at {expected}: somebody else writes to it")]
    ConcurrentWrite {
        /// Where it was thought to end.
        expected: u64,
        /// Where it ends.
        found: u64,
    },
    /// Another server has taken over.
    #[error("epoch {epoch} is over: another server writes in epoch {current}")]
    Fenced {
        /// Ours.
        epoch: u64,
        /// Theirs.
        current: u64,
    },
    /// Entries that are not in order.
    #[error("entry {seq} does not follow on {after}")]
    Gap {
        seq: u64,
        /// What was before it.
        after: u64,
    },
    /// An entry that does not read.
    #[error("failed to read entry {seq} of the log")]
    DecodeEntry {
        seq: u64,
        #[source]
        err: DecodeError,
    },
    /// An entry that cannot be written.
    #[error("failed to write entry {seq} of the log")]
    EncodeEntry {
        seq: u64,
        #[source]
        err: EncodeError,
    },
    /// Its first entries are in an archive, and the state that stands for them does not read.
    #[error("the log begins after entry {0}, and the state there does not read")]
    MissingBaseSnapshot(u64),
    /// A state that is not of this log.
    #[error("a state at entry {0} is not of this log")]
    WrongLog(u64),
    /// A state that cannot be written.
    #[error("failed to write a state as bytes")]
    EncodeSnapshot(#[source] serde_json::Error),
    /// Of a later version, or not a log at all.
    #[error("`{}` is no log that this version reads: {what}", path.display())]
    UnknownFormat {
        path: PathBuf,
        /// What it is.
        what: FormatMismatch,
    },
    /// An archive that may not be on disk.
    #[error("failed to bring `{}` to disk", path.display())]
    Sync {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
    /// SQLite failed.
    #[error("failed to {what}")]
    Sqlite {
        /// What was tried.
        what: &'static str,
        #[source]
        err: rusqlite::Error,
    },
    /// The database is damaged: nothing is appended to it.
    #[error("the log's database is damaged, and nothing is appended to it: {0}")]
    Corrupt(String),
    /// Entries that were acknowledged are gone.
    #[error(
        "the log ends at entry {found}, and entry {recorded} was acknowledged: the end of it is gone"
    )]
    Truncated {
        /// The last entry that was acknowledged.
        recorded: u64,
        /// Where it ends.
        found: u64,
    },
    /// It is another log than the one that was written.
    #[error("entry {0} of the log is not the one that was acknowledged: this is another log")]
    Replaced(u64),
    /// A state that was kept has seen entries that the log does not have.
    #[error(
        "the state that was kept at entry {kept} is not of this log, which ends at entry {found}"
    )]
    OlderThanSnapshot {
        /// The state's last entry.
        snapshot: u64,
        /// Where the log ends.
        found: u64,
    },
    /// Nobody knows what it would have read: it panicked, or the server ends.
    #[error("a read of the log was not finished")]
    ReadUnfinished,
    /// What was acknowledged cannot be written down, or not be read.
    #[error("failed to use `{}`", path.display())]
    Head {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
    /// What was acknowledged does not read.
    #[error("`{}` does not read: which entry was acknowledged last is not known", .0.display())]
    HeadUnreadable(PathBuf),
    /// A test ends the server between the log and whoever waits for it.
    #[error("the server ends here because a test asked for it")]
    Failpoint,
    /// A state could not be kept, or what was kept not be read.
    #[error("failed to keep the state in `{}`, or to read it", path.display())]
    SnapshotFile {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
}

impl LogError {
    /// Whether it says that this is not the log that was written here, or not all of it.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Truncated { .. }
                | Self::Replaced(_)
                | Self::OlderThanSnapshot { .. }
                | Self::HeadUnreadable(_)
        )
    }

    /// Whether it says that the database itself is damaged: nothing is appended to it any more.
    pub fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match self {
            Self::Corrupt(_) => true,
            Self::Sqlite { err, .. } => {
                matches!(err.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
            }
            _ => false,
        }
    }
}
