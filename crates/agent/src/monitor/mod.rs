//! The health monitor's loop: one thread takes collector messages, runs the rule engine, writes the
//! journal, and only then publishes.
//!
//! ```text
//! channel ─ drain ─> Batch ─ Engine::observe ─> changes ─ pending (≤ 1/s) ─> Journal ─ fsync ─┐
//!    ^ bounded: the kernel buffers the overflow                          sink <─ Published <──┘
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

/// Interval of self-monitoring and of full snapshots.
const TICK_MS: i64 = 1000;

/// Maximum messages in one batch, so that a flood cannot delay the tick.
const BATCH_MAX: usize = 2048;

/// Time and the resource usage of this process.
pub trait Clock: Send {
    fn now(&self) -> Moment;
    /// CPU time and resident memory of this process.
    fn cost(&self) -> (u64, Option<u64>);
}

/// Identity of the node. Constant while the agent runs.
#[derive(Debug, Clone)]
pub struct Place {
    pub hostname: String,
    /// The kernel's boot id.
    pub boot: String,
    /// Boot time of the node, if its kernel log does not use this machine's clock.
    pub node_started: Option<Timestamp>,
}

/// The health monitor. Its thread is the only one that touches these fields.
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
    /// The next turn is the last one.
    leaving: bool,
    values: Values,
    shown_values: Arc<Values>,
    coverage: Arc<Coverage>,
    unseen: Option<Arc<Vec<SkippedCheck>>>,
    cost: Cost,
    ticks: u64,
    facts: &'static FactSet,
    /// Time of the last manual repair that the engine knows.
    repaired: Option<Timestamp>,
    repair_watch: Option<RepairWatch>,
}

pub struct Parts {
    pub clock: Box<dyn Clock>,
    pub rules: Rules,
    pub journal: Journal,
    /// GPUs seen since this boot.
    pub inventory: Inventory,
    pub published: Published,
    pub board: Arc<JobRegistry>,
    /// Where a test makes the agent crash.
    pub crash: Failpoint,
    pub place: Place,
    pub config: Config,
    pub facts: &'static FactSet,
    /// Watches for repair notes that another process writes. `None` if this process executes
    /// orders: it then sends [`CollectorMessage::Repaired`].
    pub repair_watch: Option<RepairWatch>,
}

impl HealthMonitor {
    /// Resumes from the state that the journal holds.
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
        // The previous agent may have died before it journaled the findings that the repair
        // cleared.
        if let Some(note) = &note {
            changes.extend(engine.repaired(note.at, &note.what, now));
        }
        let after = fold.kernel_cursor(&place.boot);
        let kernel = KernelReader::new(decode_facts(facts), &place.boot, place.node_started, after);
        let mut pending = Pending::default();
        pending.add(changes, Vec::new());
        board.counted(now, inventory.gpus());
        // Jobs that connect after a restart also get the findings that are still open.
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

    /// Runs until `Stop` arrives or every sender is gone.
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

    /// One turn: every step from an observation to its sinks, in order.
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
        // Losing or regaining NVML or the kernel log is published at once, like a finding.
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

    /// Writes what is due. Returns whether new records are on disk.
    fn write(&mut self, now: Moment) -> bool {
        // After a failed write, retry on a timer and not with every line of a storm.
        let may_ask = self.own.writable.is_ok() || self.pending.may_retry(now);
        let due =
            may_ask && (self.pending.is_due(now, self.journal.durable()) || self.is_rest_due(now));
        if due {
            let (changes, remembered) = self.pending.take();
            let cursor = self.kernel.cursor();
            // Tell jobs before the write: a checkpoint is more urgent than a record, and a hung
            // disk may never return. Each change is sent once, even if its record fails.
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

    /// Whether a record is due without findings: for a kernel log cursor that moved, or at shutdown
    /// for the driver's recovery reports.
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
        // `config::read` has already validated the rules.
        let Ok(rules) = Rules::configured(&config.rules) else { return };
        self.own.config = Ok(());
        let changes = self.engine.reconfigure(rules, now);
        self.pending.add(changes, Vec::new());
        self.journal.retain(config.retention);
        self.passing.reload(config.sink.file.clone(), now, &self.journal);
        self.config = config.clone();
    }
}

/// Logs one line for each change of interest to an operator.
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

/// Formats an error with its chain of sources.
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
