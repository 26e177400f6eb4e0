//! Changes that are decided but not yet in the journal.
//!
//! A finding that only recurred is written at most once a second: ten thousand Xid lines a second
//! become one record a second. Each write takes everything pending, so that a record always agrees
//! with the kernel log cursor stored in it.

use farrier_fleet::health::{Change, Finding, Moment};

use crate::journal::DurableState;
use farrier_fleet::health::StoredEvent;

/// How long a recurrence may wait for its write, and the retry interval after a failed write.
const WAIT_MS: i64 = 1000;

/// How often a moved kernel log cursor is written when there are no findings. Without this, an
/// agent that restarts on a healthy node with a busy log would report lines as lost that it had
/// already read.
const CURSOR_MS: i64 = 300_000;

#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: Vec<Change>,
    stored_events: Vec<StoredEvent>,
    /// Time of the last write or attempt.
    written_ms: Option<i64>,
}

impl Pending {
    /// Adds changes, merging those of the same finding into the newest state.
    pub(super) fn add(&mut self, changes: Vec<Change>, stored_events: Vec<StoredEvent>) {
        for change in changes {
            let id = change.finding().id;
            let before = self.changes.iter_mut().find(|waiting| waiting.finding().id == id);
            match (before, change) {
                // Opened and updated before the first write: it opens with the newest state.
                (Some(waiting @ Change::Opened(_)), Change::Updated(finding)) => {
                    *waiting = Change::Opened(finding);
                }
                (Some(waiting @ Change::Updated(_)), change @ Change::Updated(_)) => {
                    *waiting = change;
                }
                (_, change) => self.changes.push(change),
            }
        }
        self.stored_events.extend(stored_events);
    }

    pub(super) fn is_due(&self, now: Moment, durable: &DurableState) -> bool {
        if self.changes.is_empty() && self.stored_events.is_empty() {
            return false;
        }
        let is_recurrence = |change: &Change| match change {
            Change::Updated(finding) => {
                let stored = durable.open.get(&finding.id);
                stored.is_some_and(|stored| is_mere_recurrence(stored, finding))
            }
            Change::Opened(_) | Change::Cleared(_) => false,
        };
        !self.changes.iter().all(is_recurrence) || self.may_retry(now)
    }

    /// `true` if a moved kernel log cursor is worth a record of its own.
    pub(super) fn is_cursor_due(&self, now: Moment, started: Moment) -> bool {
        now.steady_ms - self.written_ms.unwrap_or(started.steady_ms) >= CURSOR_MS
    }

    /// `true` if the retry interval has passed.
    pub(super) fn may_retry(&self, now: Moment) -> bool {
        self.written_ms.is_none_or(|written| now.steady_ms - written >= WAIT_MS)
    }

    /// Records a write attempt.
    pub(super) fn record_attempt(&mut self, now: Moment) {
        self.written_ms = Some(now.steady_ms);
    }

    /// Takes everything pending, to write it now.
    pub(super) fn take(&mut self) -> (Vec<Change>, Vec<StoredEvent>) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.stored_events))
    }
}

/// `true` if two states of a finding differ only in count, time or process.
pub(super) fn is_mere_recurrence(before: &Finding, after: &Finding) -> bool {
    (before.severity, before.action, before.action_by, &before.cleared)
        == (after.severity, after.action, after.action_by, &after.cleared)
}
