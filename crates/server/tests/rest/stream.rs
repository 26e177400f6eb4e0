//! Log streams send each entry once and in order, also to slow readers and to readers that
//! reconnect. A stream ends when its token is revoked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use farrier_fleet::fleet::Role;
use farrier_fleet::fleet::event::Event;
use farrier_fleet::fleet::identity::Actor;
use farrier_server::access::AccessTokenKind;
use jiff::Timestamp;
use serde_json::Value;

use crate::test_fleet::TestFleet;
use crate::test_server::{PATIENCE, node};

/// A reader of server-sent events.
struct Reader {
    lines: BufReader<TcpStream>,
}

impl Reader {
    /// Opens a stream. `headers` are further request headers, each with its line end.
    fn open(address: SocketAddr, token: &str, query: &str, headers: &str) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // HTTP/1.0 has no chunked encoding, which would split lines.
        let text = format!(
            "GET /api/v1/events/stream{query} HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{headers}\r\n"
        );
        socket.write_all(text.as_bytes()).unwrap();
        Self { lines: BufReader::new(socket) }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap();
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event. Its ID is the number of the entry.
    fn next(&mut self) -> Option<Value> {
        let mut id = None;
        loop {
            let line = self.line()?;
            if let Some(number) = line.strip_prefix("id: ") {
                id = Some(number.parse::<u64>().unwrap());
            }
            if let Some(data) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(data).unwrap();
                assert_eq!(event["seq"].as_u64(), id, "the id is the entry's number");
                return Some(event);
            }
        }
    }

    /// The numbers of the next entries, up to entry `last`.
    fn seqs(&mut self, last: u64) -> Vec<u64> {
        let mut seqs = Vec::new();
        while seqs.last() != Some(&last) {
            seqs.push(self.next().unwrap()["seq"].as_u64().unwrap());
        }
        seqs
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_loses_nothing_and_does_not_block_others() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Admin, "fleet");
    let address = fleet.server.address;
    let begin = fleet.server.running().tail().end();
    let slow = tokio::task::spawn_blocking(move || {
        Reader::open(address, &token, &format!("?after={begin}"), "")
    });
    let mut slow = slow.await.unwrap();
    // The slow reader reads nothing until a thousand findings are logged.
    for number in 1..=1000 {
        fleet.report_finding("a", number).await;
    }
    let end = fleet.server.running().tail().end();
    assert!(end >= begin + 1000);
    let received = tokio::task::spawn_blocking(move || slow.seqs(end)).await.unwrap();
    assert!(received.iter().copied().eq(begin + 1..=end), "each once and in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_resumes_where_it_stopped() {
    let mut fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Admin, "fleet");
    for number in 1..=10 {
        fleet.report_finding("a", number).await;
    }
    let (address, key) = (fleet.server.address, token.clone());
    let some = tokio::task::spawn_blocking(move || {
        let mut reader = Reader::open(address, &key, "?after=0", "");
        (0..5).map(|_| reader.next().unwrap()["seq"].as_u64().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(some.await.unwrap(), [1, 2, 3, 4, 5]);
    // The server restarts. The reader resumes with `Last-Event-ID`, which takes precedence over
    // `after`.
    fleet.server.running.take().unwrap().stop().await.unwrap();
    fleet.server.start(None).await;
    fleet.report_finding("b", 1).await;
    let end = fleet.server.running().tail().end();
    let address = fleet.server.address;
    let rest = tokio::task::spawn_blocking(move || {
        let mut reader = Reader::open(address, &token, "?after=0", "Last-Event-ID: 5\r\n");
        reader.seqs(end)
    });
    assert!(rest.await.unwrap().into_iter().eq(6..=end));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_limited_by_scope_and_filter() {
    let fleet = TestFleet::open().await;
    let token = fleet.token("ann", Role::Viewer, "pool:train");
    let address = fleet.server.address;
    let reader = tokio::task::spawn_blocking(move || {
        let mut reader = Reader::open(address, &token, "?kind=findings-reported", "");
        assert_eq!(reader.line().unwrap(), "HTTP/1.0 200 OK");
        while reader.line().unwrap() != "retry: 2000" {}
        reader
    });
    let mut reader = reader.await.unwrap();
    for (name, number) in [("c", 1), ("a", 1), ("c", 2), ("b", 1)] {
        fleet.report_finding(name, number).await;
    }
    let received = tokio::task::spawn_blocking(move || {
        (0..2)
            .map(|_| reader.next().unwrap()["node"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    });
    assert_eq!(received.await.unwrap(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_token_and_with_the_server() {
    let mut fleet = TestFleet::open().await;
    let (first, second) =
        (fleet.token("ann", Role::Viewer, "fleet"), fleet.token("bob", Role::Viewer, "fleet"));
    let address = fleet.server.address;
    let readers = tokio::task::spawn_blocking(move || {
        [first, second].map(|token| {
            let mut reader = Reader::open(address, &token, "", "");
            while reader.line().unwrap() != "retry: 2000" {}
            reader
        })
    });
    let [mut ann, mut bob] = readers.await.unwrap();
    let by = Actor::User("local:test".to_owned());
    fleet.server.store().revoke_token_by(&by, AccessTokenKind::User, 1, Timestamp::now()).unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        ann.lines.read_to_end(&mut rest).unwrap();
    });
    ended.await.unwrap();
    // When the server stops, it ends open streams and does not wait for their readers.
    let running = fleet.server.running.take().unwrap();
    running.stop().await.unwrap();
    let ended = tokio::task::spawn_blocking(move || while bob.line().is_some() {});
    ended.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_the_log_is_complete() {
    let fleet = TestFleet::open().await;
    for number in 1..=600 {
        fleet.report_finding("a", number).await;
    }
    fleet.submit(Event::Retired { node: node("b"), reason: "sold".to_owned() }).await;
    let token = fleet.token("ann", Role::Admin, "fleet");
    let end = fleet.server.running().tail().end();
    let answer = fleet.send("GET", "/api/v1/export?data=log", Some(&token), None).await;
    let seqs: Vec<u64> = answer
        .body
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap())
        .collect();
    assert!(seqs.len() as u64 >= end && seqs.iter().copied().eq(1..=seqs.len() as u64));
}
