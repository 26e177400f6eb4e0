//! Delivers the notifications of one receiver, in order. A receiver that is down delays only its
//! own.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use farrier_fleet::notify::{NotificationPolicy, Receiver};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::backoff;
use super::delivery::DeliveryFailure;
use super::failpoint::NotifyFailpoint;
use super::shared::NotifyHandle;
use super::store::{NotifyStore, NotifyStoreError, QueuedMessage};

/// Longest attempt. Each kind of delivery has its own, shorter deadlines.
const ATTEMPT_MAX: Duration = Duration::from_secs(120);

/// What a worker follows.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    pub(super) policy: watch::Receiver<Arc<NotificationPolicy>>,
    /// Increases when notifications are queued.
    pub(super) queued: watch::Receiver<u64>,
}

/// Runs until the notifier ends. While the policy has no such receiver, its notifications are
/// undeliverable.
pub(super) async fn run(
    name: String,
    handle: Arc<NotifyHandle>,
    store: Arc<NotifyStore>,
    mut signals: Signals,
) {
    let mut failures = 0;
    loop {
        // Marks both as seen before the queue is read, so that no change is missed.
        signals.queued.mark_unchanged();
        let receiver = signals.policy.borrow_and_update().receivers.get(&name).cloned();
        let message = match next(&store, &name).await {
            Ok(message) => message,
            Err(err) => {
                tracing::error!(%err, receiver = name, "failed to read the notification queue");
                tokio::time::sleep(backoff::LONGEST).await;
                continue;
            }
        };
        match (message, receiver) {
            (None, _) => {
                tokio::select! {
                    changed = signals.queued.changed() => if changed.is_err() { return },
                    changed = signals.policy.changed() => if changed.is_err() { return },
                }
            }
            (Some(message), None) => {
                let removed = DeliveryFailure {
                    code: "receiver-removed".to_owned(),
                    text: "the policy no longer has this receiver".to_owned(),
                    is_retryable: false,
                    retry_after: None,
                };
                mark(&handle, &store, &name, &message, Err(removed), 0).await;
            }
            (Some(message), Some(receiver)) => {
                if let Some(wait) = remaining_wait(&message) {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        // A change of the receiver may be what it waited for.
                        changed = signals.policy.changed() => if changed.is_err() { return },
                    }
                    // The receiver may have changed meanwhile.
                    if signals.policy.borrow().receivers.get(&name) != Some(&receiver) {
                        continue;
                    }
                }
                failures = attempt(&handle, &store, &name, &receiver, &message, failures).await;
            }
        }
    }
}

/// How long the next attempt has to wait. After a step of the clock, not longer than any back-off.
fn remaining_wait(message: &QueuedMessage) -> Option<Duration> {
    let wait = message.next?.duration_since(Timestamp::now());
    let wait = Duration::try_from(wait).ok()?;
    Some(wait.min(Duration::from_secs(3600))).filter(|wait| !wait.is_zero())
}

/// Delivers once. Returns the number of failures in a row.
async fn attempt(
    handle: &NotifyHandle,
    store: &Arc<NotifyStore>,
    name: &str,
    receiver: &Receiver,
    message: &QueuedMessage,
    failures: u32,
) -> u32 {
    handle.failpoints.pass(NotifyFailpoint::BeforeDelivery).await;
    let delivery = handle.deliver.deliver(receiver, &message.notification);
    let result = tokio::time::timeout(ATTEMPT_MAX, delivery).await.unwrap_or_else(|_| {
        Err(DeliveryFailure {
            code: "timed-out".to_owned(),
            text: format!("the delivery took longer than {} s", ATTEMPT_MAX.as_secs()),
            is_retryable: true,
            retry_after: None,
        })
    });
    handle.failpoints.pass(NotifyFailpoint::AfterDelivery).await;
    let failures = match &result {
        Err(failure) if failure.is_retryable => failures.saturating_add(1),
        _ => 0,
    };
    mark(handle, store, name, message, result, failures).await;
    handle.failpoints.pass(NotifyFailpoint::AfterMark).await;
    failures
}

