//! Goes on with a log that is not the one that was acknowledged, because somebody says so: an older copy, put back on purpose.

use std::path::Path;

use super::sqlite::SqliteLog;
use super::state_file::StateFile;
use super::{
    Head, IntegrityError, Log, LogError, RecordedHead, recorded_head, replace_head, verify_entries,
};
use crate::state_machine::state_at;

/// What was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// What was acknowledged before; none: that was not known.
    pub before: Option<RecordedHead>,
    /// Where the log ends, from which the server goes on.
    pub end: RecordedHead,
}

/// Accepts the log at `path` as it is. Its entries must be whole; states that were kept of another one are forgotten. No server may run.
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
    StateFile::beside(path).remove()?;
    let end = RecordedHead { seq, hash, access: state_at(path)?.access };
    replace_head(path, &end)?;
    Ok(Ok(Accepted { before, end }))
}
