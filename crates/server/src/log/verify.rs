//! Verifies a log: recomputes every hash from the first entry to the last.

use super::{Anchor, Hash, Head, Log, LogError, RecordedHead, Snapshot, Stored};

const PAGE_ENTRIES: usize = 4096;

/// The first error that was found in a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntegrityError {
    #[error("entry {0} is missing")]
    Missing(u64),
    #[error("entry {0}, or its hash, was changed after it was written")]
    Changed(u64),
    #[error("entry {0} is in two files")]
    Duplicate(u64),
    #[error("entry {seq} is unreadable: {why}")]
    Unreadable { seq: u64, why: String },
    /// Acknowledged entries are missing at the end of the log. An entry is acknowledged once the
    /// server has confirmed it to its sender.
    #[error("the log ends at entry {found}, but entry {recorded} was acknowledged")]
    Truncated { recorded: u64, found: u64 },
    #[error("entry {0} is not the entry that was acknowledged")]
    Replaced(u64),
    #[error("the snapshot at entry {0} does not belong to this log")]
    Snapshot(u64),
}

/// Verifies all entries. Returns the head or the first error. While this runs, a server may append
/// entries, and old entries may be archived.
pub fn verify(log: &dyn Log) -> Result<Result<Head, IntegrityError>, LogError> {
    // Read the recorded head and the snapshot before the entries. The log only grows in the
    // meantime, so neither the head nor the snapshot can be ahead of the entries.
    let recorded = log.recorded_head()?;
    let snapshot = log.latest_snapshot()?;
    verify_against(log, recorded, snapshot)
}

/// Verifies only the entries. Does not detect that acknowledged entries are missing at the end of
/// the log.
pub fn verify_entries(log: &dyn Log) -> Result<Result<Head, IntegrityError>, LogError> {
    verify_against(log, None, None)
}

fn verify_against(
    log: &dyn Log,
    recorded: Option<RecordedHead>,
    snapshot: Option<Snapshot>,
) -> Result<Result<Head, IntegrityError>, LogError> {
    let Anchor { mut seq, mut hash } = log.anchor()?;
    let check_head = |seq: u64, hash: Hash| {
        let by_state = snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.state.seq == seq && snapshot.hash != hash);
        let by_head = recorded.is_some_and(|head| head.seq == seq && head.hash != hash);
        match (by_head, by_state) {
            (true, _) => Some(IntegrityError::Replaced(seq)),
            (_, true) => Some(IntegrityError::Snapshot(seq)),
            _ => None,
        }
    };
    if let Some(error) = check_head(seq, hash) {
        return Ok(Err(error));
    }
    // The entry after which a read returned no entries, although the log was longer. If a second
    // read at this entry returns none either, entries are missing.
    let mut ended = None;
    let head = loop {
        let page = log.read(seq, PAGE_ENTRIES)?;
        if page.first().is_none_or(|stored| stored.seq != seq + 1) {
            let begin = log.anchor()?;
            if begin.seq > seq {
                // The next entries were archived. The archive command verified these entries before
                // it truncated the log.
                Anchor { seq, hash } = begin;
                continue;
            }
        }
        if page.is_empty() {
            let head = log.head()?;
            if head.seq <= seq || ended == Some(seq) {
                break head;
            }
            ended = Some(seq);
        }
        for stored in page {
            if let Some(error) = check_entry(&stored, seq, hash) {
                return Ok(Err(error));
            }
            (seq, hash) = (stored.seq, stored.hash);
            if let Some(error) = check_head(seq, hash) {
                return Ok(Err(error));
            }
        }
    };
    if let Some(recorded) = recorded.filter(|head| head.seq > seq) {
        return Ok(Err(IntegrityError::Truncated { recorded: recorded.seq, found: seq }));
    }
    // If a snapshot was taken after the end of the log, it contains entries that the log lacks.
    if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.state.seq > seq) {
        return Ok(Err(IntegrityError::Snapshot(snapshot.state.seq)));
    }
    if head.seq == seq && head.hash == hash {
        Ok(Ok(head))
    } else {
        Ok(Err(IntegrityError::Missing(seq + 1)))
    }
}

/// Checks that an entry directly follows entry `after`. `hash` is the chain hash of entry `after`.
fn check_entry(stored: &Stored, after: u64, hash: Hash) -> Option<IntegrityError> {
    let seq = stored.seq;
    if seq != after + 1 {
        return Some(IntegrityError::Missing(after + 1));
    }
    if hash.then(seq, &stored.bytes) != stored.hash {
        return Some(IntegrityError::Changed(seq));
    }
    match stored.entry() {
        Ok(entry) if entry.seq == seq => None,
        Ok(entry) => {
            let why = format!("its number is {}", entry.seq);
            Some(IntegrityError::Unreadable { seq, why })
        }
        Err(err) => Some(IntegrityError::Unreadable { seq, why: err.to_string() }),
    }
}
