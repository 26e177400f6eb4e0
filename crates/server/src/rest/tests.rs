//! Handlers on a small fleet, polled by hand. Covers clients that disconnect early, and requests
//! that wait for each other.

mod isolation;

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};

use farrier_facts::FactSet;
use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Domain, FleetState, Location, NodeId, Role};
use farrier_notify::{ReceiverFiles, ReceiverFolders};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::caller::Caller;
use super::failure::Failure;
use super::query::Params;
use super::reply::Reply;
use super::routes::{self, RouteMatch};
use super::{AppState, Call, Rate, Rest, pagination, redact};
use crate::access::{AccessStore, AccessTokenKind, NewJoinToken, NewUser, TokenDigest, User};
use crate::artifacts::{ArtifactRecord, ArtifactStore};
use crate::audit::Audit;
use crate::clock::ClockWatch;
use crate::controller::Controller;
use crate::ingest::{DisconnectReason, ReportQuota, SessionRegistry};
use crate::log::sqlite::SqliteLog;
use crate::log_tail::LogTail;
use crate::notify::NotifyHandle;
use crate::state_machine::StateMachine;

/// Only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// More polls than a handler needs to wait for the controller and the disk.
const POLLS: usize = 6;

struct Fixture {
    _folder: tempfile::TempDir,
    _stop: watch::Sender<bool>,
    rest: Rest,
    token: TokenDigest,
}

