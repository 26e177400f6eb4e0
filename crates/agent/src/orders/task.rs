//! An order during execution: its deadline, its journal, and changes that are journaled before and
//! after they are made.

use std::fs::{self, File};
use std::time::Duration;
use std::{fmt, io};

use farrier_fleet::fleet::order::Order;
use jiff::{SignedDuration, Timestamp};

use super::executor::Inner;
use super::ledger::{ActiveOrder, Effect, FailureText, JournalRecord, Started};
use crate::failpoint::Point;

/// Locked by the process that makes a change, while it runs.
pub(crate) const ALIVE: &str = "orders.alive";

/// Maximum margin before the end of the lease, so that the status arrives in time.
const ANSWER_EARLY: SignedDuration = SignedDuration::from_secs(15);

/// Why execution stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Abort {
    /// The order is no longer wanted, or the agent stops. There is no status to report.
    Unwanted,
    /// The order cannot be executed.
    Because(String),
}

impl Abort {
    pub(super) fn because(why: impl fmt::Display) -> Self {
        Self::Because(why.to_string())
    }
}

/// An active order and its journal.
pub(super) struct Task<'d> {
    pub(super) inner: &'d Inner,
    current: ActiveOrder,
    /// When this agent started on it. Earlier readings are stale.
    since: Timestamp,
}

impl<'d> Task<'d> {
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

    /// When this agent started on it.
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    /// Changes started for it, including those of an earlier agent process.
    pub(super) fn begun(&self) -> &[Started] {
        &self.current.begun
    }

    pub(super) fn last_begun(&self) -> Option<&Started> {
        self.current.last_begun()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.inner.now()
    }

    /// When the order must have a status.
    pub(super) fn deadline(&self) -> Timestamp {
        let until = self.current.lease_until();
        let early = (until.duration_since(self.current.accepted) / 10)
            .clamp(SignedDuration::ZERO, ANSWER_EARLY);
        until.checked_sub(early).unwrap_or(until)
    }

    /// Whether there is time for another attempt.
    pub(super) fn has_time(&self) -> bool {
        self.now() < self.deadline()
    }

    /// Whether the order is still active.
    pub(super) fn is_wanted(&self) -> bool {
        self.inner.is_wanted(self.current.order.generation)
    }

    /// Sleeps for a number of polling intervals.
    pub(super) fn pause(&self, looks: u32) -> Result<(), Abort> {
        let generation = self.current.order.generation;
        self.inner.pause(generation, self.inner.poll.saturating_mul(looks));
        if self.inner.is_wanted(generation) { Ok(()) } else { Err(Abort::Unwanted) }
    }

    /// Retries `look` until it succeeds or time runs out.
    pub(super) fn look<T, E: fmt::Display>(
        &self,
        mut look: impl FnMut() -> Result<T, E>,
    ) -> Result<T, Abort> {
        loop {
            match look() {
                Ok(seen) => return Ok(seen),
                Err(why) if !self.has_time() => return Err(Abort::because(why)),
                Err(why) => {
                    tracing::debug!(%why, "looked in vain");
                    self.pause(1)?;
                }
            }
        }
    }

    /// Makes a change: journals the start, acts, journals the outcome. Starts nothing after the
    /// lease has ended, or if the start cannot be journaled.
    pub(super) fn act<E: fmt::Display>(
        &mut self,
        effect: Effect,
        boot: &str,
        act: impl FnOnce(File) -> Result<(), E>,
    ) -> Result<Result<(), E>, Abort> {
        let generation = self.current.order.generation;
        if !self.inner.is_wanted(generation) {
            return Err(Abort::Unwanted);
        }
        let until = self.current.lease_until();
        if self.now() >= until {
            return Err(Abort::Because(format!("its lease ended at {until:.0}")));
        }
        let alive = self.alive()?;
        let note =
            JournalRecord::Started { generation, effect: effect.clone(), boot: boot.to_owned() };
        match self.inner.write_current(generation, note) {
            Ok(true) => {}
            Ok(false) => return Err(Abort::Unwanted),
            Err(err) => {
                return Err(Abort::Because(format!(
                    "the journal of orders cannot be written: {err}"
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
        let made = act(alive);
        self.inner.reach(Point::OrderActed);
        let failed = made.as_ref().err().map(FailureText::new);
        if let Some(last) = self.current.begun.last_mut() {
            (last.ended, last.failed) = (true, failed.clone());
        }
        // The change is made: retry until the disk accepts the outcome.
        while let Err(err) = self
            .inner
            .write_current(generation, JournalRecord::Ended { generation, failed: failed.clone() })
        {
            tracing::error!(%err, generation, "what was done for an order cannot be written to disk");
            self.pause(1)?;
        }
        self.inner.reach(Point::OrderEnded);
        Ok(made)
    }

    /// Waits for any change that an earlier agent process started.
    pub(super) fn wait_for_others(&self) -> Result<(), Abort> {
        self.alive().map(drop)
    }

    /// Acquires the lock that is held during a change.
    fn alive(&self) -> Result<File, Abort> {
        let path = self.inner.state_dir().join(ALIVE);
        let failed =
            |err: io::Error| Abort::Because(format!("failed to use `{}`: {err}", path.display()));
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(fs::TryLockError::Error(err)) => return Err(failed(err)),
                Err(fs::TryLockError::WouldBlock) if !self.has_time() => {
                    return Err(Abort::because(
                        "what was begun before the agent was started anew still runs",
                    ));
                }
                Err(fs::TryLockError::WouldBlock) => self.pause(1)?,
            }
        }
    }

    /// A time after acceptance.
    pub(super) fn after(&self, time: Duration) -> Timestamp {
        let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        self.current.accepted.checked_add(time).unwrap_or(Timestamp::MAX)
    }
}