/// Records the result of an attempt. If that fails, the notification is delivered again.
async fn mark(
    handle: &NotifyHandle,
    store: &Arc<NotifyStore>,
    name: &str,
    message: &QueuedMessage,
    result: Result<(), DeliveryFailure>,
    failures: u32,
) {
    let (id, key) = (message.id, &message.notification.key);
    let now = Timestamp::now();
    let marked = match result {
        Ok(()) => {
            handle.count(name, |stats| stats.delivered += 1);
            blocking(store, move |store| store.delivered(id, now)).await
        }
        Err(failure) if failure.is_retryable => {
            let wait = backoff::wait(failures, jitter());
            let wait = failure.retry_after.map_or(wait, |asked| asked.max(wait));
            if message.attempts == 0 {
                tracing::warn!(
                    receiver = name,
                    key,
                    error = failure.text,
                    "a notification was not delivered; it is repeated"
                );
            }
            handle.count(name, |stats| stats.retries += 1);
            let wait = SignedDuration::try_from(wait).unwrap_or_default();
            let next = now.checked_add(wait).unwrap_or(now);
            blocking(store, move |store| store.retry(id, &failure, next)).await
        }
        Err(failure) => {
            tracing::error!(
                receiver = name,
                key,
                error = failure.text,
                "a notification cannot be delivered"
            );
            handle.count(name, |stats| stats.failed += 1);
            blocking(store, move |store| store.undeliverable(id, &failure, now)).await
        }
    };
    if let Err(err) = marked {
        tracing::error!(%err, receiver = name, "failed to update the notification queue");
        // The database may be full or damaged. Without a pause, the same notification would be
        // delivered again and again.
        tokio::time::sleep(backoff::LONGEST).await;
    }
}

async fn next(
    store: &Arc<NotifyStore>,
    name: &str,
) -> Result<Option<QueuedMessage>, NotifyStoreError> {
    let name = name.to_owned();
    blocking(store, move |store| store.next(&name)).await
}

pub(super) async fn blocking<T: Send + 'static>(
    store: &Arc<NotifyStore>,
    access: impl FnOnce(&NotifyStore) -> Result<T, NotifyStoreError> + Send + 'static,
) -> Result<T, NotifyStoreError> {
    let store = Arc::clone(store);
    tokio::task::spawn_blocking(move || access(&store))
        .await
        .unwrap_or(Err(NotifyStoreError::Unfinished))
}

