//! Follows the log: applies entries to the router, and stores what is to be delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::fleet::{Entry, Event, FleetState, NodeId};
use farrier_fleet::notify::{
    FleetView, Notification, NotificationPolicy, Outgoing, Router, concerned_node,
};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::failpoint::NotifyFailpoint;
use super::health::{DatabaseUser, WithCauses};
use super::shared::NotifyHandle;
use super::store::{GapCause, LogGap, NotifyStore, NotifyStoreError, OpenedStore};
use super::worker::{self, Signals, blocking};
use crate::controller::{Controller, SubmitError};
use crate::log::LogError;
use crate::log_tail::LogTail;

/// Entries per read.
const PAGE_ENTRIES: usize = 2048;
/// Minimum time between two reads. Each read may end in a synced write, and the log of the
/// controller is on the same disk.
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// How often the cursor is stored if there is nothing else to store. After a start, the notifier
/// reads the entries after the stored cursor again.
const CURSOR_INTERVAL: Duration = Duration::from_secs(30);
/// How often the policy is checked while it has no routes.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Wait after a failure of the database.
const RETRY_WAIT: Duration = Duration::from_secs(5);
/// How long deliveries that were begun may take to end, when the notifier starts again. One that is
/// cut off is repeated, although the receiver may have accepted it.
const LAST_DELIVERIES_MAX: Duration = Duration::from_secs(150);

#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Store(#[from] NotifyStoreError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Controller(#[from] SubmitError),
}

/// The task that follows the log.
pub(crate) struct Notifier {
    handle: Arc<NotifyHandle>,
    controller: Controller,
    tail: LogTail,
}

impl Notifier {
    pub(crate) fn new(handle: &Arc<NotifyHandle>, controller: &Controller, tail: &LogTail) -> Self {
        Self { handle: Arc::clone(handle), controller: controller.clone(), tail: tail.clone() }
    }

    /// Runs until the server stops. After a failure or a panic, it starts again from what is
    /// stored.
    pub(crate) async fn run(self) {
        let notifier = Arc::new(self);
        loop {
            let mut task = JoinSet::new();
            let attempt = Arc::clone(&notifier);
            task.spawn(async move { attempt.run_once().await });
            match task.join_next().await {
                None | Some(Ok(Ok(()) | Err(FollowError::Controller(_)))) => return,
                Some(Ok(Err(err))) => {
                    tracing::error!(err = %WithCauses(&err), "the notifier failed; it tries again");
                }
                Some(Err(err)) => {
                    tracing::error!(%err, "the notifier panicked; it starts again");
                }
            }
            tokio::time::sleep(RETRY_WAIT).await;
        }
    }

    /// Runs until the server stops, or until something fails.
    async fn run_once(&self) -> Result<(), FollowError> {
        let mut workers = JoinSet::new();
        let result = self.follow(&mut workers).await;
        if let Err(FollowError::Store(err)) = &result {
            self.handle.database.has_failed(DatabaseUser::Follower, err);
        }
        if !matches!(result, Ok(()) | Err(FollowError::Controller(_))) {
            // The policy is dropped, so each worker ends after its delivery.
            let ended = async { while workers.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(LAST_DELIVERIES_MAX, ended).await;
        }
        workers.shutdown().await;
        result
    }

    /// Follows the log until the server stops.
    async fn follow(&self, workers: &mut JoinSet<()>) -> Result<(), FollowError> {
        let dir = self.handle.dir.clone();
        let opened = tokio::task::spawn_blocking(move || NotifyStore::open(&dir)).await;
        let OpenedStore { store, missing } = opened.map_err(|_| NotifyStoreError::Unfinished)??;
        let store = Arc::new(store);
        self.handle.set_store(Arc::clone(&store));
        if missing.is_some() {
            self.handle.database.forget_results();
        }
        let mut router = blocking(&store, NotifyStore::router).await?;
        router.set_database(&blocking(&store, NotifyStore::identity).await?);
        if self.handle.database.fails_for(&DatabaseUser::Follower) {
            // No worker starts before the database can be written again. What the last start could
            // not store may need more space, so the failure ends with that.
            blocking(&store, |store| store.probe(None)).await?;
        }
        let mut follower = Follower {
            handle: &self.handle,
            controller: &self.controller,
            tail: self.tail.clone(),
            store,
            router,
            policy: watch::Sender::new(Arc::default()),
            workers,
            running: BTreeMap::new(),
            saved: tokio::time::Instant::now(),
        };
        follower.start(missing).await?;
        follower.run().await
    }
}

struct Follower<'n> {
    handle: &'n Arc<NotifyHandle>,
    controller: &'n Controller,
    tail: LogTail,
    store: Arc<NotifyStore>,
    router: Router,
    policy: watch::Sender<Arc<NotificationPolicy>>,
    workers: &'n mut JoinSet<()>,
    /// Receivers with a worker, by the task.
    running: BTreeMap<tokio::task::Id, String>,
    saved: tokio::time::Instant,
}

