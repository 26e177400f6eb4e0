//! Orders are executed once, and their status is logged once. Lost and restored heartbeats are
//! logged.

use std::collections::BTreeSet;

use farrier_agent::uplink::UplinkState;
use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::policy::PoolPolicy;
use farrier_fleet::fleet::{Event, NodePhase, OrderKind, OrderStatus, Policy};

use crate::access::connected;
use crate::test_server::{TestNode, TestServer, node, until};

fn statuses(server: &TestServer) -> Vec<(u64, OrderStatus)> {
    let entries = server.entries().into_iter();
    let statuses = entries.filter_map(|entry| match entry.event {
        Event::OrderStatusReported { generation, status, .. } => Some((generation, status)),
        _ => None,
    });
    statuses.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joining_node_is_verified_and_enters_service() {
    let mut server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    let order_handler = std::sync::Arc::clone(&agent.order_handler);
    let offered = |count| {
        let order_handler = std::sync::Arc::clone(&order_handler);
        move || order_handler.offered.lock().unwrap().len() == count
    };
    until("the first order is offered", offered(1)).await;
    until("its acceptance is in the log", || statuses(&server) == [(1, OrderStatus::Accepted)])
        .await;
    // A crash on either side repeats neither an order nor its status.
    agent.disconnect();
    server.running.take().unwrap().stop().await.unwrap();
    server.start(None).await;
    agent.connect(&server);
    for generation in 1..=2 {
        until("the order is offered", offered(usize::try_from(generation).unwrap())).await;
        let done = OrderStatus::Done { evidence: "all is well".to_owned() };
        *agent.order_handler.answers.lock().unwrap() = vec![(generation, done)];
        agent.cordon_notify.notify_one();
        let order_handler = std::sync::Arc::clone(&agent.order_handler);
        until("the status is acknowledged", || {
            order_handler.acknowledged.lock().unwrap().contains(&generation)
        })
        .await;
    }
    let kinds: Vec<OrderKind> = agent
        .order_handler
        .offered
        .lock()
        .unwrap()
        .iter()
        .map(|order| order.kind.clone())
        .collect();
    assert!(matches!(kinds[..], [OrderKind::Verify { .. }, OrderKind::Verify { .. }]), "{kinds:?}");
    let done = |value: &&(u64, OrderStatus)| matches!(value.1, OrderStatus::Done { .. });
    assert_eq!(statuses(&server).iter().filter(done).count(), 2);
    // If the server resends an order while its status is on the way, the status is reported and
    // acknowledged again. It is logged only once.
    let acknowledged: BTreeSet<u64> =
        agent.order_handler.acknowledged.lock().unwrap().iter().copied().collect();
    assert_eq!(acknowledged, BTreeSet::from([1, 2]));
    let phase = server.running().controller().read(|state| state.nodes[&node("a")].phase());
    assert_eq!(phase.await.unwrap(), NodePhase::InService);
    agent.cordon.send_replace(Cordon::External { owner: "ops".into(), reason: "moving".into() });
    server
        .wait_for("it is held for an external cordon", |entries| {
            let is_held =
                |event: &Event| matches!(event, Event::PhaseChanged { to: NodePhase::Held, .. });
            entries.iter().any(|entry| is_held(&entry.event))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_an_older_log_continues_from_reported_generations() {
    let mut server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    *agent.order_handler.last.lock().unwrap() = 41;
    agent.connect(&server);
    let order_handler = std::sync::Arc::clone(&agent.order_handler);
    let numbers = || -> Vec<u64> {
        order_handler.offered.lock().unwrap().iter().map(|order| order.generation).collect()
    };
    until("an order is accepted", || numbers() == [42]).await;
    until("its acceptance is in the log", || statuses(&server) == [(42, OrderStatus::Accepted)])
        .await;
    let observed =
        |event: &Event| matches!(event, Event::OrderGenerationObserved { generation: 41, .. });
    assert_eq!(server.count(observed), 1);
    // Restore the oldest possible backup: an empty log.
    agent.disconnect();
    server.running.take().unwrap().stop().await.unwrap();
    for entry in std::fs::read_dir(server.dir()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("log") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    order_handler.answers.lock().unwrap().clear();
    // `farrier server restore` does this too.
    server.store().clear_log().unwrap();
    server.start(None).await;
    agent.connect(&server);
    until("an order is accepted", || numbers() == [42, 43]).await;
    until("its acceptance is in the log", || statuses(&server) == [(43, OrderStatus::Accepted)])
        .await;
    // When the node reports the same generation again, nothing is logged.
    agent.disconnect();
    agent.connect(&server);
    agent.find(1);
    agent.acked(1).await;
    assert_eq!(server.count(|event| matches!(event, Event::OrderGenerationObserved { .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_and_restored_heartbeats_are_logged() {
    let server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    agent.acked(0).await;
    agent.disconnect();
    // The timeout is short only while the node sends no heartbeats on purpose. Otherwise a slow
    // machine could exceed it by accident.
    let timeout = async |heartbeat_timeout_s| {
        let pools_default = PoolPolicy { heartbeat_timeout_s, ..PoolPolicy::default() };
        let policy = Box::new(Policy { pools_default, ..Policy::default() });
        let controller = server.running().controller().clone();
        controller.submit(Actor::User("ops".into()), Event::PolicySet { policy }).await.unwrap();
    };
    timeout(3).await;
    let is_lost = |event: &Event| matches!(event, Event::HeartbeatLost { .. });
    until("the lost heartbeat is in the log", || server.count(is_lost) == 1).await;
    timeout(3600).await;
    agent.connect(&server);
    until("the restored heartbeat is in the log", || {
        server.count(|event| matches!(event, Event::HeartbeatRestored { .. })) == 1
    })
    .await;
    assert_eq!(server.count(is_lost), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_node_is_disconnected_and_refused() {
    let server = TestServer::with_tls().await;
    let mut agent = connected(&server).await;
    let retired = Event::Retired { node: node("a"), reason: "sold".to_owned() };
    server.running().controller().submit(Actor::User("ops".into()), retired).await.unwrap();
    until("the session is disconnected", || agent.must_enrol()).await;
    let link = agent.attempt_for(1).await;
    assert!(matches!(link, UplinkState::Disconnected { must_enrol: true, .. }), "{link:?}");
    assert_eq!(server.logged_findings("a"), Vec::<u64>::new());
    // After the name is freed, as an admin does it on retirement, the node can enrol with a token
    // of the pool.
    server.store().free_name(&node("a")).unwrap();
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    agent.acked(1).await;
    let generation =
        server.running().controller().read(|state| state.nodes[&node("a")].orders.generation());
    assert!(generation.await.unwrap() >= 1, "generations continue");
}

/// Opens a session as node `a` whose hello reports `last_order`. Waits for an order.
async fn hello_with(server: &TestServer, last_order: u64) -> Result<(), tonic::Status> {
    use farrier_wire::proto::{self, AgentMessage, agent_message};
    let url = server.url().parse().unwrap();
    let mut agents =
        farrier_wire::client::connect(&url, farrier_wire::client::no_tls()).await.unwrap();
    let inventory = farrier_fleet::fleet::event::NodeInventory::default();
    let hello = proto::Hello {
        inventory: Some(farrier_wire::convert::inventory_message(&inventory)),
        journal: "j".to_owned(),
        last_order,
        ..proto::Hello::default()
    };
    let (out, inbound) = tokio::sync::mpsc::channel(4);
    out.send(AgentMessage { what: Some(agent_message::What::Hello(hello)) }).await.unwrap();
    let mut request = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(inbound));
    request.metadata_mut().insert("farrier-node", "a".parse().unwrap());
    let mut down = agents.session(request).await?.into_inner();
    // The server logs the observed generation before it sends an order to the joining node.
    loop {
        match down.message().await?.and_then(|message| message.what) {
            Some(proto::server_message::What::Order(_)) => return Ok(()),
            Some(_) => {}
            None => panic!("the session ended without a status"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_with_a_never_issued_generation_does_not_change_the_next() {
    let server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    let order_handler = std::sync::Arc::clone(&agent.order_handler);
    until("the first order is accepted", || *order_handler.last.lock().unwrap() == 1).await;
    agent.disconnect();
    for false_generation in [1002, 1 << 48, (1 << 48) + 1, u64::MAX - 1, u64::MAX] {
        let status = hello_with(&server, false_generation).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{false_generation}: {status}");
        assert!(status.message().contains(&false_generation.to_string()), "{status}");
    }
    assert_eq!(server.count(|event| matches!(event, Event::OrderGenerationObserved { .. })), 0);
    // The real node can still connect, and continues with its own generation.
    agent.connect(&server);
    agent.find(1);
    agent.acked(1).await;
    let generation =
        server.running().controller().read(|state| state.nodes[&node("a")].orders.generation());
    assert_eq!(generation.await.unwrap(), 1);
    // The server accepts a generation that is at most 1000 ahead, because a restored log may lack
    // orders.
    agent.disconnect();
    hello_with(&server, 1001).await.unwrap();
    assert_eq!(
        server.count(|event| matches!(
            event,
            Event::OrderGenerationObserved { generation: 1001, .. }
        )),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_fleets_generations_has_to_enrol_again() {
    let server = TestServer::with_tls().await;
    let mut agent = TestNode::new("a");
    server.enrol("a", &agent.identity(), &server.token(None, 1)).await.unwrap();
    *agent.order_handler.last.lock().unwrap() = 1 << 48;
    agent.connect(&server);
    let status = agent.uplink.as_ref().unwrap().connection_status();
    let must_enrol = || match &status.borrow().link {
        UplinkState::Disconnected { reason, must_enrol: true, .. } => {
            reason.contains("281474976710656") && reason.contains("Enrol the node again")
        }
        _ => false,
    };
    until("the uplink reports the cause and that it must enrol", must_enrol).await;
    server.enrol("a", &agent.identity(), &server.token(Some("a"), 1)).await.unwrap();
    let order_handler = std::sync::Arc::clone(&agent.order_handler);
    until("it accepts the first order", || *order_handler.last.lock().unwrap() == 1).await;
    until("its acceptance is in the log", || statuses(&server) == [(1, OrderStatus::Accepted)])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordon_that_changes_during_the_hello_reaches_the_server() {
    let server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    let theirs = Cordon::External { owner: "root".to_owned(), reason: "bad disk".to_owned() };
    *agent.order_handler.cordoned_at_hello.lock().unwrap() =
        Some((agent.cordon.clone(), theirs.clone()));
    agent.connect(&server);
    let observed =
        |event: &Event| matches!(event, Event::CordonObserved { cordon, .. } if *cordon == theirs);
    until("the server has the cordon", || server.count(observed) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_cordon_is_reported_in_the_hello_only() {
    let mut server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.cordon.send_replace(Cordon::None);
    agent.connect(&server);
    let is_cordon = |event: &Event| matches!(event, Event::CordonObserved { .. });
    until("the server has the cordon state", || server.count(is_cordon) == 1).await;
    // The cordon becomes unknown while the server is down. The hello reports an unknown cordon,
    // which does not replace the observed one.
    server.running.take().unwrap().stop().await.unwrap();
    agent.cordon.send_replace(Cordon::Unknown);
    server.start(None).await;
    // The agent's loop sends or receives one message per round. After 16 records, a report of the
    // cordon would have been sent.
    for record in 1..=16 {
        agent.find(record);
        agent.acked(record).await;
    }
    assert_eq!(server.count(is_cordon), 1);
    // The agent reports a change of the cordon during the session.
    let theirs = Cordon::External { owner: "root".to_owned(), reason: "bad disk".to_owned() };
    agent.cordon.send_replace(theirs);
    until("the server has the change", || server.count(is_cordon) == 2).await;
    agent.cordon.send_replace(Cordon::Unknown);
    until("the server has the next change", || server.count(is_cordon) == 3).await;
}
