//! The loop of the health monitor. One thread handles collector messages, applies the rules and
//! writes the journal. Only after that, it publishes the result.
//!
//! ```text
//! channel ─ drain ─> Batch ─ Engine::observe ─> changes ─ pending (≤ 1/s) ─> Journal ─ fsync ─┐
//!    ^ bounded: the kernel buffers the overflow                          sink <─ Published <──┘
//! ```

mod gap_tracker;
mod handle;
mod inventory;
mod kernel;
mod message;
mod pending;
mod publish;
mod self_monitor;
mod sink_forwarder;
mod xid_dedup;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use farrier_facts::FactSet;
use farrier_facts::decode::PciBridge;
use farrier_fleet::health::{Batch, Change, Coverage, Engine, Moment, Rules};
use jiff::Timestamp;

use crate::config::Config;
use crate::failpoint::{Failpoint, Point};
use crate::jobs::JobRegistry;
use crate::journal::Journal;
use crate::orders::{RepairWatch, repair_note};
use crate::state::{Cost, Published, Values};
use gap_tracker::GapTracker;
use kernel::KernelReader;
use pending::UnwrittenChanges;
use self_monitor::{SelfMonitor, WriteError};
use sink_forwarder::SinkForwarder;
use xid_dedup::XidDedup;

pub use gap_tracker::ObservedGap;
pub use inventory::BootInventory;
pub use message::{
    Collector, CollectorMessage, CollectorReport, ConfigRejected, NvmlUnavailable, OwnedGpuProcess,
    SkippedCheck,
};
pub use self_monitor::{CollectorState, CoverageLoss};

/// Interval at which the agent checks itself and publishes its whole state.
const TICK_MS: i64 = 1000;

/// Maximum number of messages in one batch. Even if very many messages arrive, the tick is not
/// delayed.
const BATCH_MAX: usize = 2048;

/// Time and the resource usage of this process.
pub trait Clock: Send {
    fn now(&self) -> Moment;
    /// CPU time in microseconds and resident memory in bytes of this process.
    fn cost(&self) -> (u64, Option<u64>);
}

/// Identity of the node. Constant while the agent runs.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    pub hostname: String,
    /// The kernel's boot id.
    pub boot: String,
    /// Boot time of the node. Set only if the node's kernel log does not use the clock of this
    /// machine.
    pub node_boot_time: Option<Timestamp>,
}

/// The health monitor. Its thread is the only one that touches these fields.
pub struct HealthMonitor {
    clock: Box<dyn Clock>,
    engine: Engine,
    journal: Journal,
    sink_forwarder: SinkForwarder,
    kernel: KernelReader,
    /// The PCI bridges of the node. Empty while unknown.
    bridges: Vec<PciBridge>,
    inventory: BootInventory,
    self_monitor: SelfMonitor,
    xid_dedup: XidDedup,
    pending: UnwrittenChanges,
    published: Published,
    registry: Arc<JobRegistry>,
    failpoint: Failpoint,
    node: NodeIdentity,
    config: Config,
    started: Moment,
    /// The agent is shutting down, and this turn is the last one.
    stopping: bool,
    values: Values,
    published_values: Arc<Values>,
    coverage: Arc<Coverage>,
    skipped_checks: Option<Arc<Vec<SkippedCheck>>>,
    cost: Cost,
    gap_tracker: GapTracker,
    /// Coverage gaps for the server. `None` while the agent starts.
    gaps: Option<Arc<[ObservedGap]>>,
    ticks: u64,
    facts: &'static FactSet,
    /// Time of the last manual repair that the engine has applied.
    repaired: Option<Timestamp>,
    repair_watch: Option<RepairWatch>,
}

pub struct MonitorParts {
    pub clock: Box<dyn Clock>,
    pub rules: Rules,
    pub journal: Journal,
    /// GPUs enumerated in this boot.
    pub inventory: BootInventory,
    pub published: Published,
    pub registry: Arc<JobRegistry>,
    /// Crashes the agent where a test asks for it.
    pub failpoint: Failpoint,
    pub node: NodeIdentity,
    pub config: Config,
    pub facts: &'static FactSet,
    /// Watches for repair notes that another process writes. `None` if this process executes the
    /// orders, because it then sends [`CollectorMessage::Repaired`].
    pub repair_watch: Option<RepairWatch>,
}

