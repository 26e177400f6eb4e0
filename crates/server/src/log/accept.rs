//! Accepts a log that differs from the acknowledged log. An entry is acknowledged once the server
//! has confirmed it to its sender. An operator accepts such a log, for example, after restoring an
//! older copy on purpose.

use std::path::Path;

use super::snapshot_file::SnapshotFile;
use super::sqlite::SqliteLog;
use super::{
    Head, IntegrityError, Log, LogError, RecordedHead, recorded_head, replace_head, verify_entries,
};
use crate::state_machine::state_at;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The head that was recorded before. `None` if no head was recorded, or if it was unreadable.
    pub before: Option<RecordedHead>,
    /// The accepted head.
    pub end: RecordedHead,
}

/// Accepts the log at `path` if its entries are intact. Removes the snapshot files, because they
/// may belong to another log. No server may be running.
pub fn accept(path: &Path) -> Result<Result<Accepted, IntegrityError>, LogError> {
    let log = SqliteLog::open_to_read(path)?;
    log.check_integrity()?;
    let Head { seq, hash, .. } = match verify_entries(&log)? {
        Ok(head) => head,
        Err(error) => return Ok(Err(error)),
    };
    drop(log);
    let before = match recorded_head(path) {
        Err(LogError::HeadUnreadable(_)) => None,
        recorded => recorded?,
    };
    SnapshotFile::beside(path).remove()?;
    let end = RecordedHead { seq, hash, access: state_at(path)?.access };
    replace_head(path, &end)?;
    Ok(Ok(Accepted { before, end }))
}
