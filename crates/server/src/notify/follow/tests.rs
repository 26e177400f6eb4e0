use std::sync::Mutex;
use std::time::Instant;

use farrier_fleet::fleet::Policy;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::notify::{Receiver, RouterChanges};
use serde_json::json;

use super::*;
use crate::clock::ClockWatch;
use crate::ingest::{ReportQuota, SessionRegistry};
use crate::log::sqlite::SqliteLog;
use crate::notify::delivery::{Deliver, DeliveryFailure, DeliveryFuture};
use crate::state_machine::StateMachine;

/// Only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(300);

fn down() -> DeliveryFailure {
    DeliveryFailure {
        code: "connect".to_owned(),
        text: "down".to_owned(),
        is_retryable: true,
        reached_receiver: false,
        retry_after: None,
    }
}

/// A receiver that is not reached while it is down.
#[derive(Debug, Default)]
struct Hook {
    is_up: Mutex<bool>,
    got: Mutex<Vec<String>>,
}

impl Deliver for Hook {
    fn deliver<'a>(
        &'a self,
        _receiver: &'a Receiver,
        notification: &'a Notification,
    ) -> DeliveryFuture<'a> {
        let result = if *self.is_up.lock().unwrap() {
            self.got.lock().unwrap().push(notification.key.clone());
            Ok(())
        } else {
            Err(down())
        };
        Box::pin(std::future::ready(result))
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    handle: Arc<NotifyHandle>,
    hook: Arc<Hook>,
    controller: Controller,
    tail: LogTail,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let state_machine = StateMachine::open(Box::new(SqliteLog::open(&path).unwrap())).unwrap();
        let sessions = Arc::new(SessionRegistry::new(ReportQuota::default()));
        let (log_end, end) = watch::channel(0);
        let tail = LogTail::new(path, end, state_machine.damage());
        let clock = ClockWatch::default();
        let spawned =
            Controller::spawn(state_machine, sessions, Arc::default(), log_end, clock, None);
        let hook = Arc::new(Hook::default());
        let deliver = Some(Arc::clone(&hook) as Arc<dyn Deliver>);
        let handle = Arc::new(NotifyHandle::new(folder.path().to_owned(), deliver, None));
        Self { folder, handle, hook, controller: spawned.unwrap().0, tail }
    }

    /// Another connection to the database.
    fn store(&self) -> NotifyStore {
        NotifyStore::open(self.folder.path()).unwrap().store
    }

    fn notifier(&self) -> Notifier {
        Notifier::new(&self.handle, &self.controller, &self.tail)
    }

    /// Runs the notifier until it is aborted.
    fn spawn(&self) -> tokio::task::JoinHandle<()> {
        let notifier = self.notifier();
        tokio::spawn(async move { drop(notifier.run_once().await) })
    }

    /// Runs the notifier until the database fails.
    async fn fail(&self) {
        let result = self.notifier().run_once().await;
        assert!(matches!(result, Err(FollowError::Store(_))), "{result:?}");
    }

    /// Sets a policy with these receivers and no alerts.
    async fn set_policy(&self, receivers: &[&str]) {
        let webhook = |name: &&str| {
            ((*name).to_owned(), json!({ "webhook": { "url": "http://127.0.0.1:1/" } }))
        };
        let all: serde_json::Map<String, serde_json::Value> =
            receivers.iter().map(webhook).collect();
        let policy = json!({
            "receivers": all,
            "routes": [{ "name": "all", "receivers": receivers }],
        });
        let notifications = serde_json::from_value(policy).unwrap();
        let policy = Box::new(Policy { notifications, ..Policy::default() });
        let logged = self.controller.submit(Actor::Server, Event::PolicySet { policy }).await;
        assert!(logged.unwrap().is_logged());
    }
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_cannot_be_stored_is_one_failure_and_one_gap() {
    let fixture = Fixture::new();
    fixture.set_policy(&["hook"]).await;
    // The database is lost: it has no router state. It has no space for the gap.
    let store = fixture.store();
    store.execute(
        "CREATE TRIGGER full BEFORE INSERT ON gaps
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
    );
    let handle = &fixture.handle;
    let mut since = None;
    for _ in 0..3 {
        fixture.fail().await;
        let failure = handle.database_failure().unwrap();
        assert_eq!(*since.get_or_insert(failure.since), failure.since, "the failure lasts");
        assert_eq!(handle.gaps(), 0);
    }
    store.execute("DROP TRIGGER full");
    let running = fixture.spawn();
    until("the gap is stored", || handle.gaps() == 1).await;
    assert!(handle.database_failure().is_none());
    assert_eq!(store.gaps().unwrap().len(), 1);
    running.abort();
}

