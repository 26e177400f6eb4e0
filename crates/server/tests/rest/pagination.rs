//! Pages of the log are limited in bytes. Together they contain each entry once.

use farrier_fleet::fleet::event::{Event, JournalPosition};
use farrier_fleet::fleet::{Entry, Role};
use farrier_fleet::health::{Change, Finding};
use serde_json::Value;

use crate::test_fleet::TestFleet;
use crate::test_server::{finding, node};

/// Number of large entries in the log.
const LARGE: u64 = 40;
/// Size of a large entry.
const LARGE_BYTES: usize = 200 << 10;
/// Maximum bytes of a page with more than one entry.
const PAGE_BYTES: usize = 2 << 20;
/// Maximum bytes of the JSON around the events of a page.
const ENVELOPE_BYTES: usize = 1 << 10;

/// A fleet whose log has large entries between small ones.
async fn fleet() -> TestFleet {
    let fleet = TestFleet::open().await;
    for number in 1..=LARGE {
        let large = Finding { text: "x".repeat(LARGE_BYTES), ..finding(1) };
        let record = JournalPosition { journal: "j".to_owned(), number };
        let changes = vec![Change::Opened(large)];
        fleet.submit(Event::FindingsReported { node: node("a"), record, changes }).await;
        fleet.report_finding("b", number).await;
    }
    fleet
}

fn seqs(page: &Value) -> Vec<u64> {
    page["events"].as_array().unwrap().iter().map(|row| row["seq"].as_u64().unwrap()).collect()
}

/// Reads all entries page by page in one direction.
async fn walked(fleet: &TestFleet, token: &str, direction: &str, from: u64) -> Vec<u64> {
    let mut all = Vec::new();
    let mut at = from;
    loop {
        let path = format!("/api/v1/events?limit=500&{direction}={at}");
        let answer = fleet.send("GET", &path, Some(token), None).await;
        assert!(answer.body.len() <= PAGE_BYTES + ENVELOPE_BYTES, "{} bytes", answer.body.len());
        let page = answer.json();
        let found = seqs(&page);
        assert!(!found.is_empty(), "each page advances");
        all.extend(found);
        match page["next"].as_u64() {
            Some(next) => at = next,
            None => return all,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_large_entries_are_short_and_complete() {
    let fleet = fleet().await;
    let token = fleet.token("vic", Role::Admin, "fleet");
    let end = fleet.server.running().tail().end();
    let forward = walked(&fleet, &token, "after", 0).await;
    assert!(forward[..usize::try_from(end).unwrap()].iter().copied().eq(1..=end), "{forward:?}");
    let mut backward = walked(&fleet, &token, "before", end + 1).await;
    backward.reverse();
    assert!(backward.iter().copied().eq(1..=end), "{backward:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_and_export_reads_are_limited_in_bytes() {
    let fleet = fleet().await;
    let tail = fleet.server.running().tail();
    let end = tail.end();
    let mut at = 0;
    while at < end {
        let read = tail.read(at, 500).await.unwrap();
        let size = |entry: &Entry| entry.encode().unwrap().len();
        let bytes: usize = read.iter().map(size).sum();
        assert!(read.len() == 1 || bytes <= farrier_server::log_tail::READ_BYTES_MAX, "{bytes}");
        assert!(read.iter().map(|entry| entry.seq).eq(at + 1..=at + read.len() as u64));
        at += read.len() as u64;
    }
    // Reading backwards gives the newest entries first, with the same limit.
    let back = tail.read_back(end + 1, 500).await.unwrap();
    assert!(back.iter().map(|entry| entry.seq).eq((end + 1 - back.len() as u64..=end).rev()));
    assert!(back.len() < 10, "{} entries", back.len());
    let token = fleet.token("vic", Role::Admin, "fleet");
    let answer = fleet.send("GET", "/api/v1/export?data=log", Some(&token), None).await;
    let lines = answer.body.lines().filter(|line| line.starts_with("{\"seq\"")).count() as u64;
    assert!(lines >= end, "{lines} of {end}");
}
