//! The state machine applies inputs and decides on them. They are durable when
//! [`StateMachine::commit`] returns.

use std::collections::BTreeSet;
use std::path::Path;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Decision, Entry, Event, FleetState, LOGIC_VERSION, Report, decide};
use jiff::Timestamp;

use crate::log::sqlite::SqliteLog;
use crate::log::{
    Appended, Damage, Hash, Head, Integrity, Log, LogError, RecordedHead, Snapshot, SnapshotWriter,
};

/// Number of entries per read while the state is computed from the log.
const PAGE_ENTRIES: usize = 8192;

pub struct StateMachine {
    state: FleetState,
    head: Head,
    log: Box<dyn Log + Send>,
    damage: Damage,
}

/// Whether the state can be computed from a snapshot. Returns false if the snapshot is older than
/// the last archived entry (the log's anchor): the entries that would have to be applied to it are
/// no longer in the log. Also returns false for a snapshot at entry 0, which saves nothing. Fails if
/// the snapshot contains entries that the log lacks: the log is then an older copy or another log.
fn is_snapshot_of(log: &dyn Log, snapshot: &Snapshot) -> Result<bool, LogError> {
    let (snapshot_seq, found) = (snapshot.state.seq, log.head()?.seq);
    match hash_at(log, snapshot_seq)? {
        Some(hash) if hash == snapshot.hash => Ok(snapshot_seq > 0),
        None if snapshot_seq < log.anchor()?.seq => Ok(false),
        Some(_) | None => Err(LogError::OlderThanSnapshot { snapshot: snapshot_seq, found }),
    }
}

/// The hash at an entry or at the anchor. `None` if the log does not have this entry.
fn hash_at(log: &dyn Log, seq: u64) -> Result<Option<Hash>, LogError> {
    let anchor = log.anchor()?;
    if anchor.seq == seq {
        return Ok(Some(anchor.hash));
    }
    let Some(before) = seq.checked_sub(1) else { return Ok(None) };
    let entries = log.read(before, 1)?;
    Ok(entries.first().filter(|entry| entry.seq == seq).map(|entry| entry.hash))
}

/// Checks that the log has the last acknowledged entry. The log may have later entries: they were
/// never acknowledged, because a crash came between the append and the write of the head file.
pub fn check_acknowledged(log: &dyn Log) -> Result<(), LogError> {
    let Some(recorded) = log.recorded_head()? else { return Ok(()) };
    let found = log.head()?.seq;
    if found < recorded.seq {
        return Err(LogError::Truncated { recorded: recorded.seq, found });
    }
    match hash_at(log, recorded.seq)? {
        Some(hash) if hash != recorded.hash => Err(LogError::Replaced(recorded.seq)),
        // The result `None` means that the entry was archived.
        _ => Ok(()),
    }
}

/// Computes the state from the log, starting with the latest snapshot.
fn fold(log: &dyn Log) -> Result<FleetState, LogError> {
    let state = match log.latest_snapshot()? {
        Some(snapshot) if is_snapshot_of(log, &snapshot)? => snapshot.state,
        _ => log.base_state()?,
    };
    fold_rest(log, state)
}

/// Applies all entries that follow `state`.
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

/// Returns the state of the log at `path`. A server may be running.
pub fn state_at(path: &Path) -> Result<FleetState, LogError> {
    fold(&SqliteLog::open_to_read(path)?)
}

/// The result of a commit.
#[derive(Debug, Default)]
pub struct Committed {
    /// The inputs, followed by the decisions.
    pub entries: Vec<Entry>,
    /// Encoded size of each entry.
    pub entry_bytes: Vec<usize>,
    /// The deferred actions, and why they have to wait.
    pub report: Report,
}

/// A log whose integrity was checked, at least in part, and whose state was computed. No entry,
/// epoch or head was written yet.
pub struct CheckedLog {
    state: FleetState,
    log: Box<dyn Log + Send>,
}

impl CheckedLog {
    /// Checks a log and computes its state from the latest snapshot. Fails if the log is damaged,
    /// truncated or replaced.
    pub fn new(log: Box<dyn Log + Send>) -> Result<Self, LogError> {
        if log.check_integrity()? == Integrity::Partial {
            tracing::warn!("the log is large: the integrity check covered only its first part");
        }
        check_acknowledged(&*log)?;
        let state = fold(&*log)?;
        Ok(Self { state, log })
    }

    pub fn state(&self) -> &FleetState {
        &self.state
    }

    /// Whether the log has entry `seq` with this hash. Returns true for an archived entry, because
    /// the hash of such an entry is no longer known.
    pub fn contains(&self, seq: u64, hash: Hash) -> Result<bool, LogError> {
        Ok(match hash_at(&*self.log, seq)? {
            Some(found) => found == hash,
            None => seq < self.log.anchor()?.seq,
        })
    }

    /// Makes this process the writer of the log, with a new epoch.
    pub fn take_over(self) -> Result<StateMachine, LogError> {
        let Self { state, mut log } = self;
        let epoch = log.take_over()?;
        // The previous writer may have appended entries after the state was computed.
        let state = fold_rest(&*log, state)?;
        let head = Head { epoch, ..log.head()? };
        let mut state_machine = StateMachine { state, head, log, damage: Damage::default() };
        state_machine.acknowledge()?;
        Ok(state_machine)
    }
}

impl StateMachine {
    pub fn open(log: Box<dyn Log + Send>) -> Result<Self, LogError> {
        CheckedLog::new(log)?.take_over()
    }

    /// Records the head in the head file. This has to happen before any entry is acknowledged.
    fn acknowledge(&mut self) -> Result<(), LogError> {
        let Head { seq, hash, .. } = self.head;
        self.log.record_head(&RecordedHead { seq, hash, access: self.state.access })
    }

    pub fn state(&self) -> &FleetState {
        &self.state
    }

    pub fn head(&self) -> Head {
        self.head
    }

    /// A handle for readers to report damage. Commits fail after a report.
    pub fn damage(&self) -> Damage {
        self.damage.clone()
    }

    /// Applies one batch and decides on it. When this function returns, the inputs and the
    /// decisions are durable.
    ///
    /// After an error, the state may be ahead of the log, and the state machine has to be opened
    /// again.
    pub fn commit(
        &mut self,
        inputs: Vec<(Actor, Event)>,
        now: Timestamp,
    ) -> Result<Committed, LogError> {
        self.damage.check()?;
        // Log time goes back only with an entry that records the clock step.
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

    /// Writes a snapshot. The next start then applies only the entries after the snapshot.
    pub fn write_snapshot(&self) -> Result<(), LogError> {
        self.log.write_snapshot(&self.snapshot())
    }

    /// A snapshot and a writer for it. Writing is slow, so the caller moves the snapshot and the
    /// writer to another thread.
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
