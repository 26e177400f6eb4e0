//! The old part of a log in a file of its own. The chain goes on from one to the other: what the archive ends with the log begins after,
//! with the state that all of it leads to.

use std::fs::File;
use std::io;
use std::path::Path;

use jiff::Timestamp;

use super::sqlite::SqliteLog;
use super::{Anchor, Head, IntegrityError, Log, LogError, Snapshot, verify};

/// Entries moved at once.
const PAGE_ENTRIES: usize = 4096;

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Archived {
    /// It is in the archive, and no longer in the log.
    Moved {
        /// The first entry.
        from: u64,
        /// The last one, with the hash that the log now begins after.
        through: Anchor,
    },
    /// No entry is that old.
    Nothing,
}

/// Moves what was written before a time into a file that is not there yet. It is whole there before the log forgets it; whoever dies in
/// between has it twice, and nothing is lost. A server may write meanwhile.
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
        page.retain(|it| it.seq <= through);
        let Some(last) = page.last().map(|it| it.seq) else {
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

/// Brings a file to disk, and its name.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// The last entry of the last batch before a time. A batch was decided on as one, and is not torn.
fn last_before(log: &dyn Log, time: Timestamp) -> Result<Option<u64>, LogError> {
    let (begin, end) = (log.anchor()?.seq, log.head()?.seq);
    let at = |seq: u64| -> Result<_, LogError> {
        let found = log.read(seq - 1, 1)?.into_iter().next().filter(|it| it.seq == seq);
        found.map(|stored| stored.entry()).transpose()
    };
    // A clock that is stepped back has later entries look older, so halving would go wrong: everything before the first entry that is
    // not older.
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

/// Whether logs, in the order of their entries, follow on each other; each for itself is looked at by [`verify`].
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
