//! Nothing is lost and nothing doubled, whoever dies when.

use farrier_fleet::fleet::Event;

use crate::test_server::{TestNode, TestServer, until};

#[tokio::test(flavor = "multi_thread")]
async fn findings_of_two_nodes_are_in_the_log_once() {
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
    // The first came with all that was open when the stream began.
    for name in ["a", "b"] {
        assert_eq!(server.found(name), (2..=20).collect::<Vec<_>>());
    }
    assert_eq!(server.count(|event| matches!(event, Event::FindingsSnapshot { .. })), 2);
    assert_eq!(server.count(|event| matches!(event, Event::InventoryReported { .. })), 2);
    let open = site
        .running()
        .controller()
        .read(|state| state.nodes.values().map(|node| node.findings().len()).collect::<Vec<_>>());
    assert_eq!(open.await.unwrap(), [20, 20]);
    server.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_and_what_was_said_before_do_not_reach_the_log() {
    let server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.find(1);
    agent.connect(&server);
    agent.acked(1).await;
    // Orders of a joining node are answered before anything is compared.
    until("the order is accepted", || {
        server.count(|it| matches!(it, Event::OrderStatusReported { .. })) == 1
    })
    .await;
    let entries = server.entries().len();
    for _ in 0..3 {
        agent.disconnect();
        agent.connect(&server);
        agent.acked(1).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let news: Vec<_> = server.entries().split_off(entries);
    let news: Vec<_> = news.iter().filter(|it| !matches!(it.event, Event::Tick)).collect();
    assert!(news.is_empty(), "{news:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_between_the_log_and_the_acknowledgement_loses_and_doubles_nothing() {
    let mut server = TestServer::plain().await;
    let mut nodes = [TestNode::new("a"), TestNode::new("b")];
    for agent in &mut nodes {
        agent.connect(&server);
        agent.acked(0).await;
    }
    let mut next = 1;
    // At each of the next commits it dies once, with what it wrote unsaid.
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
        assert_eq!(server.found(&agent.name), (1..next).collect::<Vec<_>>());
    }
    server.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_found_while_nobody_listened_comes_in_order() {
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
    assert_eq!(server.found("a"), (1..=300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_is_lost_begins_anew_under_another_name() {
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
    until("what is open is what the new journal has", || {
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
async fn fifty_nodes_come_back_after_the_server_did() {
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
async fn a_second_server_does_not_take_the_folder_of_the_first() {
    let server = TestServer::plain().await;
    let refused = farrier_server::run::start(server.options()).await;
    assert!(matches!(refused, Err(farrier_server::run::ServerError::InUse(_))), "{refused:?}");
}