/// The state of the whole fleet.
struct Snapshot {
    view: FleetView,
    policy: NotificationPolicy,
    /// The last entry that the state includes.
    seq: u64,
}

impl Snapshot {
    fn new(state: &FleetState) -> Self {
        Self {
            view: FleetView::of_fleet(state),
            policy: state.policy.notifications.clone(),
            seq: state.seq,
        }
    }
}

impl Follower<'_> {
    /// Continues from the stored state. Without a stored state, or if the log ends before it,
    /// continues from the end of the log.
    async fn start(&mut self, missing: Option<GapCause>) -> Result<(), FollowError> {
        let is_replaced = self.router.seq() > self.tail.end();
        let cause = missing.or(is_replaced.then_some(GapCause::LogReplaced));
        if let Some(cause) = cause {
            self.reset(Some(cause)).await?;
        }
        self.use_policy();
        Ok(())
    }

    async fn run(&mut self) -> Result<(), FollowError> {
        loop {
            if self.is_idle() {
                // Nothing that the log has is to be notified.
                let end = self.tail.end();
                self.handle.has_read(end, end);
                self.idle().await?;
                continue;
            }
            let end = self.tail.end();
            let started = tokio::time::Instant::now();
            let wait = self.time_until_due();
            let seq = self.router.seq();
            let page = tokio::select! {
                page = self.tail.next(seq, PAGE_ENTRIES) => match page {
                    Some(page) => page?,
                    None => return Ok(()),
                },
                Some(ended) = self.workers.join_next_with_id() => {
                    self.restart_worker(ended).await;
                    continue;
                }
                () = tokio::time::sleep(wait) => Vec::new(),
            };
            self.process(page).await?;
            self.handle.has_read(self.router.seq(), end);
            // Because of this wait, a burst of entries is read in few large pages.
            tokio::time::sleep_until(started + READ_INTERVAL).await;
        }
    }

    /// Replaces a worker that ended: its receiver would get nothing more.
    async fn restart_worker(
        &mut self,
        ended: Result<(tokio::task::Id, ()), tokio::task::JoinError>,
    ) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(err) => err.id(),
        };
        let receiver = self.running.remove(&id);
        tracing::error!(?receiver, err = ?ended.err(), "a delivery task ended; it starts again");
        tokio::time::sleep(READ_INTERVAL).await;
        self.use_policy();
    }

    /// Whether there is nothing to notify, so that the log need not be read.
    fn is_idle(&self) -> bool {
        self.router.policy().routes.is_empty() && self.router.groups().next().is_none()
    }

    /// Waits, and then adopts the policy if it has changed.
    async fn idle(&mut self) -> Result<(), FollowError> {
        tokio::time::sleep(IDLE_INTERVAL).await;
        if self.handle.database.fails_for(&DatabaseUser::Follower) {
            self.save(Vec::new(), None).await?;
        }
        let known = self.router.policy().clone();
        let has_changed = self.controller.read(move |state| state.policy.notifications != known);
        if has_changed.await? {
            self.reset(None).await?;
            self.use_policy();
        }
        Ok(())
    }

    fn time_until_due(&self) -> Duration {
        if self.handle.database.fails_for(&DatabaseUser::Follower) {
            // If there are no entries to store, the database works again.
            return IDLE_INTERVAL;
        }
        let Some(due) = self.router.next_due() else { return CURSOR_INTERVAL };
        let wait = due.duration_since(self.controller.now()).max(SignedDuration::ZERO);
        Duration::try_from(wait).unwrap_or_default().min(CURSOR_INTERVAL)
    }

    async fn process(&mut self, mut page: Vec<Entry>) -> Result<(), FollowError> {
        let next = self.router.seq() + 1;
        let is_missing = |(entry, seq): (&Entry, u64)| entry.seq != seq;
        let missing = page.iter().zip(next..).position(is_missing);
        if missing == Some(0) {
            tracing::warn!(
                after = next - 1,
                first = page[0].seq,
                "entries were archived before the notifier read them"
            );
            self.reset(Some(GapCause::Archived)).await?;
            self.use_policy();
            return Ok(());
        }
        // What comes after missing entries is read again, and is then the start of a page.
        page.truncate(missing.unwrap_or(page.len()));
        let changes_policy = page.iter().any(|entry| match &entry.event {
            Event::PolicySet { policy } => policy.notifications != *self.router.policy(),
            _ => false,
        });
        if !page.is_empty() {
            let view = self.view(&page).await?;
            self.router.apply_page(&page, &view);
        }
        if changes_policy {
            // The fleet's state may include entries after `seq`. They are read nevertheless,
            // because the state does not include acknowledgements of alerts.
            let seq = self.router.seq();
            self.reset_at(Some(seq), None).await?;
            self.use_policy();
            return Ok(());
        }
        let outgoing = self.router.advance(self.controller.now());
        self.save(outgoing, None).await
    }

    /// The nodes that these entries are about, as they are now.
    async fn view(&self, page: &[Entry]) -> Result<FleetView, FollowError> {
        let nodes: BTreeSet<NodeId> =
            page.iter().filter_map(|entry| concerned_node(&entry.event).cloned()).collect();
        Ok(self.controller.read(move |state| FleetView::of_nodes(state, nodes.iter())).await?)
    }

    /// Continues from the current state of the fleet. With a cause, notifications may be missing,
    /// and every receiver is told so.
    async fn reset(&mut self, cause: Option<GapCause>) -> Result<(), FollowError> {
        self.reset_at(None, cause).await
    }

    /// As [`Self::reset`], but reads the log from an earlier entry on.
    async fn reset_at(
        &mut self,
        seq: Option<u64>,
        cause: Option<GapCause>,
    ) -> Result<(), FollowError> {
        let Snapshot { view, policy, seq: end } = self.controller.read(Snapshot::new).await?;
        let seq = seq.unwrap_or(end);
        let now = self.controller.now();
        let before = self.router.seq();
        if cause.is_some() {
            self.router.lose_track();
        }
        self.router.reset_to(&view, policy, seq, now);
        let mut outgoing = Vec::new();
        let mut gap = None;
        // Without receivers, nothing was missed.
        if let Some(cause) = cause.filter(|_| !self.router.policy().is_empty()) {
            let after_seq = (before > 0).then_some(before);
            let id = blocking(&self.store, NotifyStore::next_gap).await?;
            gap = Some(LogGap { at: now, after_seq, end_seq: seq, cause });
            let receivers = self.router.policy().receivers.keys();
            outgoing.extend(receivers.map(|receiver| Outgoing {
                receiver: receiver.clone(),
                notification: Notification::gap(receiver, &id, now),
            }));
        }
        outgoing.extend(self.router.advance(now));
        // Before the notifications that follow from this policy: a worker must not deliver them to
        // a receiver as an earlier policy has it.
        self.policy.send_replace(Arc::new(self.router.policy().clone()));
        self.save(outgoing, gap).await
    }

    async fn save(
        &mut self,
        outgoing: Vec<Outgoing>,
        gap: Option<LogGap>,
    ) -> Result<(), FollowError> {
        let changes = self.router.take_changes();
        let is_due = self.saved.elapsed() >= CURSOR_INTERVAL
            || self.handle.database.fails_for(&DatabaseUser::Follower);
        if changes.is_empty() && outgoing.is_empty() && gap.is_none() && !is_due {
            return Ok(());
        }
        self.handle.failpoints.pass(NotifyFailpoint::BeforeSave).await;
        let (seq, has_messages) = (self.router.seq(), !outgoing.is_empty());
        let cause = gap.as_ref().map(|gap| gap.cause.code());
        let now = Timestamp::now();
        blocking(&self.store, move |store| store.save(seq, &changes, &outgoing, gap.as_ref(), now))
            .await?;
        self.saved = tokio::time::Instant::now();
        self.handle.database.works(&DatabaseUser::Follower);
        if let Some(cause) = cause {
            // Not before it is stored: a save that fails is repeated every few seconds.
            tracing::error!(cause, "notifications may be missing");
            self.handle.count_gap();
        }
        self.handle.failpoints.pass(NotifyFailpoint::AfterSave).await;
        if has_messages {
            self.handle.wake_workers();
        }
        Ok(())
    }

    /// Starts a worker for each receiver, and for each removed one with a result to record.
    fn use_policy(&mut self) {
        let policy = Arc::new(self.router.policy().clone());
        self.handle.forget(|name| policy.receivers.contains_key(name));
        self.policy.send_replace(Arc::clone(&policy));
        let unrecorded = self.handle.database.unrecorded_receivers();
        let names: BTreeSet<String> = policy.receivers.keys().cloned().chain(unrecorded).collect();
        self.handle.database.forget(|name| names.contains(name));
        for name in names {
            if self.running.values().any(|running| *running == name) {
                continue;
            }
            let queued = self.handle.queued.subscribe();
            let signals = Signals { policy: self.policy.subscribe(), queued };
            let (handle, store) = (Arc::clone(self.handle), Arc::clone(&self.store));
            let task = self.workers.spawn(worker::run(name.clone(), handle, store, signals));
            self.running.insert(task.id(), name);
        }
    }
}

#[cfg(test)]
mod tests;
