//! Accepts a log that is not the acknowledged one, at an operator's request: an older copy restored
//! on purpose.

use std::path::Path;

use super::snapshot_file::SnapshotFile;
use super::sqlite::SqliteLog;
use super::{
    Head, IntegrityError, Log, LogError, RecordedHead, recorded_head, replace_head, verify_entries,
};
use crate::state_machine::state_at;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The head recorded before. `None` if there was none.
    pub before: Option<RecordedHead>,
    /// The accepted head.
    pub end: RecordedHead,
}

/// Accepts the log at `path`. Its entries must be intact. Removes snapshots, which may belong to
/// another log. No server may be running.
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
