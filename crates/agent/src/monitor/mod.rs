//! The brain's loop: one thread takes what collectors saw, asks the engine, writes, and only then shows.
//!
//! ```text
//! channel ─ drain ─> Batch ─ Engine::observe ─> changes ─ hold (counts: once a second) ─> Journal ─ fsync ─┐
//!    ^ bounded: the kernel keeps what does not fit                                  sink <─ Published <────┘
//! ```

mod intake;
mod inventory;
mod kernel;
mod message;
mod pending;
mod self_monitor;
mod show;
mod sink_forwarder;
mod xid_dedup;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_fleet::health::{Batch, Change, Coverage, Engine, Moment, Rules};
use jiff::Timestamp;

use crate::config::Config;
use crate::failpoint::{Failpoint, Point};
use crate::jobs::JobRegistry;
use crate::journal::Journal;
use crate::orders::{RepairWatch, repair_note};
use crate::state::{Cost, Published, Values};
use kernel::KernelReader;
use pending::Pending;
use self_monitor::{SelfMonitor, WriteError};
use sink_forwarder::SinkForwarder;
use xid_dedup::XidDedup;

pub use inventory::Inventory;
pub use message::{
    Collector, CollectorMessage, ConfigRejected, Held, NvmlUnavailable, Report, SkippedCheck,
};
pub use self_monitor::{CollectorState, CoverageLoss};

/// The agent looks at itself this often.
const TICK_MS: i64 = 1000;

/// Messages that are taken into one batch at most: a flood must not keep the tick waiting.
const BATCH_MAX: usize = 2048;

/// The time, and what the process has used.
pub trait Clock: Send {
    /// Now.
    fn now(&self) -> Moment;
    /// Processor time and memory of this process.
    fn cost(&self) -> (u64, Option<u64>);
}

/// What does not change while the agent runs.
#[derive(Debug, Clone)]
pub struct Place {
    /// The node's name.
    pub hostname: String,
    /// The boot.
    pub boot: String,
    /// When the node started, where its log does not go by this machine's clock.
    pub node_started: Option<Timestamp>,
}

/// The brain and all that only it touches.
pub struct HealthMonitor {
    clock: Box<dyn Clock>,
    engine: Engine,
    journal: Journal,
    passing: SinkForwarder,
    kernel: KernelReader,
    inventory: Inventory,
    own: SelfMonitor,
    told: XidDedup,
    pending: Pending,
    published: Published,
    board: Arc<JobRegistry>,
    crash: Failpoint,
    place: Place,
    config: Config,
    started: Moment,
    /// The next turn is the last.
    leaving: bool,
    values: Values,
    shown_values: Arc<Values>,
    coverage: Arc<Coverage>,
    unseen: Option<Arc<Vec<SkippedCheck>>>,
    cost: Cost,
    ticks: u64,
    facts: &'static FactSet,
    /// When the last repair by hand was told that the engine knows of.
    repaired: Option<Timestamp>,
    repair_watch: Option<RepairWatch>,
}

/// What a brain is made of.
pub struct Parts {
    pub clock: Box<dyn Clock>,
    /// The rules in force.
    pub rules: Rules,
    /// The journal.
    pub journal: Journal,
    /// The GPUs that this boot has shown.
    pub inventory: Inventory,
    /// Where snapshots go.
    pub published: Published,
    /// Jobs.
    pub board: Arc<JobRegistry>,
    /// Where to die.
    pub crash: Failpoint,
    pub place: Place,
    /// The configuration.
    pub config: Config,
    /// The facts.
    pub facts: &'static FactSet,
    /// Where repairs by hand are looked for that another process notes; none where this one carries
    /// out orders, and sends [`Seen::Repaired`].
    pub repair_watch: Option<RepairWatch>,
}

