//! Changes of findings that the engine has decided, and that are not in the journal yet.
//!
//! A change that only says that a finding recurred is written at most once a second. Ten thousand
//! Xid lines per second therefore become one record per second. A write takes all pending changes
//! and stores the kernel log cursor with them. The records up to this one therefore contain all
//! changes that were caused by log lines up to the cursor.

use farrier_fleet::health::{Change, Finding, Moment};

use crate::journal::DurableState;
use farrier_fleet::health::StoredEvent;

/// Minimum time between the last write and a write that has only recurrences or stored events. Also
/// the minimum time between a failed write and its retry.
const WAIT_MS: i64 = 1000;

/// How often the kernel log cursor is written if the cursor has moved but no finding has changed.
/// Without this, the stored cursor of a healthy node with a busy log could point to a line that the
/// kernel has overwritten. After a restart, the agent would then report lines as lost although it
/// had read them.
const CURSOR_MS: i64 = 300_000;

#[derive(Debug, Default)]
pub(super) struct UnwrittenChanges {
    changes: Vec<Change>,
    stored_events: Vec<StoredEvent>,
    /// When a write was last attempted, with or without success. `None` before the first attempt.
    written_ms: Option<i64>,
}

impl UnwrittenChanges {
    /// Adds changes. An update replaces a pending update of the same finding.
    pub(super) fn add(&mut self, changes: Vec<Change>, stored_events: Vec<StoredEvent>) {
        for change in changes {
            let id = change.finding().id;
            let before = self.changes.iter_mut().find(|waiting| waiting.finding().id == id);
            match (before, change) {
                // The journal does not have the opening yet, so write the opening with the updated
                // content.
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

    /// `true` if the pending changes must be written now. Mere recurrences and stored events wait
    /// for [`WAIT_MS`].
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

    /// `true` if the kernel log cursor has to be written now, in a record without changes. The
    /// caller has checked that the cursor moved.
    pub(super) fn is_cursor_due(&self, now: Moment, started: Moment) -> bool {
        now.steady_ms - self.written_ms.unwrap_or(started.steady_ms) >= CURSOR_MS
    }

    /// `true` if [`WAIT_MS`] have passed since a write was last attempted.
    pub(super) fn may_retry(&self, now: Moment) -> bool {
        self.written_ms.is_none_or(|written| now.steady_ms - written >= WAIT_MS)
    }

    /// Remembers when a write was attempted.
    pub(super) fn record_attempt(&mut self, now: Moment) {
        self.written_ms = Some(now.steady_ms);
    }

    /// Takes all pending changes and events, to write them now.
    pub(super) fn take(&mut self) -> (Vec<Change>, Vec<StoredEvent>) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.stored_events))
    }
}

/// `true` if the severity, the action, the source of the action and `cleared` are the same. Other
/// fields may differ, because a recurrence changes the count, the times and the evidence.
pub(super) fn is_mere_recurrence(before: &Finding, after: &Finding) -> bool {
    (before.severity, before.action, before.action_by, &before.cleared)
        == (after.severity, after.action, after.action_by, &after.cleared)
}
