//! The log: ordered entries in a hash chain. Entries are durable when `append` returns.

mod accept;
mod archive;
mod base_snapshot;
mod chain;
mod damage;
mod head_file;
mod integrity;
mod snapshot_file;
pub mod sqlite;
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Number of the last entry; 0 for an empty log.
    pub seq: u64,
    pub hash: Hash,
    /// Fencing epoch. A writer with an older epoch is refused.
    pub epoch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    pub head: Head,
    /// Encoded size of each entry.
    pub entry_bytes: Vec<usize>,
}

/// The point before the first entry of a log: the genesis hash, or the last archived entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// 0 if no entry was archived.
    pub seq: u64,
    pub hash: Hash,
}

impl Anchor {
    pub fn genesis() -> Self {
        Self { seq: 0, hash: Hash::genesis() }
    }
}

/// An entry as the log stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub seq: u64,
    /// The bytes that [`Entry::encode`] wrote.
    pub bytes: Vec<u8>,
    /// The chain hash up to and including this entry.
    pub hash: Hash,
}

impl Stored {
    pub fn entry(&self) -> Result<Entry, LogError> {
        Entry::decode(&self.bytes).map_err(|err| LogError::DecodeEntry { seq: self.seq, err })
    }
}

/// A saved state. Entries after it are applied to it, so older entries need not be read.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub state: FleetState,
    /// The chain hash at the last entry of the state.
    pub hash: Hash,
}

/// An append-only log. It has one writer at a time, which is fenced by epochs.
pub trait Log {
    fn head(&self) -> Result<Head, LogError>;

    fn anchor(&self) -> Result<Anchor, LogError>;

    /// Makes this process the writer. Returns the new epoch.
    fn take_over(&mut self) -> Result<u64, LogError>;

    /// Appends either all entries after `head`, or none of them. When this function returns, the
    /// entries are durable.
    fn append(&mut self, head: &Head, entries: &[Entry]) -> Result<Appended, LogError>;

    /// Up to `limit` entries after `seq`, in order.
    fn read(&self, seq: u64, limit: usize) -> Result<Vec<Stored>, LogError>;

    /// A snapshot writer that can run concurrently with appends.
    fn snapshot_writer(&self) -> Box<dyn SnapshotWriter + Send>;

    /// Writes a snapshot. Older snapshots may be removed.
    fn write_snapshot(&self, snapshot: &Snapshot) -> Result<(), LogError> {
        self.snapshot_writer().write(snapshot)
    }

    /// The latest intact snapshot. Skips damaged snapshots.
    fn latest_snapshot(&self) -> Result<Option<Snapshot>, LogError>;

    /// The state at the anchor. Entries after the anchor are applied to it.
    fn base_state(&self) -> Result<FleetState, LogError>;

    /// Makes `begin` the base snapshot, and removes the entries that `begin` contains.
    fn truncate(&mut self, begin: &Snapshot) -> Result<(), LogError>;

    /// The last acknowledged head. `None` if there is no head file, which is normal for a backup.
    fn recorded_head(&self) -> Result<Option<RecordedHead>, LogError>;

    /// Records a durable head. When this function returns, the record is on disk.
    fn record_head(&mut self, head: &RecordedHead) -> Result<(), LogError>;

    /// Checks the database before anything is written to it.
    fn check_integrity(&self) -> Result<Integrity, LogError>;

    /// Deletes entries up to the anchor. Such entries are left if a crash interrupted
    /// [`Log::truncate`]. Readers do not see them.
    fn delete_truncated(&mut self) -> Result<(), LogError>;
}

/// Writes snapshots on any thread. Writing the snapshot of a large fleet takes seconds.
pub trait SnapshotWriter {
    /// Writes a snapshot. Older snapshots may be removed.
    fn write(&mut self, snapshot: &Snapshot) -> Result<(), LogError>;
}

/// Why a file is not a log that this version reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatMismatch {
    #[error("its format is {0}, this version's is {FORMAT}")]
    Format(i64),
    #[error("its base snapshot was written by a later version")]
    State,
    #[error("it is empty: its WAL is missing, or it was never written")]
    Empty,
    #[error("it is another program's database")]
    Database,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the log ends at entry {found}, not at {expected}: another process writes to it")]
    ConcurrentWrite { expected: u64, found: u64 },
    #[error("epoch {epoch} is fenced: another server writes in epoch {current}")]
    Fenced { epoch: u64, current: u64 },
    #[error("entry {seq} does not follow entry {after}")]
    Gap { seq: u64, after: u64 },
    #[error("failed to decode entry {seq} of the log")]
    DecodeEntry {
        seq: u64,
        #[source]
        err: DecodeError,
    },
    #[error("failed to encode entry {seq} of the log")]
    EncodeEntry {
        seq: u64,
        #[source]
        err: EncodeError,
    },
    /// The first entries are archived, and the base snapshot is missing or damaged.
    #[error("the log begins after entry {0}, and its base snapshot is missing or damaged")]
    MissingBaseSnapshot(u64),
    #[error("the snapshot at entry {0} does not belong to this log")]
    WrongLog(u64),
    #[error("failed to encode a snapshot")]
    EncodeSnapshot(#[source] serde_json::Error),
    #[error("`{}` is not a log that this version can read: {what}", path.display())]
    UnknownFormat { path: PathBuf, what: FormatMismatch },
    #[error("failed to sync `{}`", path.display())]
    Sync {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
    #[error("failed to {what}")]
    Sqlite {
        /// The operation.
        what: &'static str,
        #[source]
        err: rusqlite::Error,
    },
    #[error("the log's database is damaged, and nothing is appended to it: {0}")]
    Corrupt(String),
    #[error(
        "the log ends at entry {found}, but entry {recorded} was acknowledged: its end is missing"
    )]
    Truncated { recorded: u64, found: u64 },
    #[error("entry {0} of the log is not the entry that was acknowledged: this is another log")]
    Replaced(u64),
    #[error(
        "the snapshot at entry {snapshot} does not belong to this log, which ends at entry {found}"
    )]
    OlderThanSnapshot { snapshot: u64, found: u64 },
    /// The thread that read the log panicked, or the server is stopping.
    #[error("a read of the log did not complete")]
    ReadUnfinished,
    #[error("failed to use `{}`", path.display())]
    Head {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
    #[error("`{}` is unreadable: the last acknowledged entry is unknown", .0.display())]
    HeadUnreadable(PathBuf),
    /// A test stopped the server between the append and the acknowledgement.
    #[error("a test stopped the server here")]
    Failpoint,
    #[error("failed to write or read the snapshot `{}`", path.display())]
    SnapshotFile {
        path: PathBuf,
        #[source]
        err: std::io::Error,
    },
}

impl LogError {
    /// Whether the log is incomplete, or is not the log that this server wrote.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Truncated { .. }
                | Self::Replaced(_)
                | Self::OlderThanSnapshot { .. }
                | Self::HeadUnreadable(_)
        )
    }

    /// Whether the database is corrupt. The server appends nothing more to a corrupt database.
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