/// The log has a policy that has no space in the database, and then one that has the receiver again.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_is_not_stored_loses_nothing() {
    let fixture = Fixture::new();
    prepare_empty(&fixture);
    fixture.set_policy(&["hook", "other"]).await;
    let running = fixture.spawn();
    let store = fixture.store();
    let has_read = || store.router().unwrap().seq() == fixture.tail.end();
    until("the policy is stored", has_read).await;
    running.abort();
    let notification = Notification::test("hook", "ann", Timestamp::UNIX_EPOCH);
    let key = notification.key.clone();
    let message = Outgoing { receiver: "hook".to_owned(), notification };
    let (seq, now) = (fixture.tail.end(), Timestamp::now());
    store.save(seq, &RouterChanges::default(), &[message], None, now).unwrap();
    let waits = store.next("hook").unwrap().unwrap().id;
    store.retry(waits, &down(), now, Duration::from_secs(3000)).unwrap();
    store.execute(
        "CREATE TRIGGER full_router BEFORE INSERT ON router
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END;
        CREATE TRIGGER full_queue BEFORE UPDATE ON queue
            BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END;",
    );
    fixture.set_policy(&["other"]).await;
    let mut since = None;
    for _ in 0..3 {
        fixture.fail().await;
        let failure = fixture.handle.database_failure().unwrap();
        assert_eq!(*since.get_or_insert(failure.since), failure.since, "the failure lasts");
    }
    store.execute("DROP TRIGGER full_router; DROP TRIGGER full_queue");
    store.execute("UPDATE queue SET next_ms = 0");
    fixture.set_policy(&["hook", "other"]).await;
    *fixture.hook.is_up.lock().unwrap() = true;
    let running = fixture.spawn();
    until("it is delivered", || *fixture.hook.got.lock().unwrap() == [key.clone()]).await;
    until("everything is read", has_read).await;
    until("the failure is over", || fixture.handle.database_failure().is_none()).await;
    running.abort();
}

/// As the server does before there is a policy with notifications.
fn prepare_empty(fixture: &Fixture) {
    super::super::store::prepare_store(fixture.folder.path(), &FleetState::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_works_again_is_known_without_a_policy() {
    let fixture = Fixture::new();
    prepare_empty(&fixture);
    fixture.handle.database.has_failed(DatabaseUser::Follower, &NotifyStoreError::Unfinished);
    let running = fixture.spawn();
    until("the failure is over", || fixture.handle.database_failure().is_none()).await;
    running.abort();
}

/// Positions of the log are used a second time, so later groups need other keys.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_log_is_counted_in_the_keys_of_later_groups() {
    let fixture = Fixture::new();
    prepare_empty(&fixture);
    let store = fixture.store();
    let record = |store: &NotifyStore| {
        let head = store.router().unwrap().record().cloned();
        head.map(|record| (record.database, record.losses))
    };
    for losses in 0..3 {
        let receivers = ["hook", if losses % 2 == 0 { "other" } else { "third" }];
        fixture.set_policy(&receivers).await;
        let running = fixture.spawn();
        let expected = Some((store.identity().unwrap(), losses));
        until("the log is read", || {
            store.router().unwrap().seq() == fixture.tail.end() && record(&store) == expected
        })
        .await;
        running.abort();
        let end = "UPDATE router SET seq = seq + 1000";
        store.execute(end);
    }
}
