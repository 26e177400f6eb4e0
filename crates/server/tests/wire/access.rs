//! Enrolment, revocation and expiry.

use std::time::{Duration, Instant};

use farrier_agent::uplink::{EnrolError, Enrolment, IdentityStore, UplinkState};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{AccessChange, Entry, Event, Location, NodePhase};
use farrier_server::access::NewJoinToken;
use farrier_wire::proto::{self, AgentMessage, agent_message};
use farrier_wire::{client, convert};
use jiff::{SignedDuration, Timestamp};
use tonic::{Code, Request};

use crate::test_server::{LONG, PATIENCE, TestNode, TestServer, enrol, node, trusting, until};

fn code(refused: Result<u64, EnrolError>) -> Code {
    match refused {
        Err(EnrolError::Refused(status)) => status.code(),
        other => panic!("it was not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrolled_node_opens_a_session_over_tls() {
    let server = TestServer::with_tls().await;
    let mut agent = TestNode::new("a");
    let token = server.token(None, 1);
    assert_eq!(server.enrol("a", &agent.identity(), &token).await.unwrap(), 1);
    let mode = std::fs::metadata(agent.identity().join("node.pem")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    agent.find(1);
    agent.connect(&server);
    agent.acked(1).await;
    agent.find(2);
    agent.acked(2).await;
    assert_eq!(server.logged_findings("a"), [2]);
    let text = std::fs::read(server.dir().join("access")).unwrap();
    let secret = token.as_bytes();
    assert!(
        !text.windows(secret.len()).any(|window| window == secret),
        "the token itself is not stored"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_and_other_authorities_are_refused() {
    let server = TestServer::with_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let dir = |name: &str| folder.path().join(name);
    let wrong = server.enrol("a", &dir("a"), "fjoin_wrong").await;
    assert_eq!(code(wrong), Code::PermissionDenied);
    let once = server.token(None, 1);
    server.enrol("a", &dir("a"), &once).await.unwrap();
    assert_eq!(code(server.enrol("b", &dir("b"), &once).await), Code::PermissionDenied);
    let pool = server.token(None, 10);
    assert_eq!(code(server.enrol("a", &dir("c"), &pool).await), Code::AlreadyExists);
    let past = Timestamp::now() - SignedDuration::from_secs(1);
    let request = NewJoinToken::new("train".parse().unwrap(), past);
    let expired = server.store().create(&request, Timestamp::now()).unwrap();
    assert_eq!(code(server.enrol("d", &dir("d"), expired.reveal()).await), Code::PermissionDenied);
    // The agent does not send its token to a server with another certificate authority.
    let other = Enrolment { fingerprint: "00".repeat(32), ..server.enrolment("e", &dir("e")) };
    assert!(matches!(enrol(other, &pool).await, Err(EnrolError::Connect(_))));
    assert_eq!(server.count(|event| matches!(event, Event::Enrolled { .. })), 1);
    let left = server.store().list().unwrap().into_iter().map(|token| token.uses_left);
    assert_eq!(left.collect::<Vec<_>>(), [0, 10, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrolment_with_a_lost_response_is_completed_by_a_retry() {
    let mut server = TestServer::with_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let token = server.token(None, 1);
    // The server redeems the token, logs the enrolment, and dies before it responds.
    drop(server.running.take());
    server.start(Some(1)).await;
    let lost = server.enrol("a", folder.path(), &token).await;
    assert!(lost.is_err(), "{lost:?}");
    drop(server.running.take());
    server.start(None).await;
    assert_eq!(server.enrol("a", folder.path(), &token).await.unwrap(), 1);
    assert_eq!(server.count(|event| matches!(event, Event::Enrolled { .. })), 1);
}

/// Enrols the same name several times at once, once per token, each time with a new key. Returns
/// the generation or the error of each enrolment.
async fn enrol_at_once(server: &TestServer, name: &str, tokens: &[&str]) -> Vec<Result<u64, Code>> {
    let folders: Vec<_> = tokens.iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let mut attempts = tokio::task::JoinSet::new();
    for (folder, token) in folders.iter().zip(tokens) {
        let (enrolment, token) = (server.enrolment(name, folder.path()), (*token).to_owned());
        attempts.spawn(async move { enrol(enrolment, &token).await });
    }
    let results = attempts.join_all().await;
    results.into_iter().map(|result| result.map_err(|err| code(Err(err)))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_enrolments_of_one_name_one_wins() {
    let server = TestServer::with_tls().await;
    let token = server.token(None, 12);
    let results = enrol_at_once(&server, "a", &[token.as_str(); 12]).await;
    let lost = results.iter().filter(|result| **result == Err(Code::AlreadyExists)).count();
    assert_eq!(
        (results.iter().filter(|result| **result == Ok(1)).count(), lost),
        (1, 11),
        "{results:?}"
    );
    let enrolled = AccessChange::NodeEnrolled { node: node("a"), token: 1, generation: 1 };
    let logged =
        |event: &Event| matches!(event, Event::AccessChanged { change, .. } if *change == enrolled);
    assert_eq!(server.count(logged), 1);
    assert_eq!(server.store().list().unwrap()[0].uses_left, 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_enrolments_with_tokens_of_two_pools_agree_with_the_certificate() {
    let server = TestServer::with_tls().await;
    let token = |pool: &str| {
        let expires = Timestamp::now() + SignedDuration::from_hours(1);
        let request =
            NewJoinToken { uses: 20, ..NewJoinToken::new(pool.parse().unwrap(), expires) };
        server.store().create(&request, Timestamp::now()).unwrap().reveal().to_owned()
    };
    let (train, dev) = (token("train"), token("dev"));
    for round in 0..20 {
        let name = format!("n{round}");
        let results = enrol_at_once(&server, &name, &[&train, &dev]).await;
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!((won, lost), (vec![Ok(1)], vec![Err(Code::AlreadyExists)]), "{name}");
        let id = node(&name);
        let pool =
            server.running().controller().read(move |state| state.nodes[&id].location.pool.clone());
        let pool = pool.await.unwrap();
        let id = node(&name);
        let is_enrolled = |event: &Event| match event {
            Event::AccessChanged {
                change: AccessChange::NodeEnrolled { node, token, .. }, ..
            } => *node == id && *token == if pool.as_str() == "train" { 1 } else { 2 },
            _ => false,
        };
        assert_eq!(server.count(is_enrolled), 1, "the token of {pool} enrolled it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_is_disconnected_and_may_enrol_again() {
    let server = TestServer::with_tls().await;
    let mut agent = connected(&server).await;
    server.store().revoke(&node("a"), Timestamp::now()).unwrap();
    let mut agents = raw(&server, &agent).await;
    let renewed = agents.renew(proto::RenewRequest::default()).await.unwrap_err();
    assert_eq!(renewed.code(), Code::PermissionDenied);
    let refused = hello(&mut agents, None).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    until("the session is disconnected", || agent.must_enrol()).await;
    let link = agent.attempt_for(1).await;
    assert!(matches!(link, UplinkState::Disconnected { must_enrol: true, .. }), "{link:?}");
    assert_eq!(server.logged_findings("a"), Vec::<u64>::new(), "the session was disconnected");
    let phase = async || {
        let controller = server.running().controller();
        controller.read(|state| state.nodes[&node("a")].phase()).await.unwrap()
    };
    // The revocation takes the node out of service at once, before the heartbeat timeout.
    let moved = |event: &Event| matches!(event, Event::PhaseChanged { to: NodePhase::Held, .. });
    until("it is held", || server.count(moved) == 1).await;
    assert_eq!(phase().await, NodePhase::Held);
    server.enrol("a", &agent.identity(), &server.token(Some("a"), 1)).await.unwrap();
    agent.acked(1).await;
    assert_eq!(server.logged_findings("a"), [1], "the node continues to report");
    assert_ne!(phase().await, NodePhase::Held, "it is admitted again");
    assert_eq!(server.count(|event| matches!(event, Event::Enrolled { .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_its_tokens_location_until_an_admin_changes_it() {
    let server = TestServer::with_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let dir = |name: &str| folder.path().join(name);
    let location = |text: &str| serde_json::from_str::<Location>(text).unwrap();
    let token = |text: &str, of_node: Option<&str>| {
        let expires = Timestamp::now() + SignedDuration::from_hours(1);
        let of_pool = NewJoinToken::new("train".parse().unwrap(), expires);
        let request =
            NewJoinToken { location: location(text), node: of_node.map(node), uses: 2, ..of_pool };
        server.store().create(&request, Timestamp::now()).unwrap().reveal().to_owned()
    };
    let check_location = async |text: &str| {
        let controller = server.running().controller();
        let found =
            controller.read(|state| state.nodes[&node("a")].location.clone()).await.unwrap();
        assert_eq!(found, location(text));
    };
    let racked = token(r#"{"pool":"train","rack":"r1","leaf":"l1"}"#, None);
    server.enrol("a", &dir("1"), &racked).await.unwrap();
    check_location(r#"{"pool":"train","rack":"r1","leaf":"l1"}"#).await;
    let moved = r#"{"pool":"serve","rack":"r2","leaf":"l1"}"#;
    let by = Actor::User("ann".to_owned());
    let event = Event::LocationChanged { node: node("a"), location: location(moved) };
    server.running().controller().submit(by, event).await.unwrap();
    // A token of the former pool does not move the node back, even if its certificate was revoked.
    assert_eq!(code(server.enrol("a", &dir("2"), &racked).await), Code::AlreadyExists);
    server.store().revoke(&node("a"), Timestamp::now()).unwrap();
    assert_eq!(code(server.enrol("a", &dir("2"), &racked).await), Code::AlreadyExists);
    check_location(moved).await;
    // A token without a rack keeps the node's rack. A token with a rack changes it.
    let of_serve = token(r#"{"pool":"serve"}"#, None);
    server.enrol("a", &dir("3"), &of_serve).await.unwrap();
    check_location(moved).await;
    let own = token(r#"{"pool":"train","rack":"r3","site":"north"}"#, Some("a"));
    server.enrol("a", &dir("4"), &own).await.unwrap();
    check_location(r#"{"pool":"train","site":"north","rack":"r3","leaf":"l1"}"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_acts_only_for_itself_and_needs_a_certificate() {
    let server = TestServer::with_tls().await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let other = TestNode::new("b");
    server.enrol("b", &other.identity(), &server.token(None, 1)).await.unwrap();
    let mut agents = raw(&server, &agent).await;
    let refused = hello(&mut agents, Some("b")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(hello(&mut agents, Some("a")).await.is_ok());
    assert!(hello(&mut agents, None).await.is_ok());
    // A client without a certificate.
    let mut unauthenticated =
        client::connect(&server.url().parse().unwrap(), trusting(&agent)).await.unwrap();
    assert_eq!(
        hello(&mut unauthenticated, Some("a")).await.unwrap_err().code(),
        Code::Unauthenticated
    );
    let renewed = unauthenticated.renew(proto::RenewRequest::default()).await.unwrap_err();
    assert_eq!(renewed.code(), Code::Unauthenticated);
    // A client with a certificate from another fleet.
    let elsewhere = TestServer::with_tls().await;
    let foreign = TestNode::new("a");
    elsewhere.enrol("a", &foreign.identity(), &elsewhere.token(None, 1)).await.unwrap();
    std::fs::copy(agent.identity().join("ca.pem"), foreign.identity().join("ca.pem")).unwrap();
    let tls = IdentityStore::new(&foreign.identity(), None).tls().unwrap();
    let refused = match client::connect(&server.url().parse().unwrap(), tls).await {
        // In TLS 1.3, the client's handshake completes before the server has verified its
        // certificate.
        Ok(mut agents) => hello(&mut agents, None).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_before_it_expires() {
    let server = TestServer::with_tls().await;
    let mut agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let path = agent.identity().join("node.pem");
    let old = std::fs::read_to_string(&path).unwrap();
    // Make the certificate look as if it was issued 29 days ago and expires tomorrow.
    let soon = Timestamp::now().as_second() + 86_400;
    let lines = old.lines().map(|line| match line.split_once(": ") {
        Some((name @ ("issued" | "not-before"), _)) => format!("{name}: {}", soon - 30 * 86_400),
        Some(("not-after", _)) => format!("not-after: {soon}"),
        _ => line.to_owned(),
    });
    let aged = lines.collect::<Vec<_>>().join("\n");
    std::fs::write(&path, &aged).unwrap();
    agent.find(1);
    agent.connect(&server);
    agent.acked(1).await;
    let new = std::fs::read_to_string(&path).unwrap();
    let block = |text: &str| text.split("BEGIN CERTIFICATE").nth(1).unwrap().to_owned();
    let key = |text: &str| text.split("BEGIN PRIVATE KEY").nth(1).unwrap()[..100].to_owned();
    assert_ne!(block(&new), block(&old));
    assert_ne!(key(&new), key(&old), "with a new key");
    // The previous certificate also stays valid, until it expires. A revocation ends both.
    server.store().revoke(&node("a"), Timestamp::now()).unwrap();
    for text in [&old, &new] {
        std::fs::write(&path, text).unwrap();
        let mut agents = raw(&server, &agent).await;
        assert_eq!(hello(&mut agents, None).await.unwrap_err().code(), Code::PermissionDenied);
    }
    until("the uplink has reported", || agent.acked_now() == Some(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_certificate() {
    let mut server = TestServer::with_tls().await;
    server.certificate_life = SignedDuration::from_secs(10);
    drop(server.running.take());
    server.start(None).await;
    let agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    let enrolled = Instant::now();
    let mut agents = raw(&server, &agent).await;
    let (out, mut down) = open(&mut agents, None).await.unwrap();
    let _heartbeats = heartbeats(out);
    let ending = async {
        loop {
            match down.message().await {
                Ok(Some(_)) => (),
                Ok(None) => panic!("the session ended without a status"),
                Err(status) => break status,
            }
        }
    };
    let end = tokio::time::timeout(PATIENCE, ending).await;
    let end = end.expect("the session outlived its certificate");
    assert_eq!((end.code(), end.message()), (Code::Unauthenticated, "the certificate has expired"));
    let lived = enrolled.elapsed();
    assert!(lived.as_secs() >= 5, "{lived:?}");
    // The connection stays open, but the server refuses all requests.
    for refused in [
        agents.renew(proto::RenewRequest::default()).await.map(drop).unwrap_err(),
        open(&mut agents, None).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    }
}

/// Whether a client that checks the validity period of the server's certificate can connect.
async fn is_trusted(server: &TestServer, agent: &TestNode) -> bool {
    client::connect(&server.url().parse().unwrap(), trusting(agent)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_wrong_clock_at_start_is_trusted_once_corrected() {
    // The server's clock is ahead or behind, first by a time within the validity period of the
    // server's certificate, then by a longer time.
    for (wrong_days, is_trusted_meanwhile) in [(1, true), (-90, true), (400, false), (-400, false)]
    {
        let mut server = TestServer::with_tls().await;
        let mut agent = TestNode::new("a");
        server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
        server.running.take().unwrap().stop().await.unwrap();
        server.wall_clock.set_offset(SignedDuration::from_hours(24 * wrong_days));
        server.start(None).await;
        assert_eq!(is_trusted(&server, &agent).await, is_trusted_meanwhile, "{wrong_days} d");
        let stepped_to = |entry: &Entry, hours: i64| match entry.event {
            Event::ClockStepped { to, .. } => {
                let request = Timestamp::now() + SignedDuration::from_hours(hours);
                to.duration_since(request).abs() < SignedDuration::from_hours(1)
            }
            _ => false,
        };
        // The controller logs a clock that is behind the log as a step back. Wait for that, because
        // a clock that is corrected earlier causes no step.
        if wrong_days < 0 {
            let is_wrong = |entry: &Entry| stepped_to(entry, 24 * wrong_days);
            server.wait_for("the step back", |all| all.iter().any(is_wrong)).await;
        }
        server.wall_clock.set_offset(SignedDuration::ZERO);
        let is_right = |entry: &Entry| stepped_to(entry, 0);
        server.wait_for("the step", |all| all.iter().any(is_right)).await;
        assert!(is_trusted(&server, &agent).await, "{wrong_days} d");
        agent.connect(&server);
        agent.acked(0).await;
        agent.disconnect();
    }
}

/// Node `a`, enrolled and connected. Its uplink waits for an hour before it reconnects.
pub(crate) async fn connected(server: &TestServer) -> TestNode {
    let mut agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    agent.fixed_wait = Some(LONG);
    agent.connect(server);
    agent.acked(0).await;
    agent
}

pub(crate) async fn raw(server: &TestServer, agent: &TestNode) -> client::Agents {
    let tls = IdentityStore::new(&agent.identity(), None).tls().unwrap();
    client::connect(&server.url().parse().unwrap(), tls).await.unwrap()
}

pub(crate) type ServerMessage = tonic::Streaming<proto::ServerMessage>;

/// Opens a session, waits for the welcome, and closes the session. Uses `name` as the node's name
/// if it is given.
async fn hello(agents: &mut client::Agents, name: Option<&str>) -> Result<(), tonic::Status> {
    open(agents, name).await.map(drop)
}

/// Sends heartbeats as long as the session is open, so that the session does not time out.
pub(crate) fn heartbeats(
    out: tokio::sync::mpsc::Sender<AgentMessage>,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let what = Some(proto::report::What::Heartbeat(proto::Heartbeat {}));
        let heartbeat =
            AgentMessage { what: Some(agent_message::What::Report(proto::Report { what })) };
        while out.send(heartbeat.clone()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}

/// Opens a session and waits for the welcome. Uses `name` as the node's name if it is given.
pub(crate) async fn open(
    agents: &mut client::Agents,
    name: Option<&str>,
) -> Result<(tokio::sync::mpsc::Sender<AgentMessage>, ServerMessage), tonic::Status> {
    let hello = proto::Hello {
        inventory: Some(convert::inventory_message(
            &farrier_fleet::fleet::event::NodeInventory::default(),
        )),
        journal: "j".to_owned(),
        ..proto::Hello::default()
    };
    let first = AgentMessage { what: Some(agent_message::What::Hello(hello)) };
    let (out, inbound) = tokio::sync::mpsc::channel(4);
    out.send(first).await.unwrap();
    let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(inbound));
    if let Some(name) = name {
        request.metadata_mut().insert("farrier-node", name.parse().unwrap());
    }
    let mut down = agents.session(request).await?.into_inner();
    match down.message().await?.and_then(|message| message.what) {
        Some(proto::server_message::What::Welcome(_)) => Ok((out, down)),
        other => panic!("{other:?}"),
    }
}
