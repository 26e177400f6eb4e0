//! Nothing is lost and nothing doubled, whoever dies when.

use farrier_fleet::fleet::Event;

use crate::world::{Member, TestServer, until};

#[tokio::test(flavor = "multi_thread")]
async fn findings_of_two_nodes_are_in_the_log_once() {
    let site = TestServer::plain().await;
    let mut nodes = [Member::new("a"), Member::new("b")];
    for member in &mut nodes {
        member.find(1);
        member.connect(&site);
    }
    for member in &mut nodes {
        member.acked(1).await;
        for id in 2..=20 {
            member.find(id);
        }
        member.acked(20).await;
    }
    // The first came with all that was open when the stream began.
    for name in ["a", "b"] {
        assert_eq!(site.found(name), (2..=20).collect::<Vec<_>>());
    }
    assert_eq!(site.count(|event| matches!(event, Event::FindingsSnapshot { .. })), 2);
    assert_eq!(site.count(|event| matches!(event, Event::InventoryReported { .. })), 2);
    let open = site
        .running()
        .brain()
        .look(|state| state.nodes.values().map(|node| node.findings().len()).collect::<Vec<_>>());
    assert_eq!(open.await.unwrap(), [20, 20]);
    site.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_and_what_was_said_before_do_not_reach_the_log() {
    let site = TestServer::plain().await;
    let mut member = Member::new("a");
    member.find(1);
    member.connect(&site);
    member.acked(1).await;
    // Orders of a joining node are answered before anything is compared.
    until("the order is accepted", || {
        site.count(|it| matches!(it, Event::OrderStatusReported { .. })) == 1
    })
    .await;
    let entries = site.entries().len();
    for _ in 0..3 {
        member.disconnect();
        member.connect(&site);
        member.acked(1).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let news: Vec<_> = site.entries().split_off(entries);
    let news: Vec<_> = news.iter().filter(|it| !matches!(it.event, Event::Tick)).collect();
    assert!(news.is_empty(), "{news:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_between_the_log_and_the_acknowledgement_loses_and_doubles_nothing() {
    let mut site = TestServer::plain().await;
    let mut nodes = [Member::new("a"), Member::new("b")];
    for member in &mut nodes {
        member.connect(&site);
        member.acked(0).await;
    }
    let mut next = 1;
    // At each of the next commits it dies once, with what it wrote unsaid.
    for dies_after in 1..=6 {
        drop(site.running.take());
        site.start(Some(dies_after)).await;
        for _ in 0..4 {
            for member in &mut nodes {
                member.find(next);
            }
            next += 1;
        }
        site.running.as_mut().unwrap().failed().await;
    }
    drop(site.running.take());
    site.start(None).await;
    for member in &nodes {
        member.acked(next - 1).await;
        assert_eq!(site.found(&member.name), (1..next).collect::<Vec<_>>());
    }
    site.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_found_while_nobody_listened_comes_in_order() {
    let mut site = TestServer::plain().await;
    let mut member = Member::new("a");
    member.connect(&site);
    member.acked(0).await;
    member.disconnect();
    site.running.take().unwrap().stop().await.unwrap();
    for id in 1..=300 {
        member.find(id);
    }
    member.open_journal();
    site.start(None).await;
    member.connect(&site);
    member.acked(300).await;
    assert_eq!(site.found("a"), (1..=300).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_is_lost_begins_anew_under_another_name() {
    let site = TestServer::plain().await;
    let mut member = Member::new("a");
    for id in 1..=5 {
        member.find(id);
    }
    member.connect(&site);
    member.acked(5).await;
    member.disconnect();
    member.lose_journal();
    member.find(9);
    member.connect(&site);
    until("what is open is what the new journal has", || {
        let entries = site.entries();
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
    let mut site = TestServer::plain().await;
    let mut nodes: Vec<Member> = (0..50).map(|at| Member::new(&format!("n{at}"))).collect();
    for member in &mut nodes {
        member.connect(&site);
    }
    for member in &nodes {
        member.acked(0).await;
    }
    site.running.take().unwrap().stop().await.unwrap();
    for member in &mut nodes {
        member.find(1);
    }
    site.start(None).await;
    for member in &nodes {
        member.acked(1).await;
    }
    assert_eq!(site.count(|event| matches!(event, Event::FindingsReported { .. })), 50);
    assert_eq!(site.count(|event| matches!(event, Event::Enrolled { .. })), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_does_not_take_the_folder_of_the_first() {
    let site = TestServer::plain().await;
    let refused = farrier_server::run::start(site.options()).await;
    assert!(matches!(refused, Err(farrier_server::run::ServerError::InUse(_))), "{refused:?}");
}
