//! The single writer: takes inputs in, decides, and has both on disk before it answers.

use std::collections::BTreeSet;
use std::path::Path;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Decision, Entry, Event, FleetState, LOGIC_VERSION, Report, decide};
use jiff::Timestamp;

use crate::log::sqlite::SqliteLog;
use crate::log::{
    Appended, Damage, Hash, Head, Integrity, Log, LogError, RecordedHead, Snapshot, SnapshotWriter,
};

/// Entries folded at once on start.
const PAGE_ENTRIES: usize = 8192;

/// The fleet's state with the log behind it.
pub struct StateMachine {
    state: FleetState,
    head: Head,
    log: Box<dyn Log + Send>,
    damage: Damage,
}

/// Whether the log goes on from a state that was kept. One from before the log begins is passed over: what it has seen was archived. One that has
/// seen entries that the log does not have is none of its: the log is an older copy, or another.
fn is_snapshot_of(log: &dyn Log, snapshot: &Snapshot) -> Result<bool, LogError> {
    let (snapshot_seq, found) = (snapshot.state.seq, log.head()?.seq);
    match hash_at(log, snapshot_seq)? {
        Some(hash) if hash == snapshot.hash => Ok(snapshot_seq > 0),
        None if snapshot_seq < log.anchor()?.seq => Ok(false),
        Some(_) | None => Err(LogError::OlderThanSnapshot { snapshot: snapshot_seq, found }),
    }
}

/// The hash at an entry, or where the log begins; none: it is not there.
fn hash_at(log: &dyn Log, seq: u64) -> Result<Option<Hash>, LogError> {
    let anchor = log.anchor()?;
    if anchor.seq == seq {
        return Ok(Some(anchor.hash));
    }
    let Some(before) = seq.checked_sub(1) else { return Ok(None) };
    let entries = log.read(before, 1)?;
    Ok(entries.first().filter(|it| it.seq == seq).map(|it| it.hash))
}

/// Whether the log has what was acknowledged last. It may have more: whoever dies between the log and that record was not answered.
pub fn check_acknowledged(log: &dyn Log) -> Result<(), LogError> {
    let Some(recorded) = log.recorded_head()? else { return Ok(()) };
    let found = log.head()?.seq;
    if found < recorded.seq {
        return Err(LogError::Truncated { recorded: recorded.seq, found });
    }
    match hash_at(log, recorded.seq)? {
        Some(hash) if hash != recorded.hash => Err(LogError::Replaced(recorded.seq)),
        // None: it is in an archive.
        _ => Ok(()),
    }
}

/// The state at the end of a log, from the newest that was kept.
fn fold(log: &dyn Log) -> Result<FleetState, LogError> {
    let state = match log.latest_snapshot()? {
        Some(snapshot) if is_snapshot_of(log, &snapshot)? => snapshot.state,
        _ => log.base_state()?,
    };
    fold_rest(log, state)
}

