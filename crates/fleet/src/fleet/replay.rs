//! The log again, from its beginning: the same inputs must lead to the same decisions and the same state, where this version of the logic
//! decided on them.

use std::collections::BTreeSet;

use super::decide::{LOGIC_VERSION, decide};
use super::event::{Entry, Event};
use super::state::FleetState;

/// A log that is read again.
#[derive(Debug, Default)]
pub struct Replay {
    state: FleetState,
    batch: Vec<Entry>,
    not_rederived: u64,
}

/// Where the log says something else than would be decided.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the batch at entry {batch} holds other decisions than its inputs lead to")]
pub struct Divergence {
    /// The batch.
    pub batch: u64,
    /// What would be decided on its inputs.
    pub decided: Vec<Event>,
    /// What the log says was decided.
    pub recorded: Vec<Event>,
}

impl Replay {
    /// From a state on, which an archive leads to.
    pub fn on(state: FleetState) -> Self {
        Self { state, batch: Vec::new(), not_rederived: 0 }
    }

    /// The state, with all that was taken in.
    pub fn settled(&mut self) -> Result<&FleetState, Box<Divergence>> {
        self.judge()?;
        Ok(&self.state)
    }

    /// Goes on from a state instead of its own: the one that the next log begins with.
    #[must_use]
    pub fn go_on_from(self, state: FleetState) -> Self {
        Self { state, ..self }
    }

    /// Entries of batches that another version of the logic decided: they are folded, and not decided on again.
    pub fn not_rederived(&self) -> u64 {
        self.not_rederived
    }

    /// Takes the next entry. What was decided is judged when its batch is whole.
    pub fn take(&mut self, entry: Entry) -> Result<(), Box<Divergence>> {
        let begins = self.batch.first().is_some_and(|first| first.batch != entry.batch);
        if begins {
            self.judge()?;
        }
        self.batch.push(entry);
        Ok(())
    }

    /// The state at the end of the log.
    pub fn finish(mut self) -> Result<FleetState, Box<Divergence>> {
        self.judge()?;
        Ok(self.state)
    }

    fn judge(&mut self) -> Result<(), Box<Divergence>> {
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
        let same = decided.len() == recorded.len()
            && decided.iter().zip(&recorded).all(|(event, entry)| *event == entry.event);
        if !same {
            let recorded = recorded.into_iter().map(|entry| entry.event).collect();
            return Err(Box::new(Divergence { batch, decided, recorded }));
        }
        for entry in &recorded {
            self.state.apply(entry);
        }
        Ok(())
    }
}
