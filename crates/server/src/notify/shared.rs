//! What the notifier shares with the REST API and `/metrics`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::delivery::{Deliver, SenderDelivery};
use super::failpoint::{Failpoints, NotifyFailpoint};
use super::health::{DatabaseFailure, DatabaseHealth};
use super::store::{NotifyStore, NotifyStoreError};

/// How long a request waits for the database of a server that has just started.
const OPEN_WAIT: Duration = Duration::from_secs(5);

/// Counters of a receiver since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiverStats {
    pub delivered: u64,
    /// Deliveries that failed for good.
    pub failed: u64,
    /// Attempts that failed and are repeated.
    pub retries: u64,
}

#[derive(Debug, Clone, Copy)]
struct LogProgress {
    /// The last entry that the notifier has read.
    cursor: u64,
    /// When it last had read everything.
    caught_up: Instant,
}

impl Default for LogProgress {
    fn default() -> Self {
        Self { cursor: 0, caught_up: Instant::now() }
    }
}

/// How far the notifier is behind the end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogLag {
    /// The last entry that it has read.
    pub(crate) cursor: u64,
    pub(crate) entries: u64,
    /// For how long it has not read everything.
    pub(crate) behind_s: u64,
}

/// A handle to the notifier.
#[derive(Debug)]
pub(crate) struct NotifyHandle {
    pub(super) dir: PathBuf,
    /// `None` until the notifier has opened its database for the first time. If the database fails
    /// later, what it has can often still be read.
    store: watch::Sender<Option<Arc<NotifyStore>>>,
    stats: Mutex<BTreeMap<String, ReceiverStats>>,
    gaps: AtomicU64,
    reading: Mutex<LogProgress>,
    pub(super) database: DatabaseHealth,
    /// Increases when a notification is queued, or becomes due.
    pub(super) queued: watch::Sender<u64>,
    pub(crate) deliver: Arc<dyn Deliver>,
    pub(super) failpoints: Failpoints,
}

impl NotifyHandle {
    pub(crate) fn new(
        dir: PathBuf,
        deliver: Option<Arc<dyn Deliver>>,
        failpoint: Option<(NotifyFailpoint, u32)>,
    ) -> Self {
        Self {
            dir,
            store: watch::Sender::new(None),
            stats: Mutex::default(),
            gaps: AtomicU64::new(0),
            reading: Mutex::default(),
            database: DatabaseHealth::default(),
            queued: watch::Sender::new(0),
            deliver: deliver.unwrap_or_else(|| Arc::new(SenderDelivery::default())),
            failpoints: Failpoints::new(failpoint),
        }
    }

    pub(crate) fn halted(&self) -> watch::Receiver<bool> {
        self.failpoints.halted()
    }

    pub(super) fn set_store(&self, store: Arc<NotifyStore>) {
        self.store.send_replace(Some(store));
    }

    /// Why the notification database fails. `None` if it works.
    pub(crate) fn database_failure(&self) -> Option<DatabaseFailure> {
        self.database.failure()
    }

    pub(super) fn count(&self, receiver: &str, count: impl FnOnce(&mut ReceiverStats)) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        count(stats.entry(receiver.to_owned()).or_default());
    }

    /// The counters of each receiver that the policy has.
    pub(crate) fn stats(&self) -> BTreeMap<String, ReceiverStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn forget(&self, is_known: impl Fn(&str) -> bool) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.retain(|name, _| is_known(name));
    }

    pub(super) fn count_gap(&self) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Relaxed)
    }

    /// Records how far the notifier has read. `end` is the end of the log before it read.
    pub(super) fn has_read(&self, cursor: u64, end: u64) {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.cursor = cursor;
        if cursor >= end {
            reading.caught_up = Instant::now();
        }
    }

    /// How far the notifier is behind the end of the log.
    pub(crate) fn log_lag(&self, end: u64) -> LogLag {
        let reading = *self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = end.saturating_sub(reading.cursor);
        let behind_s = if entries == 0 { 0 } else { reading.caught_up.elapsed().as_secs() };
        LogLag { cursor: reading.cursor, entries, behind_s }
    }

    /// Makes the workers look at their queues.
    pub(crate) fn wake_workers(&self) {
        self.queued.send_modify(|number| *number += 1);
    }

    /// Calls `access` on a blocking thread, if the database is open.
    pub(crate) async fn with_open_store<T: Send + 'static>(
        &self,
        access: impl FnOnce(&NotifyStore) -> Result<T, NotifyStoreError> + Send + 'static,
    ) -> Option<Result<T, NotifyStoreError>> {
        let store = self.store.borrow().clone()?;
        tokio::task::spawn_blocking(move || access(&store)).await.ok()
    }

    /// Calls `access` on a blocking thread, and waits for a database that is being opened. `None` if
    /// it is not open in time.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        access: impl FnOnce(&NotifyStore) -> Result<T, NotifyStoreError> + Send + 'static,
    ) -> Option<Result<T, NotifyStoreError>> {
        let mut store = self.store.subscribe();
        let opened = tokio::time::timeout(OPEN_WAIT, store.wait_for(Option::is_some)).await;
        drop(opened.ok()?.ok()?);
        self.with_open_store(access).await
    }
}
