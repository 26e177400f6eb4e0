//! An order during its execution. It has a deadline, and its changes are journaled before and after
//! they are made.

use std::fs::{self, File};
use std::time::Duration;
use std::{fmt, io};

use farrier_fleet::fleet::order::Order;
use jiff::{SignedDuration, Timestamp};

use super::executor::Inner;
use super::ledger::{ActiveOrder, FailureText, OrderEffect, OrderRecord, Started};
use crate::failpoint::Point;

/// Lock file. The process that makes a change holds the lock while it runs.
pub(crate) const CHANGE_LOCK: &str = "orders.alive";

/// The status of an order is due at most this long before the lease ends, so that the status can
/// reach the server in time.
const ANSWER_EARLY: SignedDuration = SignedDuration::from_secs(15);

/// Why execution stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Abort {
    /// The order is no longer active, or the agent is stopping, so there is no status to report.
    Cancelled,
    /// The execution cannot continue, for this reason. The status is `Refused` if no change was
    /// started, and `Failed` otherwise.
    CannotExecute(String),
}

impl Abort {
    pub(super) fn cannot_execute(reason: impl fmt::Display) -> Self {
        Self::CannotExecute(reason.to_string())
    }
}

/// An active order and its journal.
pub(super) struct OrderTask<'d> {
    pub(super) inner: &'d Inner,
    current: ActiveOrder,
    /// When this agent process started to execute the order. Earlier readings are stale.
    since: Timestamp,
}

impl<'d> OrderTask<'d> {
    pub(super) fn new(inner: &'d Inner, current: ActiveOrder) -> Self {
        Self { inner, current, since: inner.now() }
    }

    pub(super) fn order(&self) -> &Order {
        &self.current.order
    }

    /// Boot id at acceptance.
    pub(super) fn boot_before(&self) -> &str {
        &self.current.boot
    }

    pub(super) fn accepted(&self) -> Timestamp {
        self.current.accepted
    }

    /// When this agent process started to execute the order.
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    /// Changes started for the order, including those of an earlier agent process.
    pub(super) fn started(&self) -> &[Started] {
        &self.current.begun
    }

    pub(super) fn last_started(&self) -> Option<&Started> {
        self.current.last_started()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.inner.now()
    }

    /// The time at which the order must have a status.
    pub(super) fn deadline(&self) -> Timestamp {
        let until = self.current.lease_until();
        let early = (until.duration_since(self.current.accepted) / 10)
            .clamp(SignedDuration::ZERO, ANSWER_EARLY);
        until.checked_sub(early).unwrap_or(until)
    }

    /// `true` while there is time for another attempt.
    pub(super) fn has_time(&self) -> bool {
        self.now() < self.deadline()
    }

    /// `true` while the order is active.
    pub(super) fn is_active(&self) -> bool {
        self.inner.is_active(self.current.order.generation)
    }

    /// Sleeps for a number of polling intervals.
    pub(super) fn pause(&self, polls: u32) -> Result<(), Abort> {
        let generation = self.current.order.generation;
        self.inner.pause(generation, self.inner.poll.saturating_mul(polls));
        if self.inner.is_active(generation) { Ok(()) } else { Err(Abort::Cancelled) }
    }

    /// Retries `read` until it succeeds or time runs out.
    pub(super) fn retry<T, E: fmt::Display>(
        &self,
        mut read: impl FnMut() -> Result<T, E>,
    ) -> Result<T, Abort> {
        loop {
            match read() {
                Ok(value) => return Ok(value),
                Err(err) if !self.has_time() => return Err(Abort::cannot_execute(err)),
                Err(err) => {
                    tracing::debug!(%err, "read failed, retrying");
                    self.pause(1)?;
                }
            }
        }
    }

    /// Makes a change: journals the start, makes the change, and journals the outcome. Nothing is
    /// changed if the lease has ended, or if the start cannot be journaled.
    pub(super) fn act<E: fmt::Display>(
        &mut self,
        effect: OrderEffect,
        boot: &str,
        act: impl FnOnce(File) -> Result<(), E>,
    ) -> Result<Result<(), E>, Abort> {
        let generation = self.current.order.generation;
        if !self.inner.is_active(generation) {
            return Err(Abort::Cancelled);
        }
        let until = self.current.lease_until();
        if self.now() >= until {
            return Err(Abort::CannotExecute(format!("the lease ended at {until:.0}")));
        }
        let lock = self.lock_change()?;
        let record =
            OrderRecord::Started { generation, effect: effect.clone(), boot: boot.to_owned() };
        match self.inner.write_current(generation, record) {
            Ok(true) => {}
            Ok(false) => return Err(Abort::Cancelled),
            Err(err) => {
                return Err(Abort::CannotExecute(format!(
                    "failed to write the order journal: {err}"
                )));
            }
        }
        self.current.begun.push(Started {
            effect,
            boot: boot.to_owned(),
            ended: false,
            failed: None,
        });
        self.inner.reach(Point::OrderBegun);
        let made = act(lock);
        self.inner.reach(Point::OrderActed);
        let failed = made.as_ref().err().map(FailureText::new);
        if let Some(last) = self.current.begun.last_mut() {
            (last.ended, last.failed) = (true, failed.clone());
        }
        // The change has been made, so retry until the disk accepts the outcome.
        while let Err(err) = self
            .inner
            .write_current(generation, OrderRecord::Ended { generation, failed: failed.clone() })
        {
            tracing::error!(%err, generation, "failed to journal the outcome of a change, retrying");
            self.pause(1)?;
        }
        self.inner.reach(Point::OrderEnded);
        Ok(made)
    }

    /// Waits for any change that an earlier agent process started.
    pub(super) fn wait_for_earlier_change(&self) -> Result<(), Abort> {
        self.lock_change().map(drop)
    }

    /// Acquires the lock that is held during a change.
    fn lock_change(&self) -> Result<File, Abort> {
        let path = self.inner.state_dir().join(CHANGE_LOCK);
        let failed = |err: io::Error| {
            Abort::CannotExecute(format!("failed to use `{}`: {err}", path.display()))
        };
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(fs::TryLockError::Error(err)) => return Err(failed(err)),
                Err(fs::TryLockError::WouldBlock) if !self.has_time() => {
                    return Err(Abort::cannot_execute(
                        "a change that an earlier agent process started is still running",
                    ));
                }
                Err(fs::TryLockError::WouldBlock) => self.pause(1)?,
            }
        }
    }

    /// The point in time that is `time` after the order was accepted.
    pub(super) fn after(&self, time: Duration) -> Timestamp {
        let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        self.current.accepted.checked_add(time).unwrap_or(Timestamp::MAX)
    }
}
