//! Delivers the notifications of one receiver, in order. A receiver that is down delays only its
//! own.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use farrier_fleet::notify::{NotificationPolicy, Receiver};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::backoff;
use super::delivery::{DeliveryFailure, DeliveryFuture};
use super::failpoint::NotifyFailpoint;
use super::health::{AttemptResult, Attempted, DatabaseUser, WithCauses};
use super::shared::NotifyHandle;
use super::store::{NotifyStore, NotifyStoreError, QueuedMessage};

/// Longest attempt over the network. Each kind of delivery has its own, shorter deadlines.
const ATTEMPT_MAX: Duration = Duration::from_secs(120);
/// How much longer than its own deadline a command may take: it is then killed and waited for.
const COMMAND_MARGIN: Duration = Duration::from_secs(30);
/// A receiver that is reached and fails for this long may fail because of the notification, which
/// would hold up all others. As long as the hooks of the agent try.
const GIVE_UP_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// How long a worker waits for a database that fails. It delivers nothing meanwhile.
const DATABASE_WAIT: Duration = Duration::from_secs(5);

/// What a worker follows.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    pub(super) policy: watch::Receiver<Arc<NotificationPolicy>>,
    /// Increases when notifications are queued.
    pub(super) queued: watch::Receiver<u64>,
}

/// Runs until the notifier ends: it then has dropped the policy. While the policy has no such
/// receiver, its notifications wait: only [`NotifyStore::save`] gives them up, together with the
/// policy. A policy that could not be stored may be followed by one that has the receiver again.
/// Nothing is delivered while the database cannot record it, because the same notification would be
/// delivered again and again.
pub(super) async fn run(
    name: String,
    handle: Arc<NotifyHandle>,
    store: Arc<NotifyStore>,
    mut signals: Signals,
) {
    let mut failures = 0;
    let mut last: Option<Receiver> = None;
    let user = DatabaseUser::Worker(name.clone());
    while signals.are_open() {
        if !record(&handle, &store, &name).await {
            signals.pause().await;
            continue;
        }
        // Is marked as seen before the queue is read, so that no notification is missed.
        signals.queued.mark_unchanged();
        let message = match next(&store, &name).await {
            Ok(message) => message,
            Err(err) => {
                tracing::error!(
                    err = %WithCauses(&err),
                    receiver = name,
                    "failed to read the notification queue"
                );
                handle.database.has_failed(user.clone(), &err);
                signals.pause().await;
                continue;
            }
        };
        // Not only before the delivery: its wait may be long, and the database works again now.
        if let Some(message) = &message
            && handle.database.fails_for(&user)
            && !is_writable(&handle, &store, &user, message).await
        {
            signals.pause().await;
            continue;
        }
        // Is read after the queue: the policy that a notification follows from is there before it.
        let receiver = signals.policy.borrow_and_update().receivers.get(&name).cloned();
        // A change of the receiver may be what the next attempt waited for.
        let has_changed = last.is_some() && last != receiver;
        last.clone_from(&receiver);
        match (message, receiver) {
            (None, _) => {
                handle.database.works(&user);
                signals.changed().await;
            }
            (Some(_), None) => signals.changed().await,
            (Some(message), Some(receiver)) => {
                if let Some(wait) = remaining_wait(&message).filter(|_| !has_changed) {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        // The notification may be dropped or due at once.
                        () = signals.changed() => continue,
                    }
                }
                if handle.database_failure().is_some()
                    && !is_writable(&handle, &store, &user, &message).await
                {
                    signals.pause().await;
                    continue;
                }
                failures = attempt(&handle, &store, &name, &receiver, &message, failures).await;
            }
        }
    }
}

impl Signals {
    fn are_open(&self) -> bool {
        self.policy.has_changed().is_ok() && self.queued.has_changed().is_ok()
    }

    /// Waits until the queue or the policy changes, or the notifier ends.
    async fn changed(&mut self) {
        tokio::select! {
            _ = self.queued.changed() => {}
            _ = self.policy.changed() => {}
        }
    }

