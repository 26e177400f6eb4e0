//! Reads and folds the journal's directory.

use std::path::Path;

use super::segment::{self, Segment};
use super::{Fold, JournalError, Record, Recovery, not_found};

#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) fold: Fold,
    pub(super) segments: Vec<Segment>,
    pub(super) recovery: Recovery,
}

/// Folds a journal without locking it, for read-only use.
pub fn look(dir: &Path) -> Result<(Fold, Recovery), JournalError> {
    let Read { fold, recovery, .. } = read(dir, |_| ())?;
    Ok((fold, recovery))
}

pub(super) fn read(dir: &Path, mut each: impl FnMut(&Record)) -> Result<Read, JournalError> {
    let folder = |err| JournalError::Folder { dir: dir.to_owned(), err };
    let mut seen = Read::default();
    for number in segment::list(dir).map_err(folder)? {
        let path = segment::path(dir, number);
        let fold = &mut seen.fold;
        let read = segment::read(&path, |record| {
            fold.apply(&record);
            each(&record);
        });
        let read = match read {
            Ok(read) => read,
            // Deleted since it was listed: a newer snapshot supersedes it.
            Err(err) if not_found(&err) => continue,
            Err(err) => return Err(folder(err)),
        };
        if let Some(version) = read.newer {
            return Err(JournalError::Newer { path, version });
        }
        seen.recovery.damaged_lines += read.damaged;
        // Only the last segment can end in a partial write; in others it is damage.
        seen.recovery.damaged_lines += u64::from(seen.recovery.torn_bytes > 0);
        seen.recovery.torn_bytes = read.torn_bytes;
        seen.segments.push(Segment {
            number,
            bytes: read.whole_bytes,
            first: read.first,
            last: read.last,
            snapshot_bytes: read.snapshot_bytes,
        });
    }
    Ok(seen)
}