impl Fixture {
    /// Creates a fleet with node `a` in pool `train`, enrolled once. No background task logs
    /// pending access changes.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let state_machine = StateMachine::open(Box::new(SqliteLog::open(&path).unwrap())).unwrap();
        let store = Arc::new(AccessStore::open(folder.path()).unwrap());
        let artifacts = Arc::new(ArtifactStore::open(folder.path(), Timestamp::now()).unwrap());
        let sessions = Arc::new(SessionRegistry::new(ReportQuota::default()));
        let (log_end, end) = watch::channel(0);
        let (stop, stopped) = watch::channel(false);
        let tail = LogTail::new(path, end, state_machine.damage());
        let (controller, _ended) = Controller::spawn(
            state_machine,
            Arc::clone(&sessions),
            Arc::default(),
            log_end,
            ClockWatch::default(),
            None,
        )
        .unwrap();
        let audit = Audit::new(controller.clone(), Arc::clone(&store), Arc::clone(&sessions), 0);
        let app = AppState {
            controller,
            tail,
            sessions,
            space: Arc::default(),
            heartbeat_interval: Duration::from_secs(10),
            store,
            artifacts,
            fingerprint: String::new(),
            counters: Arc::default(),
            facts: Cow::Borrowed(FactSet::embedded()),
            policy_keys: Vec::new(),
            changes: Arc::new(audit),
            notify: Arc::new(NotifyHandle::new(folder.path().to_owned(), None, None)),
            receiver_files: ReceiverFiles::within(ReceiverFolders::default()),
            stopped,
        };
        let now = Timestamp::now();
        let day = now + SignedDuration::from_hours(24);
        let user = NewUser::new("ann", Role::Admin, Domain::Fleet, day).unwrap();
        let (_, token) = app.store.add_user(&Actor::Server, &user, now).unwrap();
        let rest = Rest::new(app, Rate::default());
        let fixture = Self { _folder: folder, _stop: stop, rest, token: token.digest() };
        let request =
            NewJoinToken::new("train".parse().unwrap(), now + SignedDuration::from_hours(1));
        let token = fixture.app().store.create(&request, now).unwrap().digest();
        fixture.app().store.join(&token, &node(), b"key", None, now).unwrap();
        fixture.app().changes.log_pending().await.unwrap();
        let enrolled = Event::Enrolled { node: node(), location: request.location };
        fixture.app().controller.submit(Actor::Server, enrolled).await.unwrap();
        fixture
    }

    fn app(&self) -> &AppState {
        &self.rest.app
    }

    fn post(
        &self,
        path: &str,
        scope: &str,
        body: &'static str,
    ) -> impl Future<Output = Result<Reply, Failure>> {
        self.request(&Method::POST, path, scope, body)
    }

    /// A request from an admin whose scope is `scope`.
    fn request(
        &self,
        method: &Method,
        path: &str,
        scope: &str,
        body: &'static str,
    ) -> impl Future<Output = Result<Reply, Failure>> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let RouteMatch { route, path } = routes::find(method, path).unwrap();
        (route.run)(Call {
            app: Arc::clone(&self.rest.app),
            rest: self.rest.clone(),
            caller: Some(self.caller(scope)),
            path,
            query: Params::read(query, route.query).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
            hold: None,
        })
    }

    fn caller(&self, scope: &str) -> Caller {
        let user = User {
            token: 1,
            name: "ann".to_owned(),
            role: Role::Admin,
            scope: scope.parse::<Domain>().unwrap(),
            expires: Timestamp::MAX,
        };
        Caller { user, digest: self.token.clone() }
    }

    async fn enrol(&self, name: &str, pool: &str, rack: &str) {
        let mut location = Location::in_pool(pool.parse().unwrap());
        location.rack = Some(rack.parse().unwrap());
        let enrolled = Event::Enrolled { node: name.parse().unwrap(), location };
        self.app().controller.submit(Actor::Server, enrolled).await.unwrap();
    }

    /// Awaits a future that only reads from the controller. Returns its result and the number of
    /// reads.
    async fn count_reads<T>(&self, future: impl Future<Output = T>) -> (T, usize) {
        let mut future = Box::pin(future);
        let mut reads = 0;
        loop {
            // Because the controller is blocked during the poll, each poll can wait for at most one
            // read.
            let blocked = self.block_controller().await;
            let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
            blocked.end().await;
            if let Poll::Ready(answer) = polled {
                return (answer, reads);
            }
            reads += 1;
            self.app().controller.read(|_| ()).await.unwrap();
        }
    }

    /// Blocks the controller, so that jobs queue up and can be counted.
    async fn block_controller(&self) -> BlockedController {
        let (release, released) = mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let controller = self.app().controller.clone();
        let reader = tokio::spawn(async move {
            let read = controller.read(move |_| {
                started.send(()).unwrap();
                released.recv().is_ok()
            });
            read.await.unwrap()
        });
        has_started.await.unwrap();
        BlockedController { release, reader }
    }

    /// Polls a request `polls` times and then drops it. Between polls, completes what the request
    /// waits for.
    async fn cancel(&self, polls: usize, path: &str, body: &'static str) {
        let mut answer = Box::pin(self.post(path, "fleet", body));
        for _ in 0..polls {
            if is_answered(&mut answer).await {
                return;
            }
            self.app().controller.read(|_| ()).await.unwrap();
        }
    }

    fn holds_name(&self) -> bool {
        self.app().store.name_held_by(&node()).unwrap().is_some()
    }

    async fn read(&self, is: fn(&FleetState) -> bool) -> bool {
        self.app().controller.read(is).await.unwrap()
    }

    async fn until(&self, is: impl AsyncFn(&Self) -> bool) -> bool {
        let end = Instant::now() + PATIENCE;
        while !is(self).await {
            if Instant::now() > end {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }
}

/// Keeps the controller blocked until [`Self::end`] is called.
struct BlockedController {
    release: mpsc::Sender<()>,
    reader: tokio::task::JoinHandle<bool>,
}

impl BlockedController {
    async fn end(self) {
        self.release.send(()).unwrap();
        assert!(self.reader.await.unwrap());
    }
}

async fn is_answered(answer: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *answer).poll(context).is_ready())).await
}

fn node() -> NodeId {
    "a".parse().unwrap()
}

