//! What an uplink does while the server is away, and after it is back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use farrier_agent::uplink::Link;
use tokio::net::TcpListener;

use crate::world::{LONG, Member, PATIENCE, TestServer, until};

/// Listens where a server did. The port may be in use for a moment: by that server, or by another test.
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

fn is_lost(member: &Member) -> bool {
    let sight = member.uplink.as_ref().unwrap().sight();
    let link = &sight.borrow().link;
    matches!(link, Link::NotConnected { .. })
}

/// A site without a server, and a member that had a session and waits an hour before the next attempt.
async fn cut_off() -> (TestServer, Member) {
    let mut site = TestServer::plain().await;
    let mut member = Member::new("a");
    member.fixed_wait = Some(LONG);
    member.connect(&site);
    member.acked(0).await;
    member.find(1);
    member.acked(1).await;
    site.running.take().unwrap().stop().await.unwrap();
    until("the session has ended", || is_lost(&member)).await;
    (site, member)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_finding_does_not_wait_for_the_back_off() {
    let (mut site, mut member) = cut_off().await;
    site.start(None).await;
    member.find_urgent(2);
    member.acked(2).await;
    assert_eq!(site.found("a"), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_finding_while_the_server_is_away_is_reported_soon_after_its_return() {
    let (mut site, mut member) = cut_off().await;
    let elsewhere = listen(site.address).await;
    member.find_urgent(2);
    // The attempt for it comes at once and fails; the next ones are seconds apart.
    let attempt = tokio::time::timeout(PATIENCE, elsewhere.accept()).await;
    drop(attempt.expect("an attempt").unwrap());
    drop(elsewhere);
    site.start(None).await;
    member.acked(2).await;
    assert_eq!(site.found("a"), [1, 2]);
}