impl HealthMonitor {
    /// A brain that goes on where the journal ends.
    pub fn new(parts: Parts) -> Self {
        let Parts {
            clock,
            rules,
            journal,
            inventory,
            published,
            board,
            crash,
            place,
            config,
            facts,
            repair_watch,
        } = parts;
        let now = clock.now();
        let mut engine = Engine::new(rules, decode_facts(facts).clone());
        engine.know(inventory.gpus(), &inventory.left());
        let fold = journal.durable();
        let note = repair_note::read(&config.state_dir);
        let mut saved = fold.saved();
        saved.remembered.retain(|it| note.as_ref().is_none_or(|note| it.at > note.at));
        let mut changes = engine.restore(saved, &place.boot, now);
        // The agent may have been killed before it was in the journal what the repair ended.
        if let Some(note) = &note {
            changes.extend(engine.repaired(note.at, &note.what, now));
        }
        let after = fold.kernel_cursor(&place.boot);
        let kernel = KernelReader::new(decode_facts(facts), &place.boot, place.node_started, after);
        let mut pending = Pending::default();
        pending.add(changes, Vec::new());
        board.counted(now, inventory.gpus());
        // Jobs that connect to an agent that was started anew hear of what stands.
        for finding in engine.findings() {
            board.finding(now, finding, None);
        }
        let passing = SinkForwarder::new(config.sink.file.clone(), fold.seq);
        let mut own = SelfMonitor::new(&config, now);
        if !journal.is_open() {
            own.writable = Err(WriteError::NotOpen);
        }
        Self {
            own,
            told: XidDedup::default(),
            engine,
            journal,
            passing,
            kernel,
            inventory,
            pending,
            published,
            board,
            crash,
            place,
            config,
            started: now,
            leaving: false,
            values: Values::default(),
            shown_values: Arc::default(),
            coverage: Arc::default(),
            unseen: None,
            cost: Cost::default(),
            ticks: 0,
            clock,
            facts,
            repaired: note.map(|note| note.at),
            repair_watch,
        }
    }

    /// Runs until it is told to stop or everybody has gone.
    pub fn run(mut self, inbox: &Receiver<CollectorMessage>) {
        let mut next_ms = self.clock.now().steady_ms;
        let mut messages = Vec::new();
        let mut going = true;
        while going {
            let left_ms = next_ms - self.clock.now().steady_ms;
            let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
            match inbox.recv_timeout(left) {
                Ok(first) => {
                    messages.push(first);
                    messages.extend(inbox.try_iter().take(BATCH_MAX - 1));
                }
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => going = false,
            }
            going &= !messages.iter().any(|seen| matches!(seen, CollectorMessage::Stop));
            let now = self.clock.now();
            let tick = now.steady_ms >= next_ms || !going;
            if tick {
                next_ms = now.steady_ms + TICK_MS;
            }
            self.leaving = !going;
            self.turn(now, messages.drain(..), tick);
        }
        tracing::info!(seq = self.journal.durable().seq, "stopped");
    }

    /// One turn: everything between an observation and its sinks, in this order.
    pub(crate) fn turn(
        &mut self,
        now: Moment,
        messages: impl Iterator<Item = CollectorMessage>,
        tick: bool,
    ) {
        let mut batch = Batch::default();
        let saw = self.own.sees();
        self.look_at_clock(now);
        for seen in messages {
            self.take(now, seen, &mut batch);
        }
        self.take_told(now, &mut batch);
        if tick {
            self.look_at_itself(now, &mut batch);
        }
        if batch != Batch::default() {
            let has_kernel = !batch.kernel.is_empty();
            self.crash.reach_with(Point::Observed, has_kernel);
            let decision = self.engine.observe(now, &batch);
            self.crash.reach_with(Point::Decided, has_kernel);
            self.pending.add(decision.changes, decision.remembered);
        }
        let changed = self.write(now);
        // That something is not seen any more is as much news as a finding.
        let whole = tick || saw != self.own.sees();
        if whole || changed {
            self.publish(now, whole);
            if changed {
                self.crash.reach(Point::Published);
            }
        }
        self.passing.pass_on(now, &self.journal);
        if changed {
            self.crash.reach(Point::Sunk);
        }
    }

