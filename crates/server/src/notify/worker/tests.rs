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
            reached_receiver: code != "connect",
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

    /// Starts the worker. It runs until the senders are dropped.
    fn spawn(&self, policy: &watch::Sender<Arc<NotificationPolicy>>) -> tokio::task::AbortHandle {
        let signals =
            Signals { policy: policy.subscribe(), queued: self.handle.queued.subscribe() };
        let (handle, store) = (Arc::clone(&self.handle), Arc::clone(&self.store));
        tokio::spawn(run("hook".to_owned(), handle, store, signals)).abort_handle()
    }

    fn with_delivery(deliver: impl Fn(u32) -> Step + Send + Sync + 'static) -> Self {
        let fixture = Self::new(0, "none");
        let scripted = Arc::new(Scripted { deliver: Box::new(deliver), count: Mutex::default() });
        let handle = NotifyHandle::new(fixture.handle.dir.clone(), Some(scripted), None);
        Self { handle: Arc::new(handle), ..fixture }
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

/// The policy without the receiver may never be stored, so only the store gives anything up.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_added_again_before_its_removal_is_stored_loses_nothing() {
    let fixture = Fixture::new(0, "none");
    fixture.queue(&[message("key-0")]);
    set_full(&fixture.store, true);
    let sender = watch::Sender::new(Arc::default());
    let worker = fixture.spawn(&sender);
    let seconds = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    seconds(600).await;
    assert!(fixture.handle.database.unrecorded("hook").is_none());
    set_full(&fixture.store, false);
    seconds(600).await;
    assert!(fixture.store.next("hook").unwrap().is_some(), "it waits for the next policy");
    fixture.handle.wake_workers();
    seconds(600).await;
    assert!(fixture.store.next("hook").unwrap().is_some());
    sender.send_replace(policy());
    seconds(60).await;
    assert_eq!(*fixture.outage.got.lock().unwrap(), ["key-0"]);
    worker.abort();
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

enum Step {
    Accept,
    AcceptAfter(Duration),
    Fail(DeliveryFailure),
    Panic,
}

/// Does what a function of the number of earlier deliveries says.
struct Scripted {
    deliver: Box<dyn Fn(u32) -> Step + Send + Sync>,
    count: Mutex<u32>,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Scripted")
    }
}

impl Deliver for Scripted {
    fn deliver<'a>(
        &'a self,
        _receiver: &'a Receiver,
        _notification: &'a Notification,
    ) -> DeliveryFuture<'a> {
        let mut count = self.count.lock().unwrap();
        let step = (self.deliver)(*count);
        *count += 1;
        Box::pin(async move {
            match step {
                Step::Accept => Ok(()),
                Step::AcceptAfter(wait) => {
                    tokio::time::sleep(wait).await;
                    Ok(())
                }
                Step::Fail(failure) => Err(failure),
                Step::Panic => panic!("the delivery panics"),
            }
        })
    }
}

fn failed(code: &str) -> DeliveryFailure {
    DeliveryFailure {
        code: code.to_owned(),
        text: code.to_owned(),
        is_retryable: true,
        reached_receiver: code != "connect",
        retry_after: None,
    }
}

