//! Changes that are decided and not in the journal yet.
//!
//! A finding whose only news is that it happened again is written at most once a second: ten thousand Xid
//! lines a second are one record a second. Whatever is written takes all that waits along, so that a record
//! always agrees with the place in the kernel log that stands in it.

use farrier_fleet::health::{Change, Finding, Moment};

use crate::journal::Fold;
use farrier_fleet::health::Remembered;

/// How long a mere count may wait, and how often a disk that refused is tried again.
const WAIT_MS: i64 = 1000;

/// A place in the kernel log that moved is written this often although nothing was found: an agent that starts again
/// on a quiet node with a busy log would otherwise miss lines that it has seen.
const PLACE_MS: i64 = 300_000;

#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: Vec<Change>,
    remembered: Vec<Remembered>,
    /// When something was last written, or tried.
    written_ms: Option<i64>,
}

impl Pending {
    /// Adds a decision. Of a finding only the newest form is kept.
    pub(super) fn add(&mut self, changes: Vec<Change>, remembered: Vec<Remembered>) {
        for change in changes {
            let id = change.finding().id;
            let before = self.changes.iter_mut().find(|waiting| waiting.finding().id == id);
            match (before, change) {
                // New, and already more of it: it opens in its newest form.
                (Some(waiting @ Change::Opened(_)), Change::Updated(finding)) => {
                    *waiting = Change::Opened(finding);
                }
                (Some(waiting @ Change::Updated(_)), change @ Change::Updated(_)) => {
                    *waiting = change;
                }
                (_, change) => self.changes.push(change),
            }
        }
        self.remembered.extend(remembered);
    }

    /// Whether it is time to write.
    pub(super) fn is_due(&self, now: Moment, durable: &Fold) -> bool {
        if self.changes.is_empty() && self.remembered.is_empty() {
            return false;
        }
        let mere_count = |change: &Change| match change {
            Change::Updated(finding) => {
                durable.open.get(&finding.id).is_some_and(|kept| says_the_same(kept, finding))
            }
            Change::Opened(_) | Change::Cleared(_) => false,
        };
        !self.changes.iter().all(mere_count) || self.may_retry(now)
    }

    /// Whether a place in the kernel log that moved is worth a record of its own.
    pub(super) fn is_place_due(&self, now: Moment, started: Moment) -> bool {
        now.steady_ms - self.written_ms.unwrap_or(started.steady_ms) >= PLACE_MS
    }

    /// Whether the last write is long enough ago.
    pub(super) fn may_retry(&self, now: Moment) -> bool {
        self.written_ms.is_none_or(|written| now.steady_ms - written >= WAIT_MS)
    }

    /// The disk is asked now.
    pub(super) fn tried(&mut self, now: Moment) {
        self.written_ms = Some(now.steady_ms);
    }

    /// Everything that waits, to be written now.
    pub(super) fn take(&mut self) -> (Vec<Change>, Vec<Remembered>) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.remembered))
    }
}

/// Whether two forms of a finding differ in nothing but how often, when and in which process it was last seen.
pub(super) fn says_the_same(left: &Finding, right: &Finding) -> bool {
    (left.severity, left.action, left.action_by, &left.cleared)
        == (right.severity, right.action, right.action_by, &right.cleared)
}
