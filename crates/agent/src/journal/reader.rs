//! Reads the journal's directory and computes the state.

use std::path::Path;

use super::segment::{self, Segment};
use super::{DurableState, JournalError, JournalRecord, Recovery, not_found};

#[derive(Debug, Default)]
pub(super) struct JournalContent {
    pub(super) state: DurableState,
    pub(super) segments: Vec<Segment>,
    pub(super) recovery: Recovery,
}

/// Computes the state of a journal without locking it, for read-only use.
pub fn load(dir: &Path) -> Result<(DurableState, Recovery), JournalError> {
    let JournalContent { state, recovery, .. } = read(dir, |_| ())?;
    Ok((state, recovery))
}

pub(super) fn read(
    dir: &Path,
    mut visit: impl FnMut(&JournalRecord),
) -> Result<JournalContent, JournalError> {
    let failed = |err| JournalError::StateDir { dir: dir.to_owned(), err };
    let mut content = JournalContent::default();
    for number in segment::list(dir).map_err(failed)? {
        let path = segment::path(dir, number);
        let state = &mut content.state;
        let read = segment::read(&path, |record| {
            state.apply(&record);
            visit(&record);
        });
        let read = match read {
            Ok(read) => read,
            // The segment was deleted after it was listed. A newer snapshot supersedes it.
            Err(err) if not_found(&err) => continue,
            Err(err) => return Err(failed(err)),
        };
        if let Some(version) = read.newer {
            return Err(JournalError::Newer { path, version });
        }
        content.recovery.damaged_lines += read.damaged;
        // Only the last segment can end in a partial write. In an earlier segment, a torn line
        // means damage.
        content.recovery.damaged_lines += u64::from(content.recovery.torn_bytes > 0);
        content.recovery.torn_bytes = read.torn_bytes;
        content.segments.push(Segment {
            number,
            bytes: read.whole_bytes,
            first: read.first,
            last: read.last,
            snapshot_bytes: read.snapshot_bytes,
        });
    }
    Ok(content)
}
