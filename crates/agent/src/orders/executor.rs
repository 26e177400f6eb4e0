//! Accepts orders, executes them one at a time, and reports their status.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::order::{Order, OrderStatus};
use jiff::Timestamp;

use super::actuator::{Actuator, Inspector};
use super::execute;
use super::journal::{OrderJournal, OrdersError};
#[cfg(test)]
use super::ledger::OrderLedger;
use super::ledger::{ActiveOrder, OrderRecord};
use super::repair_note::RepairNote;
use super::scheduler::{Scheduler, SchedulerError};
use super::submit::{self, OrderAdmission, OrderLimits};
use super::task::OrderTask;
use crate::artifact::{self, Outbox};
use crate::failpoint::{Failpoint, Point};
use crate::status::{ActiveOrderStatus, OrdersStatus};

/// Paths of the node's files and of its NVML library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePaths {
    pub root: PathBuf,
    /// Path of the NVML library. `None` for the library of the system.
    pub nvml: Option<PathBuf>,
}

/// Dependencies and settings of an [`OrderExecutor`].
pub struct ExecutorParts {
    /// Directory of the order journal.
    pub state_dir: PathBuf,
    pub limits: OrderLimits,
    pub actuator: Box<dyn Actuator>,
    pub inspector: Arc<dyn Inspector>,
    pub scheduler: Box<dyn Scheduler>,
    /// This machine's clock.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Polling interval.
    pub poll: Duration,
    pub paths: NodePaths,
    /// Uploads artifacts to the server. `None` if there is no server.
    pub outbox: Option<Outbox>,
    /// Failpoint at which a test makes the agent crash.
    pub crash: Failpoint,
    /// Called when [`OrderExecutor::outstanding`] has a new status.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Called when a repair note is on disk.
    pub repaired: Box<dyn Fn(RepairNote) + Send + Sync>,
}

/// Persists orders, executes them one at a time, and keeps each status until the server
/// acknowledges it.
#[derive(Clone)]
pub struct OrderExecutor {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) state_dir: PathBuf,
    pub(super) limits: OrderLimits,
    pub(super) actuator: Box<dyn Actuator>,
    pub(super) inspector: Arc<dyn Inspector>,
    pub(super) scheduler: Box<dyn Scheduler>,
    pub(super) paths: NodePaths,
    pub(super) outbox: Option<Outbox>,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    pub(super) poll: Duration,
    wake: Box<dyn Fn() + Send + Sync>,
    pub(super) repaired: Box<dyn Fn(RepairNote) + Send + Sync>,
    state: Mutex<OrderState>,
    changed: Condvar,
    stop: AtomicBool,
}

struct OrderState {
    journal: OrderJournal,
    crash: Failpoint,
}

