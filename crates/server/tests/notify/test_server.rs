//! A server whose notifications a test records.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrier_fleet::fleet::event::JournalPosition;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, Location, Policy};
use farrier_fleet::health::{Change, Finding};
use farrier_fleet::notify::{Notification, NotificationPolicy, Outgoing, Receiver};
use farrier_server::notify::{Deliver, DeliveryFailure, DeliveryFuture, NotifyFailpoint};
use farrier_server::run::{self, Running, ServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn finding(id: u64, code: &str) -> Finding {
    serde_json::from_value(json!({
        "id": id, "code": code, "subject": "node", "kind": "fault", "severity": "warning",
        "text": "it is wrong", "action": "investigate", "rule_action": "investigate",
        "action_by": "rule", "evidence": [], "first_seen": "2026-11-15T00:00:00Z",
        "last_seen": "2026-11-15T00:00:00Z", "count": 1, "clears": "it is right",
    }))
    .unwrap()
}

/// Each finding is a group of its own, and is sent at once.
pub(crate) fn each_alone() -> Value {
    json!({
        "receivers": { "hook": { "webhook": { "url": "http://127.0.0.1:1/" } } },
        "routes": [{
            "name": "all", "receivers": ["hook"], "match": { "codes": ["test.*"] },
            "group_by": ["node", "code"], "group_wait_s": 0,
        }],
    })
}

/// Records deliveries. A receiver can be down.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    delivered: Vec<Outgoing>,
    down: BTreeSet<String>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn set_down(&self, receiver: &str, is_down: bool) {
        let down = &mut self.0.lock().unwrap().down;
        let _ = if is_down { down.insert(receiver.to_owned()) } else { down.remove(receiver) };
    }

    pub(crate) fn delivered(&self) -> Vec<Outgoing> {
        self.0.lock().unwrap().delivered.clone()
    }

    /// The codes of the delivered notifications.
    pub(crate) fn codes(&self) -> BTreeSet<String> {
        self.delivered().into_iter().map(|outgoing| outgoing.notification.code).collect()
    }

    /// The codes that a receiver got, in order.
    pub(crate) fn of(&self, receiver: &str) -> Vec<String> {
        let delivered = self.delivered().into_iter();
        let of_receiver = delivered.filter(|outgoing| outgoing.receiver == receiver);
        of_receiver.map(|outgoing| outgoing.notification.code).collect()
    }
}

impl Deliver for Recorder {
    fn deliver<'a>(
        &'a self,
        receiver: &'a Receiver,
        notification: &'a Notification,
    ) -> DeliveryFuture<'a> {
        let mut recorded = self.0.lock().unwrap();
        let Receiver::Webhook(webhook) = receiver else { panic!("only webhooks are tested") };
        // The test gives each receiver its name as the content type.
        let name = webhook.content_type.clone().unwrap();
        let result = if recorded.down.contains(&name) {
            Err(DeliveryFailure {
                code: "connect".to_owned(),
                text: "down".to_owned(),
                is_retryable: true,
                reached_receiver: false,
                retry_after: None,
            })
        } else {
            let notification = notification.clone();
            recorded.delivered.push(Outgoing { receiver: name, notification });
            Ok(())
        };
        Box::pin(std::future::ready(result))
    }
}

pub(crate) struct NotifyServer {
    folder: TempDir,
    recorder: Option<Recorder>,
    running: Option<Running>,
}

impl NotifyServer {
    /// Without a recorder, notifications are sent over the network.
    pub(crate) fn new(recorder: Option<Recorder>) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), recorder, running: None }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    fn options(&self) -> ServerOptions {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        ServerOptions {
            plain_pool: "train".parse().ok(),
            deliver: self.recorder.clone().map(|recorder| Arc::new(recorder) as Arc<dyn Deliver>),
            ..ServerOptions::new(self.dir(), address)
        }
    }

    pub(crate) async fn start(&mut self, failpoint: Option<(NotifyFailpoint, u32)>) {
        let end = Instant::now() + PATIENCE;
        let running = loop {
            let options = ServerOptions { notify_failpoint: failpoint, ..self.options() };
            match run::start(options).await {
                Ok(running) => break running,
                // A server that was just killed holds its lock for a moment.
                Err(err) => assert!(Instant::now() < end, "{err:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        self.running = Some(running);
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// Ends the server without letting it finish anything.
    pub(crate) async fn kill(&mut self) {
        drop(self.running.take());
        tokio::task::yield_now().await;
    }

    pub(crate) async fn stop(&mut self) {
        self.running.take().unwrap().stop().await.unwrap();
    }

    /// Waits until the notifier has stopped at its failpoint.
    pub(crate) async fn halted(&self) {
        let mut halted = self.running().notifier_halted();
        let wait = halted.wait_for(|is_halted| *is_halted);
        tokio::time::timeout(PATIENCE, wait).await.expect("the failpoint is reached").unwrap();
    }

    pub(crate) async fn submit(&self, event: Event) {
        let outcome = self.running().controller().submit(Actor::Server, event).await.unwrap();
        assert!(outcome.is_logged());
    }

    /// Sets the policy. With a recorder, the content type of each webhook becomes its name.
    pub(crate) async fn set_policy(&self, notifications: &Value) {
        let mut notifications: NotificationPolicy =
            serde_json::from_value(notifications.clone()).unwrap();
        for (name, receiver) in &mut notifications.receivers {
            if let (Some(_), Receiver::Webhook(webhook)) = (&self.recorder, receiver) {
                webhook.content_type = Some(name.clone());
            }
        }
        let policy = Policy { notifications, ..Policy::default() };
        policy.check().unwrap();
        self.submit(Event::PolicySet { policy: Box::new(policy) }).await;
    }

    pub(crate) async fn enrol(&self, node: &str) {
        let location = Location::in_pool("train".parse().unwrap());
        self.submit(Event::Enrolled { node: node.parse().unwrap(), location }).await;
    }

    pub(crate) async fn report(&self, node: &str, findings: Vec<Finding>) {
        let number = findings[0].id;
        let record = JournalPosition { journal: "first".to_owned(), number };
        let changes = findings.into_iter().map(Change::Opened).collect();
        let node = node.parse().unwrap();
        self.submit(Event::FindingsReported { node, record, changes }).await;
    }
}
