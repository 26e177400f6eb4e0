//! Moves old entries into an archive file. The log then starts with a base snapshot, and the hash
//! chain continues from the archive into the log.

use std::fs::File;
use std::io;
use std::path::Path;

use jiff::Timestamp;

use super::sqlite::SqliteLog;
use super::{Anchor, Head, IntegrityError, Log, LogError, Snapshot, verify};

/// Entries per read.
const PAGE_ENTRIES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Archived {
    Moved {
        from: u64,
        /// The last archived entry, which is also the new anchor of the log.
        through: Anchor,
    },
    /// No entry is old enough to be archived.
    Nothing,
}

/// Moves entries that are older than `before` into a new file. The archive is complete and synced
/// before the log is truncated. After a crash between these two steps, both files have the entries.
/// A server may be running meanwhile.
pub fn archive(
    log: &mut dyn Log,
    before: Timestamp,
    path: &Path,
) -> Result<Result<Archived, IntegrityError>, LogError> {
    log.delete_truncated()?;
    let Anchor { mut seq, hash } = log.anchor()?;
    let from = seq + 1;
    let Some(through) = last_before(log, before)? else { return Ok(Ok(Archived::Nothing)) };
    let mut state = log.base_state()?;
    let mut archive = SqliteLog::create_archive(path, &Snapshot { state: state.clone(), hash })?;
    while seq < through {
        let mut page = log.read(seq, PAGE_ENTRIES)?;
        page.retain(|stored| stored.seq <= through);
        let Some(last) = page.last().map(|stored| stored.seq) else {
            return Ok(Err(IntegrityError::Missing(seq + 1)));
        };
        for stored in &page {
            state.apply(&stored.entry()?);
        }
        archive.insert_all(&page)?;
        seq = last;
    }
    let Head { seq, hash, .. } = match verify(&archive)? {
        Ok(head) => head,
        Err(error) => return Ok(Err(error)),
    };
    drop(archive);
    sync(path).map_err(|err| LogError::Sync { path: path.to_owned(), err })?;
    log.truncate(&Snapshot { state, hash })?;
    Ok(Ok(Archived::Moved { from, through: Anchor { seq, hash } }))
}

/// Syncs a file and its directory entry.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// The last entry of the last batch before `time`. A batch consists of the inputs of one commit and
/// the decisions on these inputs. It is never split.
fn last_before(log: &dyn Log, time: Timestamp) -> Result<Option<u64>, LogError> {
    let (begin, end) = (log.anchor()?.seq, log.head()?.seq);
    let at = |seq: u64| -> Result<_, LogError> {
        let found = log.read(seq - 1, 1)?.into_iter().next().filter(|stored| stored.seq == seq);
        found.map(|stored| stored.entry()).transpose()
    };
    // If the clock was stepped back, later entries may have earlier times. A bisection would
    // therefore be wrong, so the scan goes up to the first entry that is not older than `time`.
    let mut older = begin;
    'pages: while older < end {
        let page = log.read(older, PAGE_ENTRIES)?;
        if page.is_empty() {
            break;
        }
        for stored in page {
            if stored.entry()?.at >= time {
                break 'pages;
            }
            older = stored.seq;
        }
    }
    let torn = at(older + 1)?.filter(|next| next.batch <= older);
    let last = torn.map_or(older, |next| next.batch - 1);
    Ok((last > begin).then_some(last))
}

/// Checks that each log continues the previous log. [`verify`] checks the entries of each log.
pub fn check_joined(logs: &[&dyn Log]) -> Result<Result<(), IntegrityError>, LogError> {
    for pair in logs.windows(2) {
        let [before, after] = pair else { continue };
        let (end, begin) = (before.head()?, after.anchor()?);
        if begin.seq > end.seq {
            return Ok(Err(IntegrityError::Missing(end.seq + 1)));
        }
        if begin.seq < end.seq {
            return Ok(Err(IntegrityError::Duplicate(begin.seq + 1)));
        }
        if begin.hash != end.hash {
            return Ok(Err(IntegrityError::Changed(begin.seq)));
        }
    }
    Ok(Ok(()))
}