impl OrderExecutor {
    /// Opens the journal. [`Self::spawn`] resumes an order that was accepted but has not ended.
    pub fn open(parts: ExecutorParts) -> Result<Self, OrdersError> {
        let ExecutorParts {
            state_dir,
            limits,
            actuator,
            inspector,
            scheduler,
            now,
            poll,
            paths,
            outbox,
            crash,
            wake,
            repaired,
        } = parts;
        let journal = OrderJournal::open(&state_dir)?;
        if let Some(current) = &journal.ledger().current {
            let (generation, kind) = (current.order.generation, &current.order.kind);
            tracing::info!(generation, %kind, started = current.begun.len(), "resuming order");
        }
        // Remove artifacts of orders that have ended. Without a server, a bundle is the result of
        // its order and is kept.
        if outbox.is_some() {
            let current = journal.ledger().current.as_ref().map(|active| active.order.generation);
            artifact::clear(&state_dir, current);
        }
        let state = Mutex::new(OrderState { journal, crash });
        let inner = Inner {
            state_dir,
            limits,
            actuator,
            inspector,
            scheduler,
            paths,
            outbox,
            now,
            poll,
            wake,
            repaired,
            state,
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Starts the thread that executes orders. It is never joined, because the next agent process
    /// continues an unfinished order.
    pub fn spawn(&self) -> io::Result<()> {
        let executor = self.clone();
        let thread = std::thread::Builder::new().name("orders".to_owned());
        thread.spawn(move || executor.run()).map(drop)
    }

    /// Makes the thread stop before its next step.
    pub fn stop(&self) {
        self.inner.stop.store(true, Ordering::Relaxed);
        drop(self.inner.lock());
        self.inner.changed.notify_all();
    }

    pub fn is_stopping(&self) -> bool {
        self.inner.stop.load(Ordering::Relaxed)
    }

    /// Submits an order. `now` is the time of the server, because leases use that time. If the
    /// result is `Accepted`, the order is on disk. Idempotent: if the same order is submitted
    /// again, it gets the same status.
    pub fn submit(&self, order: &Order, now: Timestamp) -> OrderStatus {
        let boot = self.inner.actuator.boot();
        let mut state = self.inner.lock();
        state.crash.reach(Point::OrderOffered);
        let boot_id = boot.as_ref().map(String::as_str);
        let admission =
            submit::admit(state.journal.ledger(), &self.inner.limits, order, boot_id, now);
        let at = (self.inner.now)();
        let generation = order.generation;
        match admission {
            OrderAdmission::Duplicate(status) => status,
            OrderAdmission::Rejected(reason) => {
                tracing::warn!(generation, kind = %order.kind, %reason, "order refused");
                OrderStatus::Refused { reason }
            }
            OrderAdmission::Refused(reason) => {
                tracing::warn!(generation, kind = %order.kind, %reason, "order refused");
                let status = OrderStatus::Refused { reason };
                let order = Box::new(order.clone());
                let written =
                    state.write(at, OrderRecord::Answered { order, answer: status.clone() });
                written.map_or_else(|err| journal_failed(&err), |()| status)
            }
            OrderAdmission::Accepted => {
                let current = ActiveOrder {
                    order: order.clone(),
                    boot: boot.unwrap_or_default(),
                    accepted: at,
                    skew_ms: i64::try_from(now.duration_since(at).as_millis()).unwrap_or(0),
                    begun: Vec::new(),
                };
                match state.accept(at, current) {
                    Ok(()) => {
                        tracing::info!(generation, kind = %order.kind, reason = %order.reason, "order accepted");
                        let is_only_status = state.journal.ledger().answers.is_empty();
                        drop(state);
                        self.inner.changed.notify_all();
                        // If this order superseded a previous order, the previous order also has a
                        // new status.
                        if !is_only_status {
                            (self.inner.wake)();
                        }
                        OrderStatus::Accepted
                    }
                    Err(err) => journal_failed(&err),
                }
            }
        }
    }

    /// Every status that the server has not acknowledged. This includes the status of the active
    /// order.
    pub fn outstanding(&self) -> Vec<(u64, OrderStatus)> {
        let state = self.inner.lock();
        let ledger = state.journal.ledger();
        let mut statuses: Vec<(u64, OrderStatus)> = ledger
            .answers
            .iter()
            .map(|(generation, status)| (*generation, status.clone()))
            .collect();
        let current = ledger.current.as_ref().map(|active| active.order.generation);
        statuses.extend(current.map(|generation| (generation, OrderStatus::Accepted)));
        statuses
    }

    /// Generation of the last order that was accepted or refused. Only orders with a higher
    /// generation are accepted.
    pub fn last_order(&self) -> u64 {
        self.inner.lock().journal.ledger().generation
    }

    /// Stores the enrolment to which this session belongs. After a new enrolment, generations start
    /// again from one.
    pub fn set_enrolment(&self, enrolment: &str) {
        let mut state = self.inner.lock();
        if state.journal.ledger().enrolment.as_deref() == Some(enrolment) {
            return;
        }
        let (at, last) = ((self.inner.now)(), state.journal.ledger().generation);
        let written = state.write(at, OrderRecord::Enrolled { enrolment: enrolment.to_owned() });
        match written {
            Ok(()) if state.journal.ledger().generation != last => {
                tracing::info!(last, "the node re-enrolled: order generations start over");
            }
            Ok(()) => {}
            // The write is tried again in the next session.
            Err(err) => tracing::warn!(%err, "failed to persist the enrolment"),
        }
    }

    /// The active order, for `farrier status`. `None` while the journal is being written, which
    /// takes long if the disk hangs.
    pub fn status(&self) -> Option<OrdersStatus> {
        let state = match self.inner.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let ledger = state.journal.ledger();
        let active = ledger.current.as_ref().map(|current| ActiveOrderStatus {
            generation: current.order.generation,
            kind: current.order.kind.clone(),
            reason: current.order.reason.to_string(),
            accepted: current.accepted,
            lease_until: current.order.lease_until,
        });
        Some(OrdersStatus::On { active, unacknowledged: ledger.answers.len() })
    }

    /// Drops the final status of an order, because the server has persisted it. This is not called
    /// for acknowledgements of `Accepted`.
    pub fn acknowledge(&self, generation: u64) {
        let mut state = self.inner.lock();
        if !state.journal.ledger().answers.contains_key(&generation) {
            return;
        }
        let at = (self.inner.now)();
        if let Err(err) = state.write(at, OrderRecord::Acknowledged { generation }) {
            // The agent sends the status again, and the server acknowledges it again.
            tracing::warn!(%err, generation, "failed to persist order acknowledgement");
        }
    }

    /// The cordon state of the node. It is read at startup, after each status, and periodically.
    pub fn cordon(&self) -> Cordon {
        self.inner.cordon().unwrap_or_else(|err| {
            tracing::debug!(%err, "failed to read the cordon state");
            Cordon::Unknown
        })
    }

    /// Executes orders until stopped.
    pub fn run(&self) {
        while let Some(current) = self.inner.next() {
            self.execute_order(current);
        }
    }

    /// Executes the active order. Returns `false` if there is none.
    #[cfg(test)]
    pub(super) fn step(&self) -> bool {
        let current = self.inner.lock().journal.ledger().current.clone();
        current.map(|current| self.execute_order(current)).is_some()
    }

    fn execute_order(&self, current: ActiveOrder) {
        let order = current.order.clone();
        let mut task = OrderTask::new(&self.inner, current);
        let Some(status) = execute::run(&mut task) else { return };
        let (generation, kind) = (order.generation, &order.kind);
        match &status {
            OrderStatus::Done { evidence } => {
                tracing::info!(generation, %kind, %evidence, "order done");
            }
            OrderStatus::Failed { reason } => {
                tracing::error!(generation, %kind, %reason, "order failed");
            }
            OrderStatus::Inconclusive { reason } => {
                tracing::warn!(generation, %kind, %reason, "order has no result");
            }
            OrderStatus::Refused { reason } => {
                tracing::warn!(generation, %kind, %reason, "order refused");
            }
            OrderStatus::Accepted => {}
        }
        let record = OrderRecord::Answered { order: Box::new(order.clone()), answer: status };
        // Never report a status that is not on disk. Otherwise a restarted agent might make the
        // change again.
        while let Err(err) = self.inner.write_current(generation, record.clone()) {
            tracing::error!(%err, generation, "failed to journal the order status, retrying");
            if !self.inner.is_active(generation) {
                return;
            }
            self.inner.pause(generation, self.inner.poll);
        }
        self.inner.lock().crash.reach(Point::OrderAnswered);
        (self.inner.wake)();
    }

    #[cfg(test)]
    pub(super) fn ledger(&self) -> OrderLedger {
        self.inner.lock().journal.ledger().clone()
    }

    #[cfg(test)]
    pub(super) fn fill_disk(&self, full: bool) {
        self.inner.lock().journal.fill_disk(full);
    }
}

fn journal_failed(err: &io::Error) -> OrderStatus {
    OrderStatus::Refused { reason: format!("failed to write the order journal: {err}") }
}

impl OrderState {
    fn write(&mut self, at: Timestamp, record: OrderRecord) -> io::Result<()> {
        self.journal.write(at, record, &self.crash)
    }

    fn accept(&mut self, at: Timestamp, current: ActiveOrder) -> io::Result<()> {
        // The server has sent this order, so it no longer waits for the previous order.
        if let Some(previous) = &self.journal.ledger().current {
            let reason = format!("superseded by order {}", current.order.generation);
            let order = Box::new(previous.order.clone());
            self.write(
                at,
                OrderRecord::Answered { order, answer: OrderStatus::Failed { reason } },
            )?;
        }
        self.write(at, OrderRecord::Accepted(Box::new(current)))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Waits for the next order. `None` at shutdown.
    fn next(&self) -> Option<ActiveOrder> {
        let mut state = self.lock();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(current) = &state.journal.ledger().current {
                return Some(current.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `true` if the order is the active one and the agent is not stopping.
    pub(super) fn is_active(&self, generation: u64) -> bool {
        self.lock().is_current(generation) && !self.stop.load(Ordering::Relaxed)
    }

    /// Sleeps, or returns early if the order is no longer active.
    pub(super) fn pause(&self, generation: u64, time: Duration) {
        let state = self.lock();
        let is_active = |state: &mut OrderState| {
            state.is_current(generation) && !self.stop.load(Ordering::Relaxed)
        };
        drop(self.changed.wait_timeout_while(state, time, is_active));
    }

    /// Journals a step of an order. If the order is no longer active, writes nothing and returns
    /// `false`.
    pub(super) fn write_current(&self, generation: u64, record: OrderRecord) -> io::Result<bool> {
        let mut state = self.lock();
        if !state.is_current(generation) {
            return Ok(false);
        }
        let at = self.now();
        state.write(at, record).map(|()| true)
    }

    pub(super) fn reach(&self, point: Point) {
        self.lock().crash.reach(point);
    }

    /// The cordon, from the scheduler and the journal.
    pub(super) fn cordon(&self) -> Result<Cordon, SchedulerError> {
        let mark = self.lock().journal.ledger().mark.clone();
        self.scheduler.state(mark.as_deref())
    }
}

impl OrderState {
    fn is_current(&self, generation: u64) -> bool {
        let current = self.journal.ledger().current.as_ref();
        current.is_some_and(|active| active.order.generation == generation)
    }
}
