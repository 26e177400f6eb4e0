//! The old part of a log in a file of its own. The chain goes on from one to the other: what the archive ends with the log begins after.

use std::fs::File;
use std::io;
use std::path::Path;

use jiff::Timestamp;

use super::sqlite::SqliteLog;
use super::{Anchor, Flaw, Head, Log, LogError, Stored, verify};

/// Entries moved at once.
const PAGE: usize = 4096;

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
    /// No entry is that old, or all that are needed for the next start.
    Nothing,
}

/// Moves what was written before a time into a file that is not there yet. It is whole there before the log forgets it; whoever dies in between has
/// it twice, and nothing is lost. A server may write meanwhile.
pub fn archive(
    log: &mut dyn Log,
    before: Timestamp,
    path: &Path,
) -> Result<Result<Archived, Flaw>, LogError> {
    let begin = log.anchor()?;
    let Some(through) = last_before(log, before)? else { return Ok(Ok(Archived::Nothing)) };
    let mut archive = SqliteLog::after(path, &begin)?;
    let mut seq = begin.seq;
    while seq < through {
        let mut page = log.read(seq, PAGE)?;
        page.retain(|it| it.seq <= through);
        let Some(last) = page.last().map(|it| it.seq) else {
            return Ok(Err(Flaw::Missing(seq + 1)));
        };
        archive.put(&page)?;
        seq = last;
    }
    let Head { seq, hash, .. } = match verify(&archive)? {
        Ok(head) => head,
        Err(flaw) => return Ok(Err(flaw)),
    };
    drop(archive);
    synced(path).map_err(|err| LogError::Sync { path: path.to_owned(), err })?;
    log.forget(through)?;
    let through = Anchor { seq, hash };
    Ok(Ok(Archived::Moved { from: begin.seq + 1, through }))
}

/// On disk, under its name.
fn synced(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// The last entry before a time that no start needs.
fn last_before(log: &dyn Log, time: Timestamp) -> Result<Option<u64>, LogError> {
    let begin = log.anchor()?.seq;
    let Some(end) = log.covered()? else { return Ok(None) };
    // Times only grow: the first entry that is not older is found by halves.
    let (mut older, mut not_older) = (begin, end.max(begin) + 1);
    while older + 1 < not_older {
        let middle = older.midpoint(not_older);
        let is_older = match log.read(middle - 1, 1)?.first() {
            Some(stored) if stored.seq == middle => stored.entry()?.at < time,
            _ => false,
        };
        if is_older {
            older = middle;
        } else {
            not_older = middle;
        }
    }
    Ok((older > begin).then_some(older))
}

/// Hands every entry of these logs on, in the order of their entries; or says where they do not follow on each other.
pub fn joined(
    logs: &[&dyn Log],
    mut each: impl FnMut(Stored) -> Result<(), LogError>,
) -> Result<Result<(), Flaw>, LogError> {
    let mut end = logs.first().map_or(Ok(Anchor::genesis()), |log| log.anchor())?;
    for log in logs {
        let begin = log.anchor()?;
        if begin.seq > end.seq {
            return Ok(Err(Flaw::Missing(end.seq + 1)));
        }
        if begin.seq < end.seq {
            return Ok(Err(Flaw::Twice(begin.seq + 1)));
        }
        if begin.hash != end.hash {
            return Ok(Err(Flaw::Changed(begin.seq)));
        }
        loop {
            let page = log.read(end.seq, PAGE)?;
            let Some(last) = page.last() else { break };
            end = Anchor { seq: last.seq, hash: last.hash };
            page.into_iter().try_for_each(&mut each)?;
        }
    }
    Ok(Ok(()))
}