impl HealthMonitor {
    /// Continues with the state that the journal has.
    pub fn new(parts: MonitorParts) -> Self {
        let MonitorParts {
            clock,
            rules,
            journal,
            inventory,
            published,
            registry,
            failpoint,
            node,
            config,
            facts,
            repair_watch,
        } = parts;
        let now = clock.now();
        let mut engine = Engine::new(rules, facts);
        engine.restore_inventory(inventory.gpus(), &inventory.delisted_this_boot());
        let durable = journal.durable();
        let note = repair_note::read(&config.state_dir);
        let mut saved = durable.saved();
        saved.stored_events.retain(|event| note.as_ref().is_none_or(|note| event.at > note.at));
        let mut changes = engine.restore(saved, &node.boot, now);
        // The previous agent process may have ended before it wrote to the journal which findings
        // the repair cleared.
        if let Some(note) = &note {
            changes.extend(engine.apply_manual_repair(note.at, &note.repair, now));
        }
        let after = durable.kernel_cursor(&node.boot);
        let kernel = KernelReader::new(decode_facts(facts), &node.boot, node.node_boot_time, after);
        let mut pending = UnwrittenChanges::default();
        pending.add(changes, Vec::new());
        registry.set_gpus(now, inventory.gpus());
        // Jobs that connect after a restart also get checkpoint requests for open findings.
        for finding in engine.findings() {
            registry.finding(now, finding, None);
        }
        let sink_forwarder = SinkForwarder::new(config.sink.file.clone(), durable.seq);
        let mut self_monitor = SelfMonitor::new(&config, now);
        if !journal.is_open() {
            self_monitor.writable = Err(WriteError::NotOpen);
        }
        Self {
            self_monitor,
            xid_dedup: XidDedup::default(),
            engine,
            journal,
            sink_forwarder,
            kernel,
            bridges: Vec::new(),
            inventory,
            pending,
            published,
            registry,
            failpoint,
            node,
            config,
            started: now,
            stopping: false,
            values: Values::default(),
            published_values: Arc::default(),
            coverage: Arc::default(),
            skipped_checks: None,
            cost: Cost::default(),
            gap_tracker: GapTracker::default(),
            gaps: None,
            ticks: 0,
            clock,
            facts,
            repaired: note.map(|note| note.at),
            repair_watch,
        }
    }

