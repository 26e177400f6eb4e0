//! Last reported recovery signals of the driver. Later values are compared with them, also after an
//! agent restart: tools refuse to reset a GPU that is in use, so most resets happen while the agent
//! is stopped.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::observation::Subject;
use super::super::signal::Signal;
use super::table::Table;

/// A recovery signal, as stored in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastTold {
    /// The GPU, or the node.
    pub subject: Subject,
    pub signal: Signal,
    /// Its last value, truncated to an integer, so that a counter restored from the journal never
    /// appears to have fallen.
    pub value: f64,
}

#[derive(Debug, Default)]
pub(super) struct Told {
    /// The value, and when it was last reported.
    last: BTreeMap<(usize, Signal), (f64, i64)>,
    /// Signals that changed since the last `take_news`.
    news: BTreeSet<(usize, Signal)>,
}

impl Told {
    /// Stores a value, and returns the previous one.
    pub(super) fn insert(
        &mut self,
        place: usize,
        signal: Signal,
        value: f64,
        at_ms: i64,
    ) -> Option<f64> {
        let before = self.last.insert((place, signal), (value, at_ms)).map(|(value, _)| value);
        if before.is_none_or(|before| before.floor().total_cmp(&value.floor()).is_ne()) {
            self.news.insert((place, signal));
        }
        before
    }

    /// The value, and when it was last reported.
    pub(super) fn get(&self, place: usize, signal: Signal) -> Option<(f64, i64)> {
        self.last.get(&(place, signal)).copied()
    }

    pub(super) fn restore(&mut self, kept: Vec<LastTold>, table: &mut Table) {
        for LastTold { subject, signal, value } in kept {
            if let Some(place) = table.place(&subject) {
                // The time is not stored: take it as older than everything known.
                self.last.insert((place, signal), (value, i64::MIN));
            }
        }
    }

    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    pub(super) fn take_news(&mut self, table: &Table) -> Vec<LastTold> {
        let news = std::mem::take(&mut self.news).into_iter();
        let told = news.filter_map(|(place, signal)| {
            let value = self.get(place, signal)?.0.floor();
            Some(LastTold { subject: table.subject(place).clone(), signal, value })
        });
        told.collect()
    }
}
