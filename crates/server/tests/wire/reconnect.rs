//! When the uplink reconnects after the server was down.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use farrier_agent::uplink::UplinkState;
use tokio::net::TcpListener;

use crate::test_server::{LONG, PATIENCE, TestNode, TestServer, until};

/// Listens on the port of a stopped server. Retries, because that server or another test may still
/// use the port.
async fn listen(address: SocketAddr) -> TcpListener {
    let end = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(err) => assert!(Instant::now() < end, "{err}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_lost(agent: &TestNode) -> bool {
    let status = agent.uplink.as_ref().unwrap().connection_status();
    let link = &status.borrow().link;
    matches!(link, UplinkState::Disconnected { .. })
}

/// A stopped server, and a node that had a session and waits an hour before its next attempt.
async fn cut_off() -> (TestServer, TestNode) {
    let mut server = TestServer::plain().await;
    let mut agent = TestNode::new("a");
    agent.fixed_wait = Some(LONG);
    agent.connect(&server);
    agent.acked(0).await;
    agent.find(1);
    agent.acked(1).await;
    server.running.take().unwrap().stop().await.unwrap();
    until("the session has ended", || is_lost(&agent)).await;
    (server, agent)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_finding_skips_the_back_off() {
    let (mut server, mut agent) = cut_off().await;
    server.start(None).await;
    agent.find_urgent(2);
    agent.acked(2).await;
    assert_eq!(server.logged_findings("a"), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_finding_during_downtime_is_reported_soon_after() {
    let (mut server, mut agent) = cut_off().await;
    let elsewhere = listen(server.address).await;
    agent.find_urgent(2);
    // The uplink tries to connect at once, and fails. It then retries every few seconds.
    let attempt = tokio::time::timeout(PATIENCE, elsewhere.accept()).await;
    drop(attempt.expect("an attempt").unwrap());
    drop(elsewhere);
    server.start(None).await;
    agent.acked(2).await;
    assert_eq!(server.logged_findings("a"), [1, 2]);
}