fn hours_ago(hours: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(hours)
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_a_receiver_rejects_for_a_day_is_given_up() {
    let fixture = Fixture::with_delivery(|count| match count {
        0 => Step::Fail(failed("status")),
        _ => Step::Accept,
    });
    fixture.queue(&[message("key-0"), message("key-1")]);
    let first = fixture.store.next("hook").unwrap().unwrap().id;
    let since = hours_ago(25);
    fixture.store.retry(first, &failed("status"), since, Duration::ZERO).unwrap();
    fixture.drain(policy()).await;
    let open = fixture.store.messages(false).unwrap();
    assert_eq!((open.len(), open[0].state), (1, QueueState::Undeliverable));
    assert_eq!(open[0].notification.key, "key-0");
    assert_eq!(fixture.handle.stats()["hook"].delivered, 1, "the next one is delivered");
}

#[test]
fn a_receiver_that_is_not_reached_is_not_given_up() {
    let fixture = Fixture::new(0, "none");
    fixture.queue(&[message("key-0")]);
    let waits = |failure: &DeliveryFailure, since| {
        fixture.store.retry(1, failure, since, Duration::ZERO).unwrap();
        fixture.store.next("hook").unwrap().unwrap()
    };
    let message = waits(&failed("connect"), hours_ago(48));
    let now = Timestamp::now();
    assert!(!is_hopeless(&failed("connect"), &message, now));
    assert!(!is_hopeless(&failed("status"), &message, now), "it was down until now");
    let message = waits(&failed("status"), hours_ago(23));
    assert!(!is_hopeless(&failed("status"), &message, now));
    assert!(is_hopeless(&failed("status"), &message, now + SignedDuration::from_hours(1)));
    assert!(!is_hopeless(&failed("connect"), &message, now + SignedDuration::from_hours(1)));
}

fn policy_with(hook: &str, other: &str) -> Arc<NotificationPolicy> {
    let policy = serde_json::json!({
        "receivers": { "hook": { "webhook": { "url": hook } }, "other": { "webhook": { "url": other } } },
    });
    Arc::new(serde_json::from_value(policy).unwrap())
}

#[tokio::test(start_paused = true)]
async fn only_a_change_of_the_receiver_ends_its_wait() {
    let fixture = Fixture::with_delivery(|_| Step::Accept);
    fixture.queue(&[message("key-0")]);
    let now = Timestamp::now();
    fixture.store.retry(1, &failed("connect"), now, Duration::from_secs(3000)).unwrap();
    let policy = watch::Sender::new(policy_with("http://a/", "http://b/"));
    let worker = fixture.spawn(&policy);
    let waits = || fixture.store.next("hook").unwrap().is_some();
    let seconds = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    seconds(60).await;
    policy.send_replace(policy_with("http://a/", "http://c/"));
    seconds(60).await;
    assert!(waits(), "another receiver was changed");
    fixture.handle.wake_workers();
    seconds(60).await;
    assert!(waits(), "a new notification waits behind it");
    policy.send_replace(policy_with("http://new/", "http://c/"));
    seconds(60).await;
    assert!(!waits(), "its receiver was changed");
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn a_retry_by_an_operator_ends_the_wait() {
    let fixture = Fixture::with_delivery(|_| Step::Accept);
    fixture.queue(&[message("key-0")]);
    let now = Timestamp::now();
    fixture.store.retry(1, &failed("connect"), now, Duration::from_secs(3000)).unwrap();
    let policy = watch::Sender::new(policy());
    let worker = fixture.spawn(&policy);
    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.store.retry_now("hook", None).unwrap();
    fixture.handle.wake_workers();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(fixture.store.next("hook").unwrap().is_none());
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn a_command_has_the_time_that_the_policy_gives_it() {
    let fixture = Fixture::with_delivery(|_| Step::AcceptAfter(Duration::from_secs(590)));
    fixture.queue(&[message("key-0")]);
    let policy = serde_json::json!({
        "receivers": { "hook": { "command": { "argv": ["/bin/slow"], "timeout_s": 600 } } },
    });
    fixture.drain(Arc::new(serde_json::from_value(policy).unwrap())).await;
    let stats = fixture.handle.stats()["hook"];
    assert_eq!((stats.delivered, stats.retries), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_panics_is_tried_again() {
    let fixture = Fixture::with_delivery(|count| match count {
        0 => Step::Panic,
        _ => Step::Accept,
    });
    fixture.queue(&[message("key-0"), message("key-1")]);
    fixture.drain(policy()).await;
    let stats = fixture.handle.stats()["hook"];
    assert_eq!((stats.delivered, stats.retries), (2, 1));
}

/// The next attempt was due in a minute, then the clock was set back by a day.
#[tokio::test(start_paused = true)]
async fn after_the_clock_was_set_back_no_wait_is_longer_than_it_was() {
    let fixture = Fixture::with_delivery(|_| Step::Accept);
    fixture.queue(&[message("key-0")]);
    let before = Timestamp::now() + SignedDuration::from_hours(24);
    fixture.store.retry(1, &failed("connect"), before, backoff::LONGEST).unwrap();
    let started = Instant::now();
    fixture.drain(policy()).await;
    let passed = started.elapsed().as_secs();
    assert!((60..63).contains(&passed), "{passed} s");
    // What the receiver asked for is kept.
    fixture.queue(&[message("key-1")]);
    fixture.store.retry(2, &failed("status"), before, Duration::from_secs(900)).unwrap();
    let started = Instant::now();
    fixture.drain(policy()).await;
    let passed = started.elapsed().as_secs();
    assert!((900..903).contains(&passed), "{passed} s");
}

/// Makes each change of the queue fail, like a full disk.
fn set_full(store: &NotifyStore, is_full: bool) {
    let statement = if is_full {
        "CREATE TRIGGER full BEFORE UPDATE ON queue
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    } else {
        "DROP TRIGGER full"
    };
    store.execute(statement);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_delivered_again_while_the_database_cannot_record_it() {
    let fixture = Fixture::new(0, "none");
    let keys: Vec<String> = (0..3).map(|number| format!("key-{number}")).collect();
    fixture.queue(&keys.iter().map(|key| message(key)).collect::<Vec<_>>());
    set_full(&fixture.store, true);
    let got = || fixture.outage.got.lock().unwrap().clone();
    // The notifier starts again and again, because it cannot store anything either.
    for _ in 0..5 {
        let policy = watch::Sender::new(policy());
        let worker = fixture.spawn(&policy);
        tokio::time::sleep(Duration::from_secs(600)).await;
        worker.abort();
        assert_eq!(got(), ["key-0"]);
    }
    let failure = fixture.handle.database_failure().unwrap();
    assert!(failure.error.contains("failed to update the queue"), "{}", failure.error);
    assert!(failure.error.contains("database or disk is full"), "{}", failure.error);
    set_full(&fixture.store, false);
    fixture.drain(policy()).await;
    assert_eq!(got(), keys, "each is delivered once");
    assert!(fixture.handle.database_failure().is_none());
    assert_eq!(fixture.handle.stats()["hook"].delivered, 3);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_waits_for_a_database_that_failed_for_another() {
    let fixture = Fixture::new(0, "none");
    fixture.queue(&[message("key-0")]);
    set_full(&fixture.store, true);
    let err = fixture.store.probe(Some(1)).unwrap_err();
    fixture.handle.database.has_failed(DatabaseUser::Follower, &err);
    let policy = watch::Sender::new(policy());
    let worker = fixture.spawn(&policy);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(fixture.outage.got.lock().unwrap().is_empty());
    set_full(&fixture.store, false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(*fixture.outage.got.lock().unwrap(), ["key-0"]);
    worker.abort();
}

/// A worker that is stopped for a new start of the notifier ends its delivery, and records it.
#[tokio::test(start_paused = true)]
async fn a_worker_ends_after_its_delivery_when_the_notifier_drops_the_policy() {
    let fixture = Fixture::with_delivery(|_| Step::AcceptAfter(Duration::from_secs(30)));
    fixture.queue(&[message("key-0"), message("key-1")]);
    let policy = watch::Sender::new(policy());
    let signals = Signals { policy: policy.subscribe(), queued: fixture.handle.queued.subscribe() };
    let (handle, store) = (Arc::clone(&fixture.handle), Arc::clone(&fixture.store));
    let worker = tokio::spawn(run("hook".to_owned(), handle, store, signals));
    tokio::time::sleep(Duration::from_secs(10)).await;
    drop(policy);
    worker.await.unwrap();
    let waiting = fixture.store.messages(false).unwrap();
    assert_eq!((waiting.len(), waiting[0].notification.key.as_str()), (1, "key-1"));
}

/// The queue cannot be read for a while, and what is in it is due in 50 minutes.
#[tokio::test(start_paused = true)]
async fn a_database_that_works_again_is_known_before_the_wait_ends() {
    let fixture = Fixture::with_delivery(|_| Step::Accept);
    fixture.queue(&[message("key-0")]);
    let now = Timestamp::now();
    fixture.store.retry(1, &failed("connect"), now, Duration::from_secs(3000)).unwrap();
    fixture.store.execute("ALTER TABLE queue RENAME TO moved");
    let policy = watch::Sender::new(policy());
    let worker = fixture.spawn(&policy);
    let seconds = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    seconds(60).await;
    assert!(fixture.handle.database_failure().is_some());
    fixture.store.execute("ALTER TABLE moved RENAME TO queue");
    seconds(60).await;
    assert!(fixture.handle.database_failure().is_none());
    assert!(fixture.store.next("hook").unwrap().is_some(), "it is not due yet");
    worker.abort();
}