    /// Brings to disk what is due. Says whether something new is there.
    fn write(&mut self, now: Moment) -> bool {
        // A disk that refuses is not asked with every line of a storm.
        let may_ask = self.own.writable.is_ok() || self.pending.may_retry(now);
        let due =
            may_ask && (self.pending.is_due(now, self.journal.durable()) || self.is_rest_due(now));
        if due {
            let (changes, remembered) = self.pending.take();
            let cursor = self.kernel.cursor();
            // A checkpoint is more urgent than a record, and a disk that hangs may never take it. Each change is told once,
            // whatever becomes of the record.
            for change in &changes {
                self.tell_jobs(change);
            }
            let told = self.engine.take_told();
            self.journal.note(now.wall, &self.place.boot, cursor, changes, remembered, told);
        }
        if !due && (self.journal.waiting() == 0 || !self.pending.may_retry(now)) {
            return false;
        }
        self.pending.tried(now);
        match self.journal.flush(now.wall, &self.crash) {
            Ok(records) => {
                if self.own.writable.is_err() {
                    tracing::info!("findings can be written again");
                }
                self.own.writable = Ok(());
                for change in records.iter().flat_map(|record| &record.changes) {
                    log(change);
                }
                self.passing.keep(records);
            }
            Err(err) => {
                if self.own.writable.is_ok() {
                    tracing::error!(why = %err, "findings cannot be written to disk");
                }
                self.own.writable = Err(err.into());
            }
        }
        due
    }

    /// Whether only the place in the kernel log is to be written, or at the end what the driver told of recovery.
    fn is_rest_due(&self, now: Moment) -> bool {
        let cursor = self.kernel.cursor();
        let moved =
            cursor.is_some() && cursor != self.journal.durable().kernel_cursor(&self.place.boot);
        let is_place_due = moved && (self.leaving || self.pending.is_place_due(now, self.started));
        is_place_due || self.leaving && self.engine.has_told()
    }

    fn tell_jobs(&self, change: &Change) {
        let finding = change.finding();
        if matches!(change, Change::Cleared(_)) {
            self.board.cleared(finding);
        } else {
            self.board.finding(self.clock.now(), finding, self.values.processes.as_deref());
        }
    }

    fn reload(&mut self, now: Moment, config: &Config) {
        // The file was checked when it was read.
        let Ok(rules) = Rules::configured(&config.rules) else { return };
        self.own.config = Ok(());
        let changes = self.engine.reconfigure(rules, now);
        self.pending.add(changes, Vec::new());
        self.journal.retain(config.retention);
        self.passing.reload(config.sink.file.clone(), now, &self.journal);
        self.config = config.clone();
    }
}

/// One line in the log for each change that people care about.
fn log(change: &Change) {
    let finding = change.finding();
    let (code, subject, severity) = (&finding.code, &finding.subject, finding.severity);
    let id = finding.id;
    match change {
        Change::Opened(_) => {
            tracing::warn!(id, %code, %subject, %severity, action = %finding.action, detail = %finding.detail, "opened");
        }
        Change::Cleared(_) => tracing::info!(id, %code, %subject, "cleared"),
        Change::Updated(_) => {
            tracing::debug!(id, %code, %subject, count = finding.count, "updated");
        }
    }
}

/// An error with its causes, once, at the edge.
pub struct Chain<'e>(pub &'e dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(err) = cause {
            write!(formatter, ": {err}")?;
            cause = err.source();
        }
        Ok(())
    }
}

fn decode_facts(facts: &'static FactSet) -> &'static farrier_facts::xid::XidFacts {
    &facts.xids
}

#[cfg(test)]
mod tests;
