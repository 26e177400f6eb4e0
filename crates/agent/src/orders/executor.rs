//! Where orders come in and answers go out.

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

/// Where the node's files and its NVML are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePaths {
    /// The root of its file system.
    pub root: PathBuf,
    /// The NVML library, where it is not the system's.
    pub nvml: Option<PathBuf>,
}

/// What a desk is made of.
pub struct Parts {
    /// Where its journal is.
    pub state_dir: PathBuf,
    /// What it may do.
    pub limits: Limits,
    /// What changes the node.
    pub hands: Box<dyn Actuator>,
    /// What looks at it.
    pub eyes: Arc<dyn Inspector>,
    /// Who gives work to it.
    pub scheduler: Box<dyn Scheduler>,
    /// This machine's clock.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// How often something that is waited for is looked at.
    pub poll: Duration,
    /// Whose files the node's are.
    pub paths: NodePaths,
    /// The way to the server for files that orders ask for; `None`: there is no server.
    pub outbox: Option<Outbox>,
    /// Where to die.
    pub crash: Failpoint,
    /// Called when there is a new answer in [`Desk::outstanding`].
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Called when a repair by hand is on disk.
    pub repaired: Box<dyn Fn(RepairNote) + Send + Sync>,
}

/// Takes orders, keeps them, has them carried out one by one, and keeps the answers until the server has them.
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
    /// Opens the journal. An order that was accepted and not ended is carried on by [`Self::spawn`].
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
        // What an order that has ended left there; without a server a bundle is the result.
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

    /// Starts the thread that carries orders out. Nobody waits for it: what it does not end is carried on after the next start.
    pub fn spawn(&self) -> io::Result<()> {
        let desk = self.clone();
        let thread = std::thread::Builder::new().name("orders".to_owned());
        thread.spawn(move || desk.run()).map(drop)
    }

    /// No new step is taken.
    pub fn stop(&self) {
        self.inner.stop.store(true, Ordering::Relaxed);
        drop(self.inner.lock());
        self.inner.changed.notify_all();
    }

    /// Whether it was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.inner.stop.load(Ordering::Relaxed)
    }

    /// Takes an order. `now` is the server's time, by which leases go. Accepted means that it is on disk; the same order may be
    /// offered again and gets the same answer.
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
                        // The one before it may have been answered just now.
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

    /// Every answer that the server has not acknowledged, with that of the order that is being carried out.
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

    /// The number of the last order that was taken or refused: only a higher one is taken from here on.
    pub fn last_order(&self) -> u64 {
        self.inner.lock().book.ledger().generation
    }

    /// The node talks under this enrolment. After a re-enrolment order numbers start over.
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
            // It is written with the next talk.
            Err(err) => tracing::warn!(%err, "that the node enrolled is not on disk"),
        }
    }

    /// What is in hand, for `farrier status`; none: the journal is being written, which may take as long as a disk hangs.
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

    /// The server has on disk how an order ended. That it has on disk that it was accepted is not told here.
    pub fn acknowledged(&self, generation: u64) {
        let mut books = self.inner.lock();
        if !books.book.ledger().answers.contains_key(&generation) {
            return;
        }
        let at = (self.inner.now)();
        if let Err(err) = books.write(at, JournalRecord::Acknowledged { generation }) {
            // It is told again, and acknowledged again.
            tracing::warn!(%err, generation, "that an answer was acknowledged is not on disk");
        }
    }

    /// Whether the node takes new work, for the server: after the start, after each answer, and now and then.
    pub fn cordon(&self) -> Cordon {
        self.inner.cordon().unwrap_or_else(|why| {
            tracing::debug!(%why, "whether the node takes new work is not known");
            Cordon::Unknown
        })
    }

    /// Carries orders out until it is stopped.
    pub fn run(&self) {
        while let Some(current) = self.inner.next() {
            self.carry_out(current);
        }
    }

    /// Carries one order out, where there is one; says whether there was.
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
        // An answer that is not on disk is not told: another agent might then act again.
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
        // The server waits for no other any longer, or it would not have given this one.
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

    /// The order to carry out; waits for one. None: it is time to end.
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

    /// Whether the order is still the one to carry out.
    pub(super) fn is_wanted(&self, generation: u64) -> bool {
        self.lock().is_current(generation) && !self.stop.load(Ordering::Relaxed)
    }

    /// Waits for so long, or until the order is no longer wanted.
    pub(super) fn pause(&self, generation: u64, time: Duration) {
        let books = self.lock();
        let wanted = |books: &mut OrderState| {
            books.is_current(generation) && !self.stop.load(Ordering::Relaxed)
        };
        drop(self.changed.wait_timeout_while(books, time, wanted));
    }

    /// Writes what is done for an order; false: it is no longer carried out, and nothing is written of it.
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

    /// Whether the node takes new work, by the scheduler and the journal.
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