/// A state with all entries after it.
fn fold_rest(log: &dyn Log, mut state: FleetState) -> Result<FleetState, LogError> {
    loop {
        let page = log.read(state.seq, PAGE_ENTRIES)?;
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
    fold(&SqliteLog::open_to_read(path)?)
}

/// What a commit brought.
#[derive(Debug, Default)]
pub struct Committed {
    /// What is in the log now: the inputs, then what was decided.
    pub entries: Vec<Entry>,
    /// Bytes of each of them in the log.
    pub entry_bytes: Vec<usize>,
    /// What waits, and for what.
    pub report: Report,
}

/// A log that was checked and folded, and to which nothing was written yet: it may still be refused.
pub struct CheckedLog {
    state: FleetState,
    log: Box<dyn Log + Send>,
}

impl CheckedLog {
    /// Checks a log, and folds it from the newest state that was kept. One that is damaged, or is not what it was, is refused.
    pub fn new(log: Box<dyn Log + Send>) -> Result<Self, LogError> {
        if log.check_integrity()? == Integrity::Partial {
            tracing::warn!(
                "the log is so large that only the first part of its database was checked for damage"
            );
        }
        check_acknowledged(&*log)?;
        let state = fold(&*log)?;
        Ok(Self { state, log })
    }

    /// The state at its end.
    pub fn state(&self) -> &FleetState {
        &self.state
    }

    /// Whether the log goes on from an entry with this hash. One that was archived cannot be compared.
    pub fn contains(&self, seq: u64, hash: Hash) -> Result<bool, LogError> {
        Ok(match hash_at(&*self.log, seq)? {
            Some(found) => found == hash,
            None => seq < self.log.anchor()?.seq,
        })
    }

    /// Becomes the log's writer.
    pub fn take_over(self) -> Result<StateMachine, LogError> {
        let Self { state, mut log } = self;
        let epoch = log.take_over()?;
        // Whoever wrote until now may have appended since it was read.
        let state = fold_rest(&*log, state)?;
        let head = Head { epoch, ..log.head()? };
        let mut state_machine = StateMachine { state, head, log, damage: Damage::default() };
        state_machine.acknowledge()?;
        Ok(state_machine)
    }
}

impl StateMachine {
    /// Reads the log and takes it over.
    pub fn open(log: Box<dyn Log + Send>) -> Result<Self, LogError> {
        CheckedLog::new(log)?.take_over()
    }

    /// Writes down where the log ends, before anybody hears of it.
    fn acknowledge(&mut self) -> Result<(), LogError> {
        let Head { seq, hash, .. } = self.head;
        self.log.record_head(&RecordedHead { seq, hash, access: self.state.access })
    }

    /// The state, as of the last commit.
    pub fn state(&self) -> &FleetState {
        &self.state
    }

    /// The end of the log.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Where those who read the log say that it is damaged: nothing is committed from then on.
    pub fn damage(&self) -> Damage {
        self.damage.clone()
    }

    /// Takes one batch in and decides on it; both are durable when this returns.
    ///
    /// After an error the state here is ahead of the log: the state_machine must be opened anew.
    pub fn commit(
        &mut self,
        inputs: Vec<(Actor, Event)>,
        now: Timestamp,
    ) -> Result<Committed, LogError> {
        self.damage.check()?;
        // The log's time goes back only with an entry that says so.
        let at = match inputs.first() {
            Some((_, Event::ClockStepped { to, .. })) => *to,
            _ => now.max(self.state.at),
        };
        let batch = self.state.seq + 1;
        let mut entries = Vec::with_capacity(inputs.len());
        let mut dirty = BTreeSet::new();
        for (by, event) in inputs {
            dirty.extend(self.apply(&mut entries, batch, at, by, event));
        }
        let Decision { events, report } = decide(&self.state, &dirty, at);
        for event in events {
            self.apply(&mut entries, batch, at, Actor::Server, event);
        }
        let Appended { head, entry_bytes } = self.log.append(&self.head, &entries)?;
        self.head = head;
        self.acknowledge()?;
        Ok(Committed { entries, entry_bytes, report })
    }

    /// Keeps the state, so that the next start folds only what comes after it.
    pub fn write_snapshot(&self) -> Result<(), LogError> {
        self.log.write_snapshot(&self.snapshot())
    }

    /// The state as it is now, and what keeps it: for another thread, because that takes long.
    pub fn prepare_snapshot(&self) -> (Snapshot, Box<dyn SnapshotWriter + Send>) {
        (self.snapshot(), self.log.snapshot_writer())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { state: self.state.clone(), hash: self.head.hash }
    }

    fn apply(
        &mut self,
        entries: &mut Vec<Entry>,
        batch: u64,
        at: Timestamp,
        by: Actor,
        event: Event,
    ) -> BTreeSet<farrier_fleet::fleet::NodeId> {
        let (seq, logic) = (self.state.seq + 1, LOGIC_VERSION);
        let entry = Entry { seq, batch, at, by, logic, event };
        let dirty = self.state.apply(&entry);
        entries.push(entry);
        dirty
    }
}
