//! What the driver last told of recovery: what comes after is compared with it, also by an agent that was started anew.
//! Tools refuse to reset a GPU that somebody holds, so that most resets come while the agent is stopped.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::observation::Subject;
use super::super::signal::Signal;
use super::table::Table;

/// A value that tells of recovery, as the journal keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastTold {
    /// The GPU, or the node.
    pub subject: Subject,
    /// Which signal.
    pub signal: Signal,
    /// Its last value, without what is behind the point: a counter that was read back must not seem to have fallen.
    pub value: f64,
}

#[derive(Debug, Default)]
pub(super) struct Told {
    /// The value, and when it was last told.
    last: BTreeMap<(usize, Signal), (f64, i64)>,
    /// Those that changed since they were last taken.
    news: BTreeSet<(usize, Signal)>,
}

impl Told {
    /// Takes a value; the one before it.
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

    /// The value, and when it was last told.
    pub(super) fn get(&self, place: usize, signal: Signal) -> Option<(f64, i64)> {
        self.last.get(&(place, signal)).copied()
    }

    pub(super) fn restore(&mut self, kept: Vec<LastTold>, table: &mut Table) {
        for LastTold { subject, signal, value } in kept {
            if let Some(place) = table.place(&subject) {
                // When is not kept: before everything that is known.
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
