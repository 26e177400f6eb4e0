//! Replays the log. If this version of the decision logic decided a batch, the same inputs must
//! lead to the same decisions and the same state again.

use std::collections::BTreeSet;

use super::decide::{LOGIC_VERSION, decide};
use super::event::{Entry, Event};
use super::state::FleetState;

#[derive(Debug, Default)]
pub struct Replay {
    state: FleetState,
    batch: Vec<Entry>,
    not_rederived: u64,
}

/// A batch whose recorded decisions differ from the replayed ones.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the recorded decisions of the batch at entry {batch} differ from the replayed ones")]
pub struct Divergence {
    pub batch: u64,
    /// The decisions of the replay.
    pub decided: Vec<Event>,
    /// The decisions in the log.
    pub recorded: Vec<Event>,
}

impl Replay {
    /// Starts from a state, such as the state at the end of an archive.
    pub fn from_state(state: FleetState) -> Self {
        Self { state, batch: Vec::new(), not_rederived: 0 }
    }

    /// Checks the last batch, and returns the state after all entries so far.
    pub fn state(&mut self) -> Result<&FleetState, Box<Divergence>> {
        self.check_batch()?;
        Ok(&self.state)
    }

    /// Continues from another state, such as the base snapshot of the next log.
    #[must_use]
    pub fn continue_from(self, state: FleetState) -> Self {
        Self { state, ..self }
    }

    /// The number of entries in batches that another version of the logic decided. The replay
    /// applies these entries, but does not decide on their inputs again.
    pub fn not_rederived(&self) -> u64 {
        self.not_rederived
    }

    /// Applies the next entry. The decisions of a batch are compared when all its entries have been
    /// read.
    pub fn apply(&mut self, entry: Entry) -> Result<(), Box<Divergence>> {
        let starts_batch = self.batch.first().is_some_and(|first| first.batch != entry.batch);
        if starts_batch {
            self.check_batch()?;
        }
        self.batch.push(entry);
        Ok(())
    }

    pub fn finish(mut self) -> Result<FleetState, Box<Divergence>> {
        self.check_batch()?;
        Ok(self.state)
    }

    fn check_batch(&mut self) -> Result<(), Box<Divergence>> {
        let entries = std::mem::take(&mut self.batch);
        let Some(first) = entries.first() else { return Ok(()) };
        let (batch, at) = (first.batch, first.at);
        if entries.iter().any(|entry| entry.logic != LOGIC_VERSION) {
            self.not_rederived += entries.len() as u64;
            for entry in &entries {
                self.state.apply(entry);
            }
            return Ok(());
        }
        let (recorded, inputs): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| entry.event.is_decision());
        let mut dirty = BTreeSet::new();
        for entry in &inputs {
            dirty.extend(self.state.apply(entry));
        }
        let decided = decide(&self.state, &dirty, at).events;
        let is_same = decided.len() == recorded.len()
            && decided.iter().zip(&recorded).all(|(event, entry)| *event == entry.event);
        if !is_same {
            let recorded = recorded.into_iter().map(|entry| entry.event).collect();
            return Err(Box::new(Divergence { batch, decided, recorded }));
        }
        for entry in &recorded {
            self.state.apply(entry);
        }
        Ok(())
    }
}
