//! The single writer: takes inputs in, decides, and has both on disk before it answers.

use std::collections::BTreeSet;
use std::path::Path;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Decision, Entry, Event, FleetState, Report, decide};
use jiff::Timestamp;

use crate::log::sqlite::SqliteLog;
use crate::log::{Head, Keeper, Log, LogError, Snapshot};

/// Entries folded at once on start.
const PAGE: usize = 8192;

/// The fleet's state with the log behind it.
pub struct Core {
    state: FleetState,
    head: Head,
    log: Box<dyn Log + Send>,
}

/// Whether a state was kept of this log: one of another, or of what a backup lacks, is folded anew.
fn belongs(log: &dyn Log, kept: &Snapshot) -> Result<bool, LogError> {
    let Some(before) = kept.state.seq.checked_sub(1) else { return Ok(false) };
    let entries = log.read(before, 1)?;
    Ok(entries.first().is_some_and(|it| it.seq == kept.state.seq && it.hash == kept.hash))
}

/// The state at the end of a log, from the newest that was kept.
fn folded(log: &dyn Log) -> Result<FleetState, LogError> {
    let mut state = match log.newest()? {
        Some(kept) if belongs(log, &kept)? => kept.state,
        _ => log.beginning()?,
    };
    loop {
        let page = log.read(state.seq, PAGE)?;
        if page.is_empty() {
            return Ok(state);
        }
        for stored in page {
            state.apply(&stored.entry()?);
        }
    }
}

/// The fleet as the log in this file has it. A server may run.
pub fn state_at(path: &Path) -> Result<FleetState, LogError> {
    folded(&SqliteLog::open_to_read(path)?)
}

/// What a commit brought.
#[derive(Debug, Default)]
pub struct Committed {
    /// What is in the log now: the inputs, then what was decided.
    pub entries: Vec<Entry>,
    /// What waits, and for what.
    pub report: Report,
}

impl Core {
    /// Takes the log over and folds it, from the newest state that was kept.
    pub fn open(mut log: Box<dyn Log + Send>) -> Result<Self, LogError> {
        let epoch = log.take_over()?;
        let state = folded(&*log)?;
        let head = Head { epoch, ..log.head()? };
        Ok(Self { state, head, log })
    }

    /// The state, as of the last commit.
    pub fn state(&self) -> &FleetState {
        &self.state
    }

    /// The end of the log.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Takes one batch in and decides on it; both are durable when this returns.
    ///
    /// After an error the state here is ahead of the log: the core must be opened anew.
    pub fn commit(
        &mut self,
        inputs: Vec<(Actor, Event)>,
        now: Timestamp,
    ) -> Result<Committed, LogError> {
        // The log's time goes back only with an entry that says so.
        let at = match inputs.first() {
            Some((_, Event::ClockStepped { to, .. })) => *to,
            _ => now.max(self.state.at),
        };
        let batch = self.state.seq + 1;
        let mut entries = Vec::with_capacity(inputs.len());
        let mut dirty = BTreeSet::new();
        for (by, event) in inputs {
            dirty.extend(self.take_in(&mut entries, batch, at, by, event));
        }
        let Decision { events, report } = decide(&self.state, &dirty, at);
        for event in events {
            self.take_in(&mut entries, batch, at, Actor::Server, event);
        }
        self.head = self.log.append(&self.head, &entries)?;
        Ok(Committed { entries, report })
    }

    /// Keeps the state, so that the next start folds only what comes after it.
    pub fn keep(&self) -> Result<(), LogError> {
        self.log.keep(&self.snapshot())
    }

    /// The state as it is now, and what keeps it: for another thread, because that takes long.
    pub fn keeping(&self) -> (Snapshot, Box<dyn Keeper + Send>) {
        (self.snapshot(), self.log.keeper())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { state: self.state.clone(), hash: self.head.hash }
    }

    fn take_in(
        &mut self,
        entries: &mut Vec<Entry>,
        batch: u64,
        at: Timestamp,
        by: Actor,
        event: Event,
    ) -> BTreeSet<farrier_fleet::fleet::NodeId> {
        let entry = Entry { seq: self.state.seq + 1, batch, at, by, event };
        let dirty = self.state.apply(&entry);
        entries.push(entry);
        dirty
    }
}
