//! A reader of the log gets each entry once and in order, however slow it is. It also notices when
//! the server ends.

use farrier_fleet::fleet::Entry;
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, Location};

use crate::test_server::{TestServer, node};

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_gets_every_entry_once_and_then_the_end() {
    let mut server = TestServer::plain().await;
    let running = server.running.take().unwrap();
    let mut tail = running.tail();
    let mut waiting = running.tail();
    let early = tokio::spawn(async move { waiting.next(0, 1).await.unwrap().unwrap() });
    for number in 0..20 {
        let location = Location::in_pool("train".parse().unwrap());
        let joined = Event::Enrolled { node: node(&format!("n{number}")), location };
        running.controller().submit(Actor::Server, joined).await.unwrap();
    }
    assert_eq!(early.await.unwrap()[0].seq, 1);
    let end = tail.end();
    let mut received: Vec<Entry> = Vec::new();
    while received.len() < usize::try_from(end).unwrap() {
        let from = received.last().map_or(0, |entry| entry.seq);
        received.extend(tail.next(from, 3).await.unwrap().unwrap());
    }
    assert!(received.iter().map(|entry| entry.seq).eq(1..=end));
    running.stop().await.unwrap();
    assert!(tail.next(end, 3).await.is_none());
    assert_eq!(
        tail.read(end - 2, 10).await.unwrap().len(),
        2,
        "durable entries are still readable"
    );
}
