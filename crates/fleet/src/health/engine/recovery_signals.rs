//! The last recovery signals that the driver reported. A change of a recovery signal shows that the
//! GPU or the driver was restarted. Later values are compared with the stored ones, even after a
//! restart of the agent. Tools refuse to reset a GPU that is in use, so most resets happen while
//! the agent is stopped.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::observation::Subject;
use super::super::signal::Signal;
use super::table::Table;

/// A recovery signal, as the journal stores it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoverySignal {
    /// A GPU or the node.
    pub subject: Subject,
    pub signal: Signal,
    /// The last value, rounded down. A counter that is restored from the journal therefore never
    /// appears to have fallen.
    pub value: f64,
}

#[derive(Debug, Default)]
pub(super) struct RecoverySignals {
    /// The last value, and when it was reported.
    last: BTreeMap<(usize, Signal), (f64, i64)>,
    /// Signals that changed since the last `take_changed`.
    changed: BTreeSet<(usize, Signal)>,
}

impl RecoverySignals {
    /// Stores a value. Returns the previous one.
    pub(super) fn insert(
        &mut self,
        subject_index: usize,
        signal: Signal,
        value: f64,
        at_ms: i64,
    ) -> Option<f64> {
        let previous =
            self.last.insert((subject_index, signal), (value, at_ms)).map(|(value, _)| value);
        if previous.is_none_or(|previous| previous.floor().total_cmp(&value.floor()).is_ne()) {
            self.changed.insert((subject_index, signal));
        }
        previous
    }

    /// The last value, and when it was reported.
    pub(super) fn get(&self, subject_index: usize, signal: Signal) -> Option<(f64, i64)> {
        self.last.get(&(subject_index, signal)).copied()
    }

    pub(super) fn restore(&mut self, saved: Vec<RecoverySignal>, table: &mut Table) {
        for RecoverySignal { subject, signal, value } in saved {
            if let Some(subject_index) = table.index_or_insert(&subject) {
                // The time is not stored, so treat the value as older than any event.
                self.last.insert((subject_index, signal), (value, i64::MIN));
            }
        }
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(super) fn take_changed(&mut self, table: &Table) -> Vec<RecoverySignal> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let signals = changed.filter_map(|(subject_index, signal)| {
            let value = self.get(subject_index, signal)?.0.floor();
            Some(RecoverySignal { subject: table.subject(subject_index).clone(), signal, value })
        });
        signals.collect()
    }
}
