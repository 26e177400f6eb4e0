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
use super::ledger::{ActiveOrder, JournalRecord};
use super::repair_note::RepairNote;
use super::scheduler::{Scheduler, SchedulerError};
use super::submit::{self, Limits, Verdict};
use super::task::Task;
use crate::artifact::{self, Outbox};
use crate::failpoint::{Failpoint, Point};
use crate::status::{OrderInHand, OrdersStatus};

/// Paths of the node's files and of its NVML library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePaths {
    pub root: PathBuf,
    /// `None` for the system's library.
    pub nvml: Option<PathBuf>,
}

pub struct Parts {
    /// Directory of the order journal.
    pub state_dir: PathBuf,
    pub limits: Limits,
    pub hands: Box<dyn Actuator>,
    pub eyes: Arc<dyn Inspector>,
    pub scheduler: Box<dyn Scheduler>,
    /// This machine's clock.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Polling interval.
    pub poll: Duration,
    pub paths: NodePaths,
    /// Uploads artifacts to the server. `None` if there is no server.
    pub outbox: Option<Outbox>,
    /// Where a test makes the agent crash.
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
    pub(super) limits: Limits,
    pub(super) hands: Box<dyn Actuator>,
    pub(super) eyes: Arc<dyn Inspector>,
    pub(super) scheduler: Box<dyn Scheduler>,
    pub(super) paths: NodePaths,
    pub(super) outbox: Option<Outbox>,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    pub(super) poll: Duration,
    wake: Box<dyn Fn() + Send + Sync>,
    pub(super) repaired: Box<dyn Fn(RepairNote) + Send + Sync>,
    books: Mutex<OrderState>,
    changed: Condvar,
    stop: AtomicBool,
}

struct OrderState {
    book: OrderJournal,
    crash: Failpoint,
}

