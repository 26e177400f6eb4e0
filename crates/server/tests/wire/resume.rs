//! Nothing is lost or duplicated, whichever side crashes.

use farrier_fleet::fleet::Event;

use crate::test_server::{TestNode, TestServer, until};

#[tokio::test(flavor = "multi_thread")]
async fn findings_of_two_nodes_are_logged_once() {
    let server = TestServer::plain().await;
    let mut nodes = [TestNode::new("a"), TestNode::new("b")];
    for agent in &mut nodes {
        agent.find(1);
        agent.connect(&server);
    }
    for agent in &mut nodes {
        agent.acked(1).await;
        for id in 2..=20 {
            agent.find(id);
        }
        agent.acked(20).await;
    }
    // The first finding came with the report of all open findings at the start of the session.
    for name in ["a", "b"] {
        assert_eq!(server.logged_findings(name), (2..=20).collect::<Vec<_>>());
    }
    assert_eq!(server.count(|event| matches!(event, Event::FindingsSnapshot { .. })), 2);
    assert_eq!(server.count(|event| matches!(event, Event::InventoryReported { .. })), 2);
    let open = server
        .running()
        .controller()
        .read(|state| state.nodes.values().map(|node| node.findings().len()).collect::<Vec<_>>());
    assert_eq!(open.await.unwrap(), [20, 20]);
    server.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_and_repetitions_are_not_logged() {
    let server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.find(1);
    agent.connect(&server);
    agent.acked(1).await;
    // Wait until the order of the joining node is accepted, so that this is not counted below.
    until("the order is accepted", || {
        server.count(|event| matches!(event, Event::OrderStatusReported { .. })) == 1
    })
    .await;
    let entries = server.entries().len();
    for _ in 0..3 {
        agent.disconnect();
        agent.connect(&server);
        agent.acked(1).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let new_entries: Vec<_> = server.entries().split_off(entries);
    let new_entries: Vec<_> =
        new_entries.iter().filter(|entry| !matches!(entry.event, Event::Tick)).collect();
    assert!(new_entries.is_empty(), "{new_entries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_append_and_acknowledgement_loses_and_duplicates_nothing() {
    let mut server = TestServer::plain().await;
    let mut nodes = [TestNode::new("a"), TestNode::new("b")];
    for agent in &mut nodes {
        agent.connect(&server);
        agent.acked(0).await;
    }
    let mut next = 1;
    // The server crashes once at each of the next commits, before it acknowledges the commit.
    for fail_after_commits in 1..=6 {
        drop(server.running.take());
        server.start(Some(fail_after_commits)).await;
        for _ in 0..4 {
            for agent in &mut nodes {
                agent.find(next);
            }
            next += 1;
        }
        server.running.as_mut().unwrap().failed().await;
    }
    drop(server.running.take());
    server.start(None).await;
    for agent in &nodes {
        agent.acked(next - 1).await;
        assert_eq!(server.logged_findings(&agent.name), (1..next).collect::<Vec<_>>());
    }
    server.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn findings_from_downtime_arrive_in_order() {
    let mut server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.connect(&server);
    agent.acked(0).await;
    agent.disconnect();
    server.running.take().unwrap().stop().await.unwrap();
    for id in 1..=300 {
        agent.find(id);
    }
    agent.open_journal();
    server.start(None).await;
    agent.connect(&server);
    agent.acked(300).await;
    assert_eq!(server.logged_findings("a"), (1..=300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_journal_restarts_under_a_new_name() {
    let server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    for id in 1..=5 {
        agent.find(id);
    }
    agent.connect(&server);
    agent.acked(5).await;
    agent.disconnect();
    agent.lose_journal();
    agent.find(9);
    agent.connect(&server);
    until("the open findings are those of the new journal", || {
        let entries = server.entries();
        let last = entries.iter().rev().find_map(|entry| match &entry.event {
            Event::FindingsSnapshot { record, open, .. } => Some((record.number, open.len())),
            _ => None,
        });
        last == Some((1, 1))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_nodes_reconnect_after_a_server_restart() {
    let mut server = TestServer::plain().await;
    let mut nodes: Vec<TestNode> = (0..50).map(|at| TestNode::new(&format!("n{at}"))).collect();
    for agent in &mut nodes {
        agent.connect(&server);
    }
    for agent in &nodes {
        agent.acked(0).await;
    }
    server.running.take().unwrap().stop().await.unwrap();
    for agent in &mut nodes {
        agent.find(1);
    }
    server.start(None).await;
    for agent in &nodes {
        agent.acked(1).await;
    }
    assert_eq!(server.count(|event| matches!(event, Event::FindingsReported { .. })), 50);
    assert_eq!(server.count(|event| matches!(event, Event::Enrolled { .. })), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_cannot_use_the_folder() {
    let server = TestServer::plain().await;
    let refused = farrier_server::run::start(server.options()).await;
    assert!(matches!(refused, Err(farrier_server::run::ServerError::InUse(_))), "{refused:?}");
}