/// A number from 0 to 1. It need not be unpredictable.
fn jitter() -> f64 {
    let random = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or(0);
    f64::from(random) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use farrier_fleet::notify::{Notification, Outgoing, RouterChanges};
    use tokio::time::Instant;

    use super::*;
    use crate::notify::delivery::{Deliver, DeliveryFuture};
    use crate::notify::store::{QueueState, WAITING_MAX};

    /// A receiver that is down until a time, and refuses one key for good.
    #[derive(Debug)]
    struct Outage {
        until: Instant,
        refused: String,
        got: Mutex<Vec<String>>,
    }

    impl Deliver for Outage {
        fn deliver<'a>(
            &'a self,
            _receiver: &'a Receiver,
            notification: &'a Notification,
        ) -> DeliveryFuture<'a> {
            let failure = |code: &str, is_retryable| DeliveryFailure {
                code: code.to_owned(),
                text: code.to_owned(),
                is_retryable,
                retry_after: None,
            };
            let result = if Instant::now() < self.until {
                Err(failure("connect", true))
            } else if notification.key == self.refused {
                Err(failure("status", false))
            } else {
                self.got.lock().unwrap().push(notification.key.clone());
                Ok(())
            };
            Box::pin(std::future::ready(result))
        }
    }

    fn message(key: &str) -> Outgoing {
        let at = Timestamp::UNIX_EPOCH;
        let notification = Notification::test("hook", "ann", at);
        let notification = Notification { key: key.to_owned(), ..notification };
        Outgoing { receiver: "hook".to_owned(), notification }
    }

    fn policy() -> Arc<NotificationPolicy> {
        let policy = serde_json::json!({
            "receivers": { "hook": { "webhook": { "url": "http://127.0.0.1:1/" } } },
        });
        Arc::new(serde_json::from_value(policy).unwrap())
    }

    struct Fixture {
        _folder: tempfile::TempDir,
        handle: Arc<NotifyHandle>,
        store: Arc<NotifyStore>,
        outage: Arc<Outage>,
    }

    impl Fixture {
        fn new(down_s: u64, refused: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let outage = Arc::new(Outage {
                until: Instant::now() + Duration::from_secs(down_s),
                refused: refused.to_owned(),
                got: Mutex::default(),
            });
            let deliver = Arc::clone(&outage) as Arc<dyn Deliver>;
            let dir = folder.path().to_owned();
            let store = Arc::new(NotifyStore::open(&dir).unwrap().store);
            let handle = Arc::new(NotifyHandle::new(dir, Some(deliver), None));
            Self { _folder: folder, handle, store, outage }
        }

        fn queue(&self, messages: &[Outgoing]) {
            let now = Timestamp::now();
            self.store.save(1, &RouterChanges::default(), messages, None, now).unwrap();
        }

        /// Runs the worker until the queue is empty.
        async fn drain(&self, policy: Arc<NotificationPolicy>) {
            let (policy, queued) = (watch::Sender::new(policy), watch::Sender::new(0));
            let signals = Signals { policy: policy.subscribe(), queued: queued.subscribe() };
            let (handle, store) = (Arc::clone(&self.handle), Arc::clone(&self.store));
            let worker = tokio::spawn(run("hook".to_owned(), handle, store, signals));
            while self.store.next("hook").unwrap().is_some() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            worker.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_is_down_for_ten_minutes_gets_everything_in_order() {
        let fixture = Fixture::new(600, "none");
        let keys: Vec<String> = (0..50).map(|number| format!("key-{number:02}")).collect();
        let messages: Vec<Outgoing> = keys.iter().map(|key| message(key)).collect();
        fixture.queue(&messages);
        let started = Instant::now();
        fixture.drain(policy()).await;
        assert_eq!(*fixture.outage.got.lock().unwrap(), keys);
        let passed = started.elapsed().as_secs();
        assert!((600..700).contains(&passed), "{passed} s: it is tried again within a minute");
        let stats = fixture.handle.stats()["hook"];
        assert_eq!((stats.delivered, stats.failed), (50, 0));
        assert!((10..30).contains(&stats.retries), "{} retries", stats.retries);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_delivered_is_kept_and_delays_nothing() {
        let fixture = Fixture::new(0, "key-1");
        fixture.queue(&[message("key-0"), message("key-1"), message("key-2")]);
        fixture.drain(policy()).await;
        assert_eq!(*fixture.outage.got.lock().unwrap(), ["key-0", "key-2"]);
        let open = fixture.store.messages(false).unwrap();
        assert_eq!((open.len(), open[0].state), (1, QueueState::Undeliverable));
        assert_eq!(open[0].error.as_ref().unwrap().0, "status");
    }

    #[tokio::test(start_paused = true)]
    async fn the_notifications_of_a_removed_receiver_are_undeliverable() {
        let fixture = Fixture::new(0, "none");
        fixture.queue(&[message("key-0")]);
        fixture.drain(Arc::default()).await;
        let open = fixture.store.messages(false).unwrap();
        assert_eq!(open[0].error.as_ref().unwrap().0, "receiver-removed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_ends_in_one_summary() {
        let fixture = Fixture::new(60, "none");
        let messages: Vec<Outgoing> =
            (0..WAITING_MAX + 500).map(|number| message(&format!("key-{number}"))).collect();
        fixture.queue(&messages);
        // A repeated save adds nothing.
        fixture.queue(&messages[..10]);
        let open = fixture.store.messages(false).unwrap();
        assert_eq!(open.len(), WAITING_MAX as usize + 1);
        let last = open.last().unwrap();
        assert_eq!(last.summarised, 500);
        assert_eq!(last.notification.code, "notifications-summarised");
        fixture.drain(policy()).await;
        assert_eq!(fixture.outage.got.lock().unwrap().len(), WAITING_MAX as usize + 1);
    }
}