impl OrderExecutor {
    /// Opens the journal. [`Self::spawn`] resumes an order that was accepted but has not ended.
    pub fn open(parts: Parts) -> Result<Self, OrdersError> {
        let Parts {
            state_dir,
            limits,
            hands,
            eyes,
            scheduler,
            now,
            poll,
            paths,
            outbox,
            crash,
            wake,
            repaired,
        } = parts;
        let book = OrderJournal::open(&state_dir)?;
        if let Some(current) = &book.ledger().current {
            let (generation, what) = (current.order.generation, &current.order.kind);
            tracing::info!(generation, %what, begun = current.begun.len(), "an order is carried on");
        }
        // Remove artifacts of orders that have ended. Without a server the bundle is the result and
        // stays.
        if outbox.is_some() {
            let current = book.ledger().current.as_ref().map(|it| it.order.generation);
            artifact::clear(&state_dir, current);
        }
        let books = Mutex::new(OrderState { book, crash });
        let inner = Inner {
            state_dir,
            limits,
            hands,
            eyes,
            scheduler,
            paths,
            outbox,
            now,
            poll,
            wake,
            repaired,
            books,
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Starts the thread that executes orders. It is never joined: the next start resumes what it
    /// leaves.
    pub fn spawn(&self) -> io::Result<()> {
        let desk = self.clone();
        let thread = std::thread::Builder::new().name("orders".to_owned());
        thread.spawn(move || desk.run()).map(drop)
    }

    /// Stops before the next step.
    pub fn stop(&self) {
        self.inner.stop.store(true, Ordering::Relaxed);
        drop(self.inner.lock());
        self.inner.changed.notify_all();
    }

    pub fn is_stopping(&self) -> bool {
        self.inner.stop.load(Ordering::Relaxed)
    }

    /// Submits an order. `now` is the server's time, which leases use. `Accepted` means that the
    /// order is on disk. Idempotent: the same order gets the same status.
    pub fn offer(&self, order: &Order, now: Timestamp) -> OrderStatus {
        let boot = self.inner.hands.boot();
        let mut books = self.inner.lock();
        books.crash.reach(Point::OrderOffered);
        let known = boot.as_ref().map(String::as_str);
        let verdict = submit::judge(books.book.ledger(), &self.inner.limits, order, known, now);
        let at = (self.inner.now)();
        let generation = order.generation;
        match verdict {
            Verdict::Known(answer) => answer,
            Verdict::Strange(why) => {
                tracing::warn!(generation, what = %order.kind, %why, "an order is refused");
                OrderStatus::Refused { reason: why }
            }
            Verdict::Refused(why) => {
                tracing::warn!(generation, what = %order.kind, %why, "an order is refused");
                let answer = OrderStatus::Refused { reason: why };
                let order = Box::new(order.clone());
                let written =
                    books.write(at, JournalRecord::Answered { order, answer: answer.clone() });
                written.map_or_else(|err| unwritten(&err), |()| answer)
            }
            Verdict::Accepted => {
                let current = ActiveOrder {
                    order: order.clone(),
                    boot: boot.unwrap_or_default(),
                    accepted: at,
                    skew_ms: i64::try_from(now.duration_since(at).as_millis()).unwrap_or(0),
                    begun: Vec::new(),
                };
                match books.accept(at, current) {
                    Ok(()) => {
                        tracing::info!(generation, what = %order.kind, reason = %order.reason, "an order is accepted");
                        let is_alone = books.book.ledger().answers.is_empty();
                        drop(books);
                        self.inner.changed.notify_all();
                        // The previous order may just have been superseded, and so has a status
                        // too.
                        if !is_alone {
                            (self.inner.wake)();
                        }
                        OrderStatus::Accepted
                    }
                    Err(err) => unwritten(&err),
                }
            }
        }
    }

    /// Every status that the server has not acknowledged, including that of the active order.
    pub fn outstanding(&self) -> Vec<(u64, OrderStatus)> {
        let books = self.inner.lock();
        let ledger = books.book.ledger();
        let mut answers: Vec<(u64, OrderStatus)> = ledger
            .answers
            .iter()
            .map(|(generation, answer)| (*generation, answer.clone()))
            .collect();
        let current = ledger.current.as_ref().map(|it| it.order.generation);
        answers.extend(current.map(|generation| (generation, OrderStatus::Accepted)));
        answers
    }

    /// Generation of the last order accepted or refused. Only higher ones are accepted.
    pub fn last_order(&self) -> u64 {
        self.inner.lock().book.ledger().generation
    }

    /// Sets the enrolment of this session. After a re-enrolment, generations start over.
    pub fn enrolled(&self, enrolment: &str) {
        let mut books = self.inner.lock();
        if books.book.ledger().enrolment.as_deref() == Some(enrolment) {
            return;
        }
        let (at, last) = ((self.inner.now)(), books.book.ledger().generation);
        let written = books.write(at, JournalRecord::Enrolled { enrolment: enrolment.to_owned() });
        match written {
            Ok(()) if books.book.ledger().generation != last => {
                tracing::info!(last, "the node re-enrolled: order numbers start over");
            }
            Ok(()) => {}
            // The next session retries the write.
            Err(err) => tracing::warn!(%err, "that the node enrolled is not on disk"),
        }
    }

    /// The active order, for `farrier status`. `None` while the journal is being written, which can
    /// take as long as the disk hangs.
    pub fn at_hand(&self) -> Option<OrdersStatus> {
        let books = match self.inner.books.try_lock() {
            Ok(books) => books,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let ledger = books.book.ledger();
        let in_hand = ledger.current.as_ref().map(|current| OrderInHand {
            generation: current.order.generation,
            what: current.order.kind.clone(),
            reason: current.order.reason.to_string(),
            accepted: current.accepted,
            lease_until: current.order.lease_until,
        });
        Some(OrdersStatus::On { in_hand, unacknowledged: ledger.answers.len() })
    }

    /// The server has persisted the final status of an order. Acknowledgements of `Accepted` do not
    /// come here.
    pub fn acknowledged(&self, generation: u64) {
        let mut books = self.inner.lock();
        if !books.book.ledger().answers.contains_key(&generation) {
            return;
        }
        let at = (self.inner.now)();
        if let Err(err) = books.write(at, JournalRecord::Acknowledged { generation }) {
            // The status is sent, and acknowledged, again.
            tracing::warn!(%err, generation, "that an answer was acknowledged is not on disk");
        }
    }

    /// Whether the node accepts new work. Read at startup, after each status, and periodically.
    pub fn cordon(&self) -> Cordon {
        self.inner.cordon().unwrap_or_else(|why| {
            tracing::debug!(%why, "whether the node takes new work is not known");
            Cordon::Unknown
        })
    }

    /// Executes orders until stopped.
    pub fn run(&self) {
        while let Some(current) = self.inner.next() {
            self.carry_out(current);
        }
    }

    /// Executes one order if there is one. Returns whether there was.
    #[cfg(test)]
    pub(super) fn step(&self) -> bool {
        let current = self.inner.lock().book.ledger().current.clone();
        current.map(|current| self.carry_out(current)).is_some()
    }

    fn carry_out(&self, current: ActiveOrder) {
        let order = current.order.clone();
        let mut task = Task::new(&self.inner, current);
        let Some(answer) = execute::carry(&mut task) else { return };
        let (generation, what) = (order.generation, &order.kind);
        match &answer {
            OrderStatus::Done { evidence } => {
                tracing::info!(generation, %what, %evidence, "order done");
            }
            OrderStatus::Failed { reason } => {
                tracing::error!(generation, %what, %reason, "order failed")
            }
            OrderStatus::Refused { reason } => {
                tracing::warn!(generation, %what, %reason, "order refused");
            }
            OrderStatus::Accepted => {}
        }
        let note = JournalRecord::Answered { order: Box::new(order.clone()), answer };
        // Never report a status that is not on disk: a restarted agent might act again.
        while let Err(err) = self.inner.write_current(generation, note.clone()) {
            tracing::error!(%err, generation, "the answer to an order cannot be written to disk");
            if !self.inner.is_wanted(generation) {
                return;
            }
            self.inner.pause(generation, self.inner.poll);
        }
        self.inner.lock().crash.reach(Point::OrderAnswered);
        (self.inner.wake)();
    }

    #[cfg(test)]
    pub(super) fn ledger(&self) -> OrderLedger {
        self.inner.lock().book.ledger().clone()
    }

    #[cfg(test)]
    pub(super) fn fill_disk(&self, full: bool) {
        self.inner.lock().book.fill_disk(full);
    }
}

fn unwritten(err: &io::Error) -> OrderStatus {
    OrderStatus::Refused { reason: format!("the journal of orders cannot be written: {err}") }
}

impl OrderState {
    fn write(&mut self, at: Timestamp, note: JournalRecord) -> io::Result<()> {
        self.book.write(at, note, &self.crash)
    }

    fn accept(&mut self, at: Timestamp, current: ActiveOrder) -> io::Result<()> {
        // The server sent this order, so it no longer waits for the previous one.
        if let Some(before) = &self.book.ledger().current {
            let why = format!("order {} came before it had ended", current.order.generation);
            let order = Box::new(before.order.clone());
            self.write(
                at,
                JournalRecord::Answered { order, answer: OrderStatus::Failed { reason: why } },
            )?;
        }
        self.write(at, JournalRecord::Accepted(Box::new(current)))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Waits for the next order. `None` at shutdown.
    fn next(&self) -> Option<ActiveOrder> {
        let mut books = self.lock();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(current) = &books.book.ledger().current {
                return Some(current.clone());
            }
            books = self.changed.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the order is still active.
    pub(super) fn is_wanted(&self, generation: u64) -> bool {
        self.lock().is_current(generation) && !self.stop.load(Ordering::Relaxed)
    }

    /// Sleeps, or returns early if the order is no longer wanted.
    pub(super) fn pause(&self, generation: u64, time: Duration) {
        let books = self.lock();
        let wanted = |books: &mut OrderState| {
            books.is_current(generation) && !self.stop.load(Ordering::Relaxed)
        };
        drop(self.changed.wait_timeout_while(books, time, wanted));
    }

    /// Journals a step of an order. Returns false, and writes nothing, if the order is no longer
    /// active.
    pub(super) fn write_current(&self, generation: u64, note: JournalRecord) -> io::Result<bool> {
        let mut books = self.lock();
        if !books.is_current(generation) {
            return Ok(false);
        }
        let at = self.now();
        books.write(at, note).map(|()| true)
    }

    pub(super) fn reach(&self, point: Point) {
        self.lock().crash.reach(point);
    }

    /// The cordon, from the scheduler and the journal.
    pub(super) fn cordon(&self) -> Result<Cordon, SchedulerError> {
        let mark = self.lock().book.ledger().mark.clone();
        self.scheduler.state(mark.as_deref())
    }
}

impl OrderState {
    fn is_current(&self, generation: u64) -> bool {
        let current = self.book.ledger().current.as_ref();
        current.is_some_and(|it| it.order.generation == generation)
    }
}