    /// Runs until `Stop` arrives, or until no sender is left.
    pub fn run(mut self, inbox: &Receiver<CollectorMessage>) {
        let mut next_ms = self.clock.now().steady_ms;
        let mut messages = Vec::new();
        let mut running = true;
        while running {
            let wait_ms = next_ms - self.clock.now().steady_ms;
            let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0));
            match inbox.recv_timeout(wait) {
                Ok(first) => {
                    messages.push(first);
                    messages.extend(inbox.try_iter().take(BATCH_MAX - 1));
                }
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => running = false,
            }
            running &= !messages.iter().any(|message| matches!(message, CollectorMessage::Stop));
            let now = self.clock.now();
            let tick = now.steady_ms >= next_ms || !running;
            if tick {
                next_ms = now.steady_ms + TICK_MS;
            }
            self.stopping = !running;
            self.turn(now, messages.drain(..), tick);
        }
        tracing::info!(seq = self.journal.durable().seq, "stopped");
    }

    /// Handles messages. Performs all steps from an observation to its report, in order.
    pub(crate) fn turn(
        &mut self,
        now: Moment,
        messages: impl Iterator<Item = CollectorMessage>,
        tick: bool,
    ) {
        let mut batch = Batch::default();
        let readable = self.self_monitor.readable_sources();
        self.check_clock(now);
        for message in messages {
            self.handle(now, message, &mut batch);
        }
        self.add_nvml_xids(now, &mut batch);
        if tick {
            self.check_self(now, &mut batch);
        }
        if batch != Batch::default() {
            let has_kernel = !batch.kernel.is_empty();
            self.failpoint.reach_with(Point::Observed, has_kernel);
            let decision = self.engine.observe(now, &batch);
            self.failpoint.reach_with(Point::Decided, has_kernel);
            self.pending.add(decision.changes, decision.events_to_store);
        }
        let changed = self.write(now);
        // A change in whether NVML or the kernel log is readable is published at once, like a
        // finding.
        let refresh = tick || readable != self.self_monitor.readable_sources();
        if refresh || changed {
            self.publish(now, refresh);
            if changed {
                self.failpoint.reach(Point::Published);
            }
        }
        self.sink_forwarder.forward(now, &self.journal);
        if changed {
            self.failpoint.reach(Point::Sunk);
        }
    }

    /// Writes pending changes to the journal if they are due. Returns `true` if they were due.
    fn write(&mut self, now: Moment) -> bool {
        // After a failed write, retry after a fixed time. Otherwise every line of a burst of log
        // lines would cause a retry.
        let may_write = self.self_monitor.writable.is_ok() || self.pending.may_retry(now);
        let due = may_write
            && (self.pending.is_due(now, self.journal.durable()) || self.is_housekeeping_due(now));
        if due {
            let (changes, stored_events) = self.pending.take();
            let cursor = self.kernel.cursor();
            // Jobs are notified before the write. A checkpoint is more urgent than a record, and a
            // write to a disk that hangs may never return. Each change is sent once, even if the
            // write of its record fails.
            for change in &changes {
                self.notify_jobs(change);
            }
            let recovery_signals = self.engine.take_recovery_signals();
            let boot = &self.node.boot;
            self.journal.append(now.wall, boot, cursor, changes, stored_events, recovery_signals);
        }
        if !due && (self.journal.waiting() == 0 || !self.pending.may_retry(now)) {
            return false;
        }
        self.pending.record_attempt(now);
        match self.journal.flush(now.wall, &self.failpoint) {
            Ok(records) => {
                if self.self_monitor.writable.is_err() {
                    tracing::info!("findings are written to disk again");
                }
                self.self_monitor.writable = Ok(());
                for change in records.iter().flat_map(|record| &record.changes) {
                    log(change);
                }
                self.sink_forwarder.enqueue(records);
            }
            Err(err) => {
                if self.self_monitor.writable.is_ok() {
                    tracing::error!(%err, "failed to write findings to disk");
                }
                self.self_monitor.writable = Err(err.into());
            }
        }
        due
    }

    /// `true` if a record is due although no finding changed. This is the case if the kernel log
    /// cursor moved, or at shutdown, if recovery signals have to be stored.
    fn is_housekeeping_due(&self, now: Moment) -> bool {
        let cursor = self.kernel.cursor();
        let moved =
            cursor.is_some() && cursor != self.journal.durable().kernel_cursor(&self.node.boot);
        let is_cursor_due =
            moved && (self.stopping || self.pending.is_cursor_due(now, self.started));
        is_cursor_due || self.stopping && self.engine.has_recovery_signals()
    }

    fn notify_jobs(&self, change: &Change) {
        let finding = change.finding();
        if matches!(change, Change::Cleared(_)) {
            self.registry.cleared(finding);
        } else {
            self.registry.finding(self.clock.now(), finding, self.values.processes.as_deref());
        }
    }

    fn reload(&mut self, now: Moment, config: &Config) {
        // `config::read` has already validated the rules.
        let Ok(rules) = Rules::configured(&config.rules) else { return };
        self.self_monitor.config = Ok(());
        let changes = self.engine.reconfigure(rules, now);
        self.pending.add(changes, Vec::new());
        self.journal.set_retention(config.retention);
        self.sink_forwarder.reload(config.sink.file.clone(), now, &self.journal);
        self.config = config.clone();
    }
}

/// Logs one line for each change that operators should see.
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
