//! Orders go down once, answers up once; silence is noticed, and its end.

use std::collections::BTreeSet;

use farrier_agent::uplink::Link;
use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::policy::PoolPolicy;
use farrier_fleet::fleet::{Answer, Event, OrderKind, Policy, Standing};

use crate::access::connected;
use crate::world::{Member, Site, node, until};

fn answers(site: &Site) -> Vec<(u64, Answer)> {
    let entries = site.entries().into_iter();
    let of = entries.filter_map(|entry| match entry.event {
        Event::Answered { generation, answer, .. } => Some((generation, answer)),
        _ => None,
    });
    of.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joining_node_is_ordered_to_prove_itself_and_comes_into_service() {
    let mut site = Site::plain().await;
    let mut member = Member::new("a");
    member.connect(&site);
    let desk = std::sync::Arc::clone(&member.desk);
    let offered = |count| {
        let desk = std::sync::Arc::clone(&desk);
        move || desk.offered.lock().unwrap().len() == count
    };
    until("the first order is offered", offered(1)).await;
    until("that it was accepted is in the log", || answers(&site) == [(1, Answer::Accepted)]).await;
    // Neither side's death orders anything twice, or answers twice.
    member.disconnect();
    site.running.take().unwrap().stop().await.unwrap();
    site.start(None).await;
    member.connect(&site);
    for generation in 1..=2 {
        until("the order is offered", offered(usize::try_from(generation).unwrap())).await;
        let done = Answer::Done { evidence: "all is well".to_owned() };
        *member.desk.answers.lock().unwrap() = vec![(generation, done)];
        member.bell.notify_one();
        let desk = std::sync::Arc::clone(&member.desk);
        until("the answer is acknowledged", || {
            desk.acknowledged.lock().unwrap().contains(&generation)
        })
        .await;
    }
    let kinds: Vec<OrderKind> =
        member.desk.offered.lock().unwrap().iter().map(|it| it.what.clone()).collect();
    assert!(matches!(kinds[..], [OrderKind::Verify { .. }, OrderKind::Verify { .. }]), "{kinds:?}");
    let done = |it: &&(u64, Answer)| matches!(it.1, Answer::Done { .. });
    assert_eq!(answers(&site).iter().filter(done).count(), 2);
    // An order that comes again while its answer is on the way is answered again, and that acknowledged; it is logged once.
    let acknowledged: BTreeSet<u64> =
        member.desk.acknowledged.lock().unwrap().iter().copied().collect();
    assert_eq!(acknowledged, BTreeSet::from([1, 2]));
    let standing = site.running().brain().look(|state| state.nodes[&node("a")].standing());
    assert_eq!(standing.await.unwrap(), Standing::InService);
    member.cordon.send_replace(Cordon::Theirs { owner: "ops".into(), reason: "moving".into() });
    site.wait_for("it is held for another's cordon", |entries| {
        let held = |it: &Event| matches!(it, Event::Moved { to: Standing::Held, .. });
        entries.iter().any(|entry| held(&entry.event))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_log_is_older_than_its_orders_counts_on_from_them() {
    let mut site = Site::plain().await;
    let mut member = Member::new("a");
    *member.desk.last.lock().unwrap() = 41;
    member.connect(&site);
    let desk = std::sync::Arc::clone(&member.desk);
    let numbers =
        || -> Vec<u64> { desk.offered.lock().unwrap().iter().map(|it| it.generation).collect() };
    until("an order is taken", || numbers() == [42]).await;
    until("and that is in the log", || answers(&site) == [(42, Answer::Accepted)]).await;
    let seen = |it: &Event| matches!(it, Event::OrdersSeen { generation: 41, .. });
    assert_eq!(site.count(seen), 1);
    // The oldest backup is of an empty log.
    member.disconnect();
    site.running.take().unwrap().stop().await.unwrap();
    for entry in std::fs::read_dir(site.dir()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("log") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    desk.answers.lock().unwrap().clear();
    // As `farrier server restore` does.
    site.store().forget_log().unwrap();
    site.start(None).await;
    member.connect(&site);
    until("an order is taken", || numbers() == [42, 43]).await;
    until("and that is in the log", || answers(&site) == [(43, Answer::Accepted)]).await;
    // Told again it is no news.
    member.disconnect();
    member.connect(&site);
    member.find(1);
    member.acked(1).await;
    assert_eq!(site.count(|it| matches!(it, Event::OrdersSeen { .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_noticed_and_its_end() {
    let site = Site::plain().await;
    let mut member = Member::new("a");
    member.connect(&site);
    member.acked(0).await;
    member.disconnect();
    // Short only while the node is silent on purpose: no heartbeat of a slow machine is missed.
    let timeout = async |silent_s| {
        let pools_default = PoolPolicy { silent_s, ..PoolPolicy::default() };
        let policy = Box::new(Policy { pools_default, ..Policy::default() });
        let brain = site.running().brain().clone();
        brain.take(Actor::Person("ops".into()), Event::PolicySet { policy }).await.unwrap();
    };
    timeout(3).await;
    let silent = |it: &Event| matches!(it, Event::Silent { .. });
    until("the silence is in the log", || site.count(silent) == 1).await;
    timeout(3600).await;
    member.connect(&site);
    until("its end too", || site.count(|it| matches!(it, Event::Heard { .. })) == 1).await;
    assert_eq!(site.count(silent), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_node_is_cut_and_not_let_in() {
    let site = Site::with_tls().await;
    let mut member = connected(&site).await;
    let retired = Event::Retired { node: node("a"), why: "sold".to_owned() };
    site.running().brain().take(Actor::Person("ops".into()), retired).await.unwrap();
    until("the stream is cut", || member.must_enrol()).await;
    let link = member.attempt_for(1).await;
    assert!(matches!(link, Link::NotConnected { must_enrol: true, .. }), "{link:?}");
    assert_eq!(site.found("a"), Vec::<u64>::new());
    // It comes back with a token like any other, under the name that nobody has now, as when an admin retires it.
    site.store().free_name(&node("a")).unwrap();
    site.enrol("a", &member.identity(), &site.token(None, 1)).await.unwrap();
    member.acked(1).await;
    let generation =
        site.running().brain().look(|state| state.nodes[&node("a")].orders.generation());
    assert!(generation.await.unwrap() >= 1, "orders go on counting");
}

/// Opens a stream as `a` that says this number of its last order.
async fn said(site: &Site, last_order: u64) -> Result<(), tonic::Status> {
    use farrier_wire::proto::{self, Up, up};
    let url = site.url().parse().unwrap();
    let mut agents =
        farrier_wire::client::connect(&url, farrier_wire::client::no_tls()).await.unwrap();
    let makeup = farrier_fleet::fleet::event::Makeup::default();
    let hello = proto::Hello {
        makeup: Some(farrier_wire::form::makeup_message(&makeup)),
        journal: "j".to_owned(),
        last_order,
        ..proto::Hello::default()
    };
    let (out, inbound) = tokio::sync::mpsc::channel(4);
    out.send(Up { what: Some(up::What::Hello(hello)) }).await.unwrap();
    let mut request = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(inbound));
    request.metadata_mut().insert("farrier-node", "a".parse().unwrap());
    let mut down = agents.session(request).await?.into_inner();
    // The order that a joining node gets comes after all that is said of earlier ones.
    loop {
        match down.message().await?.and_then(|it| it.what) {
            Some(proto::down::What::Order(_)) => return Ok(()),
            Some(_) => {}
            None => panic!("it has ended without a word"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_with_a_number_that_was_never_given_does_not_change_the_next() {
    let site = Site::plain().await;
    let mut member = Member::new("a");
    member.connect(&site);
    let desk = std::sync::Arc::clone(&member.desk);
    until("the first order is taken", || *desk.last.lock().unwrap() == 1).await;
    member.disconnect();
    for lie in [1002, 1 << 48, (1 << 48) + 1, u64::MAX - 1, u64::MAX] {
        let status = said(&site, lie).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{lie}: {status}");
        assert!(status.message().contains(&lie.to_string()), "{status}");
    }
    assert_eq!(site.count(|it| matches!(it, Event::OrdersSeen { .. })), 0);
    // The honest one goes on.
    member.connect(&site);
    member.find(1);
    member.acked(1).await;
    let given = site.running().brain().look(|state| state.nodes[&node("a")].orders.generation());
    assert_eq!(given.await.unwrap(), 1);
    // So many may be missing from a log that was restored.
    member.disconnect();
    said(&site, 1001).await.unwrap();
    assert_eq!(site.count(|it| matches!(it, Event::OrdersSeen { generation: 1001, .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_fleets_numbers_is_told_to_enrol_and_then_goes_on() {
    let site = Site::with_tls().await;
    let mut member = Member::new("a");
    site.enrol("a", &member.identity(), &site.token(None, 1)).await.unwrap();
    *member.desk.last.lock().unwrap() = 1 << 48;
    member.connect(&site);
    let sight = member.uplink.as_ref().unwrap().sight();
    let must_enrol = || match &sight.borrow().link {
        Link::NotConnected { why, must_enrol: true, .. } => {
            why.contains("281474976710656") && why.contains("another enrolment")
        }
        _ => false,
    };
    until("it says why, and that it must enrol", must_enrol).await;
    site.enrol("a", &member.identity(), &site.token(Some("a"), 1)).await.unwrap();
    let desk = std::sync::Arc::clone(&member.desk);
    until("it takes the first order", || *desk.last.lock().unwrap() == 1).await;
    until("that is in the log", || answers(&site) == [(1, Answer::Accepted)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordon_that_changes_while_the_agent_says_hello_reaches_the_server() {
    let site = Site::plain().await;
    let mut member = Member::new("a");
    let theirs = Cordon::Theirs { owner: "root".to_owned(), reason: "bad disk".to_owned() };
    *member.desk.cordoned_at_hello.lock().unwrap() = Some((member.cordon.clone(), theirs.clone()));
    member.connect(&site);
    let seen = |it: &Event| matches!(it, Event::CordonSeen { cordon, .. } if *cordon == theirs);
    until("the server knows of the cordon", || site.count(seen) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordon_state_that_did_not_change_is_reported_in_hello_only() {
    let mut site = Site::plain().await;
    let mut member = Member::new("a");
    member.cordon.send_replace(Cordon::None);
    member.connect(&site);
    let is_cordon = |it: &Event| matches!(it, Event::CordonSeen { .. });
    until("the server knows the cordon state", || site.count(is_cordon) == 1).await;
    // The scheduler stops answering while there is no server. Hello says so, and changes nothing.
    site.running.take().unwrap().stop().await.unwrap();
    member.cordon.send_replace(Cordon::Unknown);
    site.start(None).await;
    // A report that is due is sent in one of the agent's next rounds, each of which sends or receives one message.
    for record in 1..=16 {
        member.find(record);
        member.acked(record).await;
    }
    assert_eq!(site.count(is_cordon), 1);
    // A change during the session is reported.
    let theirs = Cordon::Theirs { owner: "root".to_owned(), reason: "bad disk".to_owned() };
    member.cordon.send_replace(theirs);
    until("the server knows of the change", || site.count(is_cordon) == 2).await;
    member.cordon.send_replace(Cordon::Unknown);
    until("and of the next", || site.count(is_cordon) == 3).await;
}