    /// Waits for a database that fails.
    async fn pause(&mut self) {
        let closed = async { while self.policy.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(DATABASE_WAIT, closed).await;
    }
}

/// How long the next attempt has to wait. If the clock was set back, not longer than the last
/// attempt said.
fn remaining_wait(message: &QueuedMessage) -> Option<Duration> {
    let wait = message.next?.duration_since(Timestamp::now());
    let wait = Duration::try_from(wait).ok()?;
    let longest = message.wait.unwrap_or(backoff::LONGEST);
    Some(wait.min(longest)).filter(|wait| !wait.is_zero())
}

/// Whether the database can record the result of an attempt.
async fn is_writable(
    handle: &NotifyHandle,
    store: &Arc<NotifyStore>,
    user: &DatabaseUser,
    message: &QueuedMessage,
) -> bool {
    let id = message.id;
    match blocking(store, move |store| store.probe(Some(id))).await {
        Ok(()) => {
            handle.database.works(user);
            true
        }
        Err(err) => {
            handle.database.has_failed(user.clone(), &err);
            false
        }
    }
}

/// Records the result of the last attempt, if that is not done yet. Returns whether it is done.
async fn record(handle: &NotifyHandle, store: &Arc<NotifyStore>, name: &str) -> bool {
    let Some(attempted) = handle.database.unrecorded(name) else { return true };
    let user = DatabaseUser::Worker(name.to_owned());
    match blocking(store, move |store| attempted.record(store)).await {
        Ok(()) => {
            handle.database.is_recorded(name);
            handle.database.works(&user);
            true
        }
        Err(err) => {
            // Once per failure: the attempt to record it is repeated every few seconds.
            if !handle.database.fails_for(&user) {
                tracing::error!(
                    err = %WithCauses(&err),
                    receiver = name,
                    "failed to record a delivery; nothing is delivered until the notification database works"
                );
            }
            handle.database.has_failed(user, &err);
            false
        }
    }
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
    let limit = attempt_max(receiver);
    let failure = |code: &str, text: String| DeliveryFailure {
        code: code.to_owned(),
        text,
        is_retryable: true,
        reached_receiver: true,
        retry_after: None,
    };
    let result = match tokio::time::timeout(limit, catch_panic(delivery)).await {
        Ok(Some(result)) => result,
        Ok(None) => Err(failure("panicked", "the delivery panicked".to_owned())),
        Err(_) => {
            let text = format!("the delivery took longer than {} s", limit.as_secs());
            Err(failure("timed-out", text))
        }
    };
    handle.failpoints.pass(NotifyFailpoint::AfterDelivery).await;
    let failures = match &result {
        Err(failure) if failure.is_retryable => failures.saturating_add(1),
        _ => 0,
    };
    mark(handle, store, name, message, result, failures).await;
    handle.failpoints.pass(NotifyFailpoint::AfterMark).await;
    failures
}

fn attempt_max(receiver: &Receiver) -> Duration {
    match receiver {
        Receiver::Command(command) => {
            Duration::from_secs(u64::from(command.timeout_s)) + COMMAND_MARGIN
        }
        _ => ATTEMPT_MAX,
    }
}

/// The result of a delivery. `None` if it panicked: the notification is then tried again like after
/// any failure, and the panic does not end the worker.
async fn catch_panic(mut delivery: DeliveryFuture<'_>) -> Option<Result<(), DeliveryFailure>> {
    std::future::poll_fn(|context| {
        let poll = AssertUnwindSafe(|| delivery.as_mut().poll(context));
        match std::panic::catch_unwind(poll) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

/// Whether to stop trying a notification that failed.
fn is_hopeless(failure: &DeliveryFailure, message: &QueuedMessage, now: Timestamp) -> bool {
    let lasts = |since| now.duration_since(since) >= GIVE_UP_AFTER;
    !failure.is_retryable || failure.reached_receiver && message.reached.is_some_and(lasts)
}

/// Records the result of an attempt. If that fails, or the task is stopped, the result is kept, and
/// is recorded before the next attempt.
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
    let result = match result {
        Ok(()) => {
            handle.count(name, |stats| stats.delivered += 1);
            AttemptResult::Delivered
        }
        Err(failure) if !is_hopeless(&failure, message, now) => {
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
            AttemptResult::Failed(failure, wait)
        }
        Err(failure) => {
            tracing::error!(
                receiver = name,
                key,
                error = failure.text,
                "a notification cannot be delivered"
            );
            handle.count(name, |stats| stats.failed += 1);
            AttemptResult::Undeliverable(failure)
        }
    };
    handle.database.keep(name, Attempted { id, at: now, result });
    record(handle, store, name).await;
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
mod tests;
