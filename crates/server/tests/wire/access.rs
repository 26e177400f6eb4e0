//! Who is let in, and who is not any more.

use std::time::{Duration, Instant};

use farrier_agent::uplink::{EnrolError, Enrolment, Keep, Link};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{AccessChange, Entry, Event, Place, Standing};
use farrier_server::access::Wanted;
use farrier_wire::proto::{self, Up, up};
use farrier_wire::{client, form};
use jiff::{SignedDuration, Timestamp};
use tonic::{Code, Request};

use crate::world::{LONG, Member, PATIENCE, Site, enrol, node, trusting, until};

fn code(refused: Result<u64, EnrolError>) -> Code {
    match refused {
        Err(EnrolError::Refused(status)) => status.code(),
        other => panic!("it was not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_enrolled_talks_over_tls() {
    let site = Site::with_tls().await;
    let mut member = Member::new("a");
    let token = site.token(None, 1);
    assert_eq!(site.enrol("a", &member.identity(), &token).await.unwrap(), 1);
    let mode = std::fs::metadata(member.identity().join("node.pem")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    member.find(1);
    member.connect(&site);
    member.acked(1).await;
    member.find(2);
    member.acked(2).await;
    assert_eq!(site.found("a"), [2]);
    let text = std::fs::read(site.dir().join("access")).unwrap();
    let secret = token.as_bytes();
    assert!(!text.windows(secret.len()).any(|it| it == secret), "the token itself is not kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_used_and_expired_tokens_and_another_authority_are_refused() {
    let site = Site::with_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let dir = |name: &str| folder.path().join(name);
    let wrong = site.enrol("a", &dir("a"), "fjoin_wrong").await;
    assert_eq!(code(wrong), Code::PermissionDenied);
    let once = site.token(None, 1);
    site.enrol("a", &dir("a"), &once).await.unwrap();
    assert_eq!(code(site.enrol("b", &dir("b"), &once).await), Code::PermissionDenied);
    let pool = site.token(None, 10);
    assert_eq!(code(site.enrol("a", &dir("c"), &pool).await), Code::AlreadyExists);
    let past = Timestamp::now() - SignedDuration::from_secs(1);
    let wanted = Wanted::new("train".parse().unwrap(), past);
    let expired = site.store().create(&wanted, Timestamp::now()).unwrap();
    assert_eq!(code(site.enrol("d", &dir("d"), expired.reveal()).await), Code::PermissionDenied);
    // Whoever answers with another authority hears no token.
    let other = Enrolment { fingerprint: "00".repeat(32), ..site.enrolment("e", &dir("e")) };
    assert!(matches!(enrol(other, &pool).await, Err(EnrolError::Connect(_))));
    assert_eq!(site.count(|event| matches!(event, Event::Enrolled { .. })), 1);
    let left = site.store().list().unwrap().into_iter().map(|it| it.uses_left);
    assert_eq!(left.collect::<Vec<_>>(), [0, 10, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrolment_whose_answer_was_lost_is_finished_by_asking_again() {
    let mut site = Site::with_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let token = site.token(None, 1);
    // The server dies when the token is used up and the node is in the log, before it answers.
    drop(site.running.take());
    site.start(Some(1)).await;
    let lost = site.enrol("a", folder.path(), &token).await;
    assert!(lost.is_err(), "{lost:?}");
    drop(site.running.take());
    site.start(None).await;
    assert_eq!(site.enrol("a", folder.path(), &token).await.unwrap(), 1);
    assert_eq!(site.count(|event| matches!(event, Event::Enrolled { .. })), 1);
}

/// Enrols one name at the same moment with each of these tokens, every time with another key; the
/// generation or the refusal of each.
async fn enrol_at_once(site: &Site, name: &str, tokens: &[&str]) -> Vec<Result<u64, Code>> {
    let folders: Vec<_> = tokens.iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let mut attempts = tokio::task::JoinSet::new();
    for (folder, token) in folders.iter().zip(tokens) {
        let (enrolment, token) = (site.enrolment(name, folder.path()), (*token).to_owned());
        attempts.spawn(async move { enrol(enrolment, &token).await });
    }
    let results = attempts.join_all().await;
    results.into_iter().map(|it| it.map_err(|err| code(Err(err)))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_keys_that_enrol_one_name_at_once_one_wins() {
    let site = Site::with_tls().await;
    let token = site.token(None, 12);
    let results = enrol_at_once(&site, "a", &[token.as_str(); 12]).await;
    let lost = results.iter().filter(|it| **it == Err(Code::AlreadyExists)).count();
    assert_eq!((results.iter().filter(|it| **it == Ok(1)).count(), lost), (1, 11), "{results:?}");
    let enrolled = AccessChange::NodeEnrolled { node: node("a"), token: 1, generation: 1 };
    let logged = |it: &Event| matches!(it, Event::Access { what, .. } if *what == enrolled);
    assert_eq!(site.count(logged), 1);
    assert_eq!(site.store().list().unwrap()[0].uses_left, 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_tokens_of_two_pools_enrol_at_once_is_in_the_pool_of_its_certificate() {
    let site = Site::with_tls().await;
    let token = |pool: &str| {
        let expires = Timestamp::now() + SignedDuration::from_hours(1);
        let wanted = Wanted { uses: 20, ..Wanted::new(pool.parse().unwrap(), expires) };
        site.store().create(&wanted, Timestamp::now()).unwrap().reveal().to_owned()
    };
    let (train, dev) = (token("train"), token("dev"));
    for round in 0..20 {
        let name = format!("n{round}");
        let results = enrol_at_once(&site, &name, &[&train, &dev]).await;
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!((won, lost), (vec![Ok(1)], vec![Err(Code::AlreadyExists)]), "{name}");
        let id = node(&name);
        let pool = site.running().brain().look(move |state| state.nodes[&id].place.pool.clone());
        let pool = pool.await.unwrap();
        let id = node(&name);
        let is_enrolled = |event: &Event| match event {
            Event::Access { what: AccessChange::NodeEnrolled { node, token, .. }, .. } => {
                *node == id && *token == if pool.as_str() == "train" { 1 } else { 2 }
            }
            _ => false,
        };
        assert_eq!(site.count(is_enrolled), 1, "the token of {pool} enrolled it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_is_cut_at_once_and_may_enrol_anew() {
    let site = Site::with_tls().await;
    let mut member = connected(&site).await;
    site.store().revoke(&node("a"), Timestamp::now()).unwrap();
    let mut agents = raw(&site, &member).await;
    let renewed = agents.renew(proto::RenewRequest::default()).await.unwrap_err();
    assert_eq!(renewed.code(), Code::PermissionDenied);
    let refused = hello(&mut agents, None).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    until("the stream is cut", || member.must_enrol()).await;
    let link = member.attempt_for(1).await;
    assert!(matches!(link, Link::NotConnected { must_enrol: true, .. }), "{link:?}");
    assert_eq!(site.found("a"), Vec::<u64>::new(), "the stream was cut");
    let stands = async || {
        let brain = site.running().brain();
        brain.look(|state| state.nodes[&node("a")].standing()).await.unwrap()
    };
    // It is held for its certificate, and not when its silence counts.
    let moved = |it: &Event| matches!(it, Event::Moved { to: Standing::Held, .. });
    until("it is held", || site.count(moved) == 1).await;
    assert_eq!(stands().await, Standing::Held);
    site.enrol("a", &member.identity(), &site.token(Some("a"), 1)).await.unwrap();
    member.acked(1).await;
    assert_eq!(site.found("a"), [1], "it goes on where it was");
    assert_ne!(stands().await, Standing::Held, "it is let in again");
    assert_eq!(site.count(|event| matches!(event, Event::Enrolled { .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stands_where_its_token_says_until_somebody_says_otherwise() {
    let site = Site::with_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let dir = |name: &str| folder.path().join(name);
    let place = |text: &str| serde_json::from_str::<Place>(text).unwrap();
    let token = |text: &str, of_node: Option<&str>| {
        let expires = Timestamp::now() + SignedDuration::from_hours(1);
        let of_pool = Wanted::new("train".parse().unwrap(), expires);
        let wanted = Wanted { place: place(text), node: of_node.map(node), uses: 2, ..of_pool };
        site.store().create(&wanted, Timestamp::now()).unwrap().reveal().to_owned()
    };
    let stands = async |text: &str| {
        let brain = site.running().brain();
        let found = brain.look(|state| state.nodes[&node("a")].place.clone()).await.unwrap();
        assert_eq!(found, place(text));
    };
    let racked = token(r#"{"pool":"train","rack":"r1","leaf":"l1"}"#, None);
    site.enrol("a", &dir("1"), &racked).await.unwrap();
    stands(r#"{"pool":"train","rack":"r1","leaf":"l1"}"#).await;
    let moved = r#"{"pool":"serve","rack":"r2","leaf":"l1"}"#;
    let by = Actor::Person("ann".to_owned());
    let event = Event::Placed { node: node("a"), place: place(moved) };
    site.running().brain().take(by, event).await.unwrap();
    // A token of a pool that it is not in any more does not take it back, revoked or not.
    assert_eq!(code(site.enrol("a", &dir("2"), &racked).await), Code::AlreadyExists);
    site.store().revoke(&node("a"), Timestamp::now()).unwrap();
    assert_eq!(code(site.enrol("a", &dir("2"), &racked).await), Code::AlreadyExists);
    stands(moved).await;
    // One that says nothing of a rack takes none away; what one says, counts.
    let of_serve = token(r#"{"pool":"serve"}"#, None);
    site.enrol("a", &dir("3"), &of_serve).await.unwrap();
    stands(moved).await;
    let own = token(r#"{"pool":"train","rack":"r3","site":"north"}"#, Some("a"));
    site.enrol("a", &dir("4"), &own).await.unwrap();
    stands(r#"{"pool":"train","site":"north","rack":"r3","leaf":"l1"}"#).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_speaks_only_for_itself_and_nobody_without_a_certificate() {
    let site = Site::with_tls().await;
    let member = Member::new("a");
    site.enrol("a", &member.identity(), &site.token(None, 1)).await.unwrap();
    let other = Member::new("b");
    site.enrol("b", &other.identity(), &site.token(None, 1)).await.unwrap();
    let mut agents = raw(&site, &member).await;
    let refused = hello(&mut agents, Some("b")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(hello(&mut agents, Some("a")).await.is_ok());
    assert!(hello(&mut agents, None).await.is_ok());
    // No certificate at all.
    let mut nobody =
        client::connect(&site.url().parse().unwrap(), trusting(&member)).await.unwrap();
    assert_eq!(hello(&mut nobody, Some("a")).await.unwrap_err().code(), Code::Unauthenticated);
    let renewed = nobody.renew(proto::RenewRequest::default()).await.unwrap_err();
    assert_eq!(renewed.code(), Code::Unauthenticated);
    // A certificate of another fleet's authority is no certificate.
    let elsewhere = Site::with_tls().await;
    let stranger = Member::new("a");
    elsewhere.enrol("a", &stranger.identity(), &elsewhere.token(None, 1)).await.unwrap();
    std::fs::copy(member.identity().join("ca.pem"), stranger.identity().join("ca.pem")).unwrap();
    let tls = Keep::new(&stranger.identity(), None).tls().unwrap();
    let refused = match client::connect(&site.url().parse().unwrap(), tls).await {
        // In TLS 1.3 the client is done before the server has judged.
        Ok(mut agents) => hello(&mut agents, None).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_before_it_ends() {
    let site = Site::with_tls().await;
    let mut member = Member::new("a");
    site.enrol("a", &member.identity(), &site.token(None, 1)).await.unwrap();
    let path = member.identity().join("node.pem");
    let old = std::fs::read_to_string(&path).unwrap();
    // As if it were made long ago and ended tomorrow.
    let soon = Timestamp::now().as_second() + 86_400;
    let lines = old.lines().map(|line| match line.split_once(": ") {
        Some((name @ ("issued" | "not-before"), _)) => format!("{name}: {}", soon - 30 * 86_400),
        Some(("not-after", _)) => format!("not-after: {soon}"),
        _ => line.to_owned(),
    });
    let aged = lines.collect::<Vec<_>>().join("\n");
    std::fs::write(&path, &aged).unwrap();
    member.find(1);
    member.connect(&site);
    member.acked(1).await;
    let new = std::fs::read_to_string(&path).unwrap();
    let block = |text: &str| text.split("BEGIN CERTIFICATE").nth(1).unwrap().to_owned();
    let key = |text: &str| text.split("BEGIN PRIVATE KEY").nth(1).unwrap()[..100].to_owned();
    assert_ne!(block(&new), block(&old));
    assert_ne!(key(&new), key(&old), "with a new key");
    // The one before counts on until it ends or is revoked, which ends both.
    site.store().revoke(&node("a"), Timestamp::now()).unwrap();
    for text in [&old, &new] {
        std::fs::write(&path, text).unwrap();
        let mut agents = raw(&site, &member).await;
        assert_eq!(hello(&mut agents, None).await.unwrap_err().code(), Code::PermissionDenied);
    }
    until("the uplink has its say", || member.acked_now() == Some(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_certificate_and_nothing_is_asked_over_what_is_left_of_it() {
    let mut site = Site::with_tls().await;
    site.certificate_life = SignedDuration::from_secs(10);
    drop(site.running.take());
    site.start(None).await;
    let member = Member::new("a");
    site.enrol("a", &member.identity(), &site.token(None, 1)).await.unwrap();
    let enrolled = Instant::now();
    let mut agents = raw(&site, &member).await;
    let (out, mut down) = open(&mut agents, None).await.unwrap();
    let _heartbeats = heartbeats(out);
    let ending = async {
        loop {
            match down.message().await {
                Ok(Some(_)) => (),
                Ok(None) => panic!("it has ended without a word"),
                Err(status) => break status,
            }
        }
    };
    let end = tokio::time::timeout(PATIENCE, ending).await;
    let end = end.expect("it outlives its certificate");
    assert_eq!((end.code(), end.message()), (Code::Unauthenticated, "the certificate has expired"));
    let lived = enrolled.elapsed();
    assert!(lived.as_secs() >= 5, "{lived:?}");
    // The connection is there, and good for nothing.
    for refused in [
        agents.renew(proto::RenewRequest::default()).await.map(drop).unwrap_err(),
        open(&mut agents, None).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    }
}

/// Whether a client that checks the dates of the server's certificate connects.
async fn is_trusted(site: &Site, member: &Member) -> bool {
    client::connect(&site.url().parse().unwrap(), trusting(member)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_clock_was_wrong_at_its_start_is_trusted_when_it_is_right() {
    // Ahead by a day, behind by three months, and each by more than the server's certificate spans.
    for (wrong_days, is_trusted_meanwhile) in [(1, true), (-90, true), (400, false), (-400, false)]
    {
        let mut site = Site::with_tls().await;
        let mut member = Member::new("a");
        site.enrol("a", &member.identity(), &site.token(None, 1)).await.unwrap();
        site.running.take().unwrap().stop().await.unwrap();
        site.wall_clock.set_offset(SignedDuration::from_hours(24 * wrong_days));
        site.start(None).await;
        assert_eq!(is_trusted(&site, &member).await, is_trusted_meanwhile, "{wrong_days} d");
        let stepped_to = |it: &Entry, hours: i64| match it.event {
            Event::ClockStepped { to, .. } => {
                let wanted = Timestamp::now() + SignedDuration::from_hours(hours);
                to.duration_since(wanted).abs() < SignedDuration::from_hours(1)
            }
            _ => false,
        };
        // A clock behind the log is a step back as soon as the controller runs. One that is right
        // again before that never was wrong for it.
        if wrong_days < 0 {
            let is_wrong = |it: &Entry| stepped_to(it, 24 * wrong_days);
            site.wait_for("the step back", |all| all.iter().any(is_wrong)).await;
        }
        site.wall_clock.set_offset(SignedDuration::ZERO);
        let is_right = |it: &Entry| stepped_to(it, 0);
        site.wait_for("the step", |all| all.iter().any(is_right)).await;
        assert!(is_trusted(&site, &member).await, "{wrong_days} d");
        member.connect(&site);
        member.acked(0).await;
        member.disconnect();
    }
}

/// Node `a`, enrolled and connected. It waits long before it reconnects.
pub(crate) async fn connected(site: &Site) -> Member {
    let mut member = Member::new("a");
    site.enrol("a", &member.identity(), &site.token(None, 1)).await.unwrap();
    member.fixed_wait = Some(LONG);
    member.connect(site);
    member.acked(0).await;
    member
}

pub(crate) async fn raw(site: &Site, member: &Member) -> client::Agents {
    let tls = Keep::new(&member.identity(), None).tls().unwrap();
    client::connect(&site.url().parse().unwrap(), tls).await.unwrap()
}

pub(crate) type Down = tonic::Streaming<proto::Down>;

/// Opens a stream, under a name that is said aside, and is made welcome.
async fn hello(agents: &mut client::Agents, name: Option<&str>) -> Result<(), tonic::Status> {
    open(agents, name).await.map(drop)
}

/// Says again and again that the node lives, for as long as its stream is open: a stream is otherwise cut
/// after some seconds.
pub(crate) fn heartbeats(out: tokio::sync::mpsc::Sender<Up>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let what = Some(proto::report::What::Heartbeat(proto::Heartbeat {}));
        let heartbeat = Up { what: Some(up::What::Report(proto::Report { what })) };
        while out.send(heartbeat.clone()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}

/// The same, and keeps it.
pub(crate) async fn open(
    agents: &mut client::Agents,
    name: Option<&str>,
) -> Result<(tokio::sync::mpsc::Sender<Up>, Down), tonic::Status> {
    let hello = proto::Hello {
        makeup: Some(form::makeup_message(&farrier_fleet::fleet::event::Makeup::default())),
        journal: "j".to_owned(),
        ..proto::Hello::default()
    };
    let first = Up { what: Some(up::What::Hello(hello)) };
    let (out, inbound) = tokio::sync::mpsc::channel(4);
    out.send(first).await.unwrap();
    let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(inbound));
    if let Some(name) = name {
        request.metadata_mut().insert("farrier-node", name.parse().unwrap());
    }
    let mut down = agents.session(request).await?.into_inner();
    match down.message().await?.and_then(|it| it.what) {
        Some(proto::down::What::Welcome(_)) => Ok((out, down)),
        other => panic!("{other:?}"),
    }
}