const RETIRE: (&str, &str) = ("/api/v1/nodes/a/retire", r#"{"reason":"sold"}"#);

#[tokio::test]
async fn a_retirement_frees_the_name_even_if_its_client_disconnects() {
    for polls in 1..=POLLS {
        let fixture = Fixture::new().await;
        assert!(fixture.holds_name());
        fixture.cancel(polls, RETIRE.0, RETIRE.1).await;
        let is_done = fixture
            .until(async |fixture| {
                !fixture.holds_name() && fixture.read(|state| state.nodes.is_empty()).await
            })
            .await;
        assert!(is_done, "not finished after {polls} polls");
    }
}

#[tokio::test]
async fn a_revocation_disconnects_and_is_logged_even_if_its_client_disconnects() {
    // The first poll only checks whether the caller sees the node. It changes nothing.
    for polls in 2..=POLLS {
        let fixture = Fixture::new().await;
        let mut stream = fixture.app().sessions.register(&node(), Some(1));
        fixture.cancel(polls, "/api/v1/nodes/a/revoke", "").await;
        let is_revoked =
            |state: &FleetState| state.nodes[&node()].liveness.certificate_revoked_at().is_some();
        let is_done = fixture.until(async |fixture| fixture.read(is_revoked).await).await;
        assert!(is_done, "not finished after {polls} polls");
        assert_eq!(stream.disconnect.try_recv(), Ok(DisconnectReason::Revoked));
    }
}

#[tokio::test]
async fn repeating_a_failed_retirement_frees_the_name() {
    let fixture = Fixture::new().await;
    let retired = Event::Retired { node: node(), reason: "sold".to_owned() };
    fixture.app().controller.submit(Actor::Server, retired).await.unwrap();
    for scope in ["pool:serve", "tenant:train"] {
        assert!(fixture.post(RETIRE.0, scope, RETIRE.1).await.is_err());
        assert!(fixture.holds_name(), "{scope} is not the node's pool");
    }
    assert!(fixture.post(RETIRE.0, "pool:train", RETIRE.1).await.is_ok());
    assert!(!fixture.holds_name());
    assert!(fixture.post(RETIRE.0, "fleet", RETIRE.1).await.is_err(), "there is nothing to retire");
    let location = Location::in_pool("serve".parse().unwrap());
    let enrolled = Event::Enrolled { node: node(), location };
    fixture.app().controller.submit(Actor::Server, enrolled).await.unwrap();
    assert!(fixture.post(RETIRE.0, "pool:train", RETIRE.1).await.is_err());
    assert!(fixture.read(|state| !state.nodes.is_empty()).await);
}

#[tokio::test]
async fn a_retired_node_leaves_no_artifact() {
    let fixture = Fixture::new().await;
    let first_seq =
        fixture.app().controller.read(|state| state.nodes[&node()].first_seq).await.unwrap();
    let (store, now) = (&fixture.app().artifacts, Timestamp::now());
    let finish = |generation| {
        let location = Location::in_pool("train".parse().unwrap());
        let order = "collect-logs".to_owned();
        let record = ArtifactRecord::new(generation, order, first_seq, location, now);
        store.finish(&node(), &record, store.begin(generation).unwrap()).unwrap()
    };
    assert!(finish(1));
    assert!(fixture.post(RETIRE.0, "fleet", RETIRE.1).await.is_ok());
    assert!(!finish(2), "the upload was in progress");
    assert!(store.list(&node(), first_seq, now).unwrap().is_empty());
}

/// Only one request at a time collects matrix data in memory.
#[tokio::test]
async fn a_matrix_reads_no_node_before_it_has_the_lock() {
    let fixture = Fixture::new().await;
    let turn = Arc::clone(&fixture.rest.verdicts).lock_owned().await;
    let blocked = fixture.block_controller().await;
    let mut answer = Box::pin(fixture.request(&Method::GET, "/api/v1/matrix", "fleet", ""));
    assert!(!is_answered(&mut answer).await);
    assert_eq!(fixture.app().controller.waiting(), 0);
    drop(turn);
    assert!(!is_answered(&mut answer).await);
    assert_eq!(fixture.app().controller.waiting(), 1);
    blocked.end().await;
    assert!(answer.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_log_reader_keeps_its_place_in_the_queue_across_keep_alives() {
    let fixture = Fixture::new().await;
    let tail = fixture.app().tail.clone();
    let mut permits = tail.all_permits().await;
    let follow = fixture.request(&Method::GET, "/api/v1/events/stream?after=0", "fleet", "");
    let mut body =
        follow.await.unwrap_or_else(|_| panic!("a stream")).into_response(None).into_body();
    let mut next = async || {
        let frame = body.frame().await.unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    };
    assert!(next().await.starts_with("retry"));
    // The reader waits longer than a keep-alive interval. A later reader must not overtake it.
    assert_eq!(next().await, ": here\n\n");
    let later = tokio::spawn(async move { tail.permit().await });
    assert_eq!(next().await, ": here\n\n");
    drop(permits.pop());
    assert!(next().await.starts_with("id: 1\n"));
    drop(later.await.unwrap());
}

/// Each node is visited once, in batches, however many domains there are.
#[tokio::test]
async fn the_callers_domains_are_counted_in_one_batched_pass() {
    let fixture = Fixture::new().await;
    let batches = 3;
    for number in 1..batches * pagination::BATCH_NODES {
        let pool = if number % 2 == 0 { "train" } else { "serve" };
        fixture.enrol(&format!("n{number}"), pool, &format!("r{number}")).await;
    }
    let controller = &fixture.app().controller;
    let until = controller.now() + SignedDuration::from_hours(1);
    for rack in 1..8 {
        let domain = format!("rack:r{rack}").parse().unwrap();
        let what = OperatorRequest::Freeze { domain, until, reason: "work".to_owned() };
        controller.submit(Actor::Server, Event::OperatorRequested { request: what }).await.unwrap();
    }
    // One pass takes a read per batch, and a last read that finds no more nodes. At most two other
    // reads follow.
    let expected = batches + 1..=batches + 3;
    let freeze = r#"{"domain":"pool:empty","duration_s":60,"reason":"x"}"#;
    let other = r#"{"domain":"rack:r1","duration_s":60,"reason":"x"}"#;
    for (method, path, scope, body, status) in [
        (&Method::POST, "/api/v1/freezes", "pool:empty", freeze, 404),
        (&Method::POST, "/api/v1/freezes", "pool:train", other, 403),
        (&Method::GET, "/api/v1/freezes", "pool:train", "", 200),
        (&Method::GET, "/api/v1/policy", "pool:train", "", 200),
    ] {
        let (answer, reads) = fixture.count_reads(fixture.request(method, path, scope, body)).await;
        let found = answer.err().map_or(200, |failure| failure.problem.status);
        assert_eq!(found, status, "{method} {path}");
        assert!(expected.contains(&reads), "{method} {path}: {reads} reads");
    }
    let entries = fixture.app().tail.read(0, 1000).await.unwrap();
    let caller = fixture.caller("pool:train");
    let (visible, reads) =
        fixture.count_reads(redact::visible_entries(controller, &caller, entries)).await;
    let Ok(visible) = visible else { panic!("the log is read") };
    assert!(expected.contains(&reads), "{reads} reads");
    let frozen = |entry: &&farrier_fleet::fleet::Entry| {
        matches!(&entry.event, Event::OperatorRequested { request: OperatorRequest::Freeze { .. } })
    };
    assert_eq!(visible.iter().filter(frozen).count(), 3, "of the racks 2, 4 and 6");
}

#[tokio::test]
async fn similar_domains_are_suggested_to_callers_with_nodes_there() {
    let fixture = Fixture::new().await;
    fixture.enrol("b", "train", "r1").await;
    fixture.enrol("c", "serve", "r2").await;
    let misspelt = r#"{"domain":"rack:r3","reason":"x","duration_s":60}"#;
    let detail_for = async |scope| {
        let Err(failure) = fixture.post("/api/v1/freezes", scope, misspelt).await else {
            panic!("there is no such rack")
        };
        failure.problem.detail
    };
    let detail = detail_for("fleet").await;
    assert!(detail.contains("`rack:r1`, `rack:r2`"), "{detail}");
    let unfreeze = r#"{"domain":"pool:empt"}"#;
    let Err(failure) = fixture.post("/api/v1/unfreezes", "pool:empt", unfreeze).await else {
        panic!("there is no such pool")
    };
    assert!(!failure.problem.detail.contains("there is"), "{}", failure.problem.detail);
}

#[tokio::test(start_paused = true)]
async fn an_export_ends_when_its_token_becomes_invalid() {
    for path in ["/api/v1/export?data=log", "/api/v1/export?data=state"] {
        let fixture = Fixture::new().await;
        let permits = fixture.app().tail.all_permits().await;
        let blocked = fixture.block_controller().await;
        let answer = fixture.request(&Method::GET, path, "fleet", "").await;
        let Ok(reply) = answer else { panic!("{path} is answered") };
        let mut body = reply.into_response(None).into_body();
        let (by, now) = (Actor::Server, Timestamp::now());
        fixture.app().store.revoke_token_by(&by, AccessTokenKind::User, 1, now).unwrap();
        let line = tokio::time::timeout(Duration::from_secs(11), body.frame()).await;
        let Ok(Some(Ok(line))) = line else { panic!("{path} continues: {line:?}") };
        let line = String::from_utf8(line.into_data().unwrap().to_vec()).unwrap();
        assert!(line.contains(r#""status":401"#), "{line}");
        assert!(body.frame().await.is_none());
        blocked.end().await;
        drop(permits);
    }
}
