//! Whether the notification database works, and the results of deliveries that it could not record.
//! Both outlive the tasks of the notifier, which are restarted when the database fails. Otherwise
//! each restart would deliver the same notifications again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::delivery::DeliveryFailure;
use super::store::{NotifyStore, NotifyStoreError};

/// What uses the database.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DatabaseUser {
    /// The task that follows the log.
    Follower,
    /// The task of a receiver.
    Worker(String),
}

/// The notification database fails.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseFailure {
    /// The last error, with its causes.
    pub(crate) error: String,
    pub(crate) since: Timestamp,
    started: Instant,
}

impl DatabaseFailure {
    pub(crate) fn lasts(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The result of an attempt to deliver.
#[derive(Debug, Clone)]
pub(super) struct Attempted {
    /// Number of the notification in the queue.
    pub(super) id: i64,
    pub(super) at: Timestamp,
    pub(super) result: AttemptResult,
}

#[derive(Debug, Clone)]
pub(super) enum AttemptResult {
    Delivered,
    /// It is tried again after this time.
    Failed(DeliveryFailure, Duration),
    Undeliverable(DeliveryFailure),
}

impl Attempted {
    pub(super) fn record(&self, store: &NotifyStore) -> Result<(), NotifyStoreError> {
        let Self { id, at, result } = self;
        match result {
            AttemptResult::Delivered => store.delivered(*id, *at),
            AttemptResult::Failed(failure, wait) => store.retry(*id, failure, *at, *wait),
            AttemptResult::Undeliverable(failure) => store.undeliverable(*id, failure, *at),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct DatabaseHealth(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: BTreeMap<DatabaseUser, DatabaseFailure>,
    /// By receiver.
    unrecorded: BTreeMap<String, Attempted>,
}

impl DatabaseHealth {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_failed(&self, user: DatabaseUser, err: &dyn std::error::Error) {
        let error = WithCauses(err).to_string();
        let first = DatabaseFailure {
            error: String::new(),
            since: Timestamp::now(),
            started: Instant::now(),
        };
        self.state().failures.entry(user).or_insert(first).error = error;
    }

    pub(super) fn works(&self, user: &DatabaseUser) {
        self.state().failures.remove(user);
    }

    pub(super) fn fails_for(&self, user: &DatabaseUser) -> bool {
        self.state().failures.contains_key(user)
    }

    /// The failure that has lasted longest. `None` if the database works.
    pub(super) fn failure(&self) -> Option<DatabaseFailure> {
        let state = self.state();
        state.failures.values().min_by_key(|failure| failure.started).cloned()
    }

    /// Keeps the result of an attempt until it is recorded.
    pub(super) fn keep(&self, receiver: &str, attempted: Attempted) {
        self.state().unrecorded.insert(receiver.to_owned(), attempted);
    }

    pub(super) fn unrecorded(&self, receiver: &str) -> Option<Attempted> {
        self.state().unrecorded.get(receiver).cloned()
    }

    /// Receivers with a result that is not recorded.
    pub(super) fn unrecorded_receivers(&self) -> Vec<String> {
        self.state().unrecorded.keys().cloned().collect()
    }

    pub(super) fn is_recorded(&self, receiver: &str) {
        self.state().unrecorded.remove(receiver);
    }

    /// Forgets the results: the database was replaced, and numbers its notifications from 1 again.
    pub(super) fn forget_results(&self) {
        self.state().unrecorded.clear();
    }

    /// Forgets failures of receivers that have no task any more.
    pub(super) fn forget(&self, is_known: impl Fn(&str) -> bool) {
        self.state().failures.retain(|user, _| match user {
            DatabaseUser::Follower => true,
            DatabaseUser::Worker(name) => is_known(name),
        });
    }
}

/// An error with its causes.
pub(super) struct WithCauses<'e>(pub(super) &'e dyn std::error::Error);

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(err) = cause {
            write!(out, ": {err}")?;
            cause = err.source();
        }
        Ok(())
    }
}
