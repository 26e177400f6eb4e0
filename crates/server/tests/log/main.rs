//! What every log promises, shown on each that there is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Entry, Event, FleetState, NodeId, Place, Policy};
use farrier_server::core::Core;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Flaw, Head, Log, LogError, Snapshot, verify};
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

fn at(second: i64) -> Timestamp {
    let start: Timestamp = "2026-11-15T00:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(second)
}

fn node(number: u64) -> NodeId {
    format!("n{number}").parse().unwrap()
}

fn entry(seq: u64) -> Entry {
    let place = Place::in_pool("train".parse().unwrap());
    let event = Event::Enrolled { node: node(seq), place };
    Entry { seq, batch: seq, at: at(0), by: Actor::Server, event }
}

fn entries(from: u64, to: u64) -> Vec<Entry> {
    (from..=to).map(entry).collect()
}

/// A log with a writer and so many entries.
fn written(folder: &TempDir, count: u64) -> (SqliteLog, Head) {
    let mut log = SqliteLog::open(&folder.path().join("log")).unwrap();
    let epoch = log.take_over().unwrap();
    let head = Head { epoch, ..log.head().unwrap() };
    let head = log.append(&head, &entries(1, count)).unwrap();
    (log, head)
}

#[test]
fn what_was_appended_is_there_after_it_was_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    drop(log);
    let log = SqliteLog::open(&folder.path().join("log")).unwrap();
    assert_eq!(log.head().unwrap(), head);
    let read: Vec<Entry> = log.read(2, 2).unwrap().iter().map(|it| it.entry().unwrap()).collect();
    assert_eq!(read, entries(3, 4));
    assert_eq!(verify(&log).unwrap(), Ok(head));
}

#[test]
fn a_gap_and_a_writer_that_does_not_know_the_end_are_refused_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, head) = written(&folder, 3);
    let gap = [entry(4), entry(6)];
    assert!(matches!(log.append(&head, &gap), Err(LogError::Gap { seq: 6, after: 4 })));
    assert_eq!(log.head().unwrap(), head, "all or none");
    let old = Head { seq: 2, ..head };
    assert!(matches!(
        log.append(&old, &[entry(3)]),
        Err(LogError::Moved { expected: 2, found: 3 })
    ));
}

#[test]
fn a_writer_of_an_epoch_that_is_over_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, head) = written(&folder, 3);
    let mut other = SqliteLog::open(&folder.path().join("log")).unwrap();
    assert_eq!(other.take_over().unwrap(), head.epoch + 1);
    let refused = log.append(&head, &[entry(4)]);
    assert!(matches!(refused, Err(LogError::Fenced { epoch: 1, current: 2 })), "{refused:?}");
}

fn edit(folder: &TempDir, statement: &str) {
    let connection = rusqlite::Connection::open(folder.path().join("log")).unwrap();
    assert_eq!(connection.execute(statement, []).unwrap(), 1);
}

#[test]
fn an_edited_row_is_found() {
    for (statement, flaw) in [
        (
            "UPDATE entries SET bytes = replace(bytes, 'train', 'brain') WHERE seq = 3",
            Flaw::Changed(3),
        ),
        ("UPDATE entries SET hash = zeroblob(32) WHERE seq = 5", Flaw::Changed(5)),
        ("DELETE FROM entries WHERE seq = 2", Flaw::Missing(2)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (log, _) = written(&folder, 5);
        edit(&folder, statement);
        assert_eq!(verify(&log).unwrap(), Err(flaw), "{statement}");
    }
}

#[test]
fn a_kept_state_that_does_not_read_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    for seq in [2, 4] {
        let state = FleetState { seq, ..FleetState::default() };
        log.keep(&Snapshot { state, hash: head.hash }).unwrap();
    }
    assert_eq!(log.newest().unwrap().unwrap().state.seq, 4);
    // Cut off, as by a disk that is full, and then changed.
    let path = folder.path().join("log.state");
    let mut bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(log.newest().unwrap().unwrap().state.seq, 2);
    let at = bytes.iter().position(|it| *it == b'4').unwrap();
    bytes[at] = b'5';
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(log.newest().unwrap().unwrap().state.seq, 2);
}

#[test]
fn a_file_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE mine (a)").unwrap();
    let error = SqliteLog::open(&path).unwrap_err().to_string();
    assert!(error.contains("a database of something else"), "{error}");
    assert!(SqliteLog::open_to_read(Path::new("/nonexistent/log")).is_err());
}

#[test]
fn a_backup_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    let to = folder.path().join("copy");
    log.back_up(&to).unwrap();
    let copy = SqliteLog::open_to_read(&to).unwrap();
    assert_eq!(verify(&copy).unwrap(), Ok(head));
    assert!(log.back_up(&to).is_err(), "a copy is not written over");
}

#[test]
fn a_core_that_is_opened_anew_knows_what_it_knew() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        || Core::open(Box::new(SqliteLog::open(&folder.path().join("log")).unwrap())).unwrap();
    let mut core = open();
    core.commit(
        vec![(Actor::Server, Event::PolicySet { policy: Box::new(Policy::default()) })],
        at(0),
    )
    .unwrap();
    for number in 1..=20 {
        let event = entry(number).event;
        let done = core.commit(vec![(Actor::Server, event)], at(number.cast_signed())).unwrap();
        assert!(done.entries.len() >= 2, "it is verified: {:?}", done.entries);
        if number == 10 {
            core.keep().unwrap();
        }
    }
    let (state, head) = (core.state().clone(), core.head());
    drop(core);
    let core = open();
    let bytes = |state: &FleetState| serde_json::to_vec(state).unwrap();
    assert_eq!(bytes(core.state()), bytes(&state));
    assert_eq!((core.head().seq, core.head().hash), (head.seq, head.hash));
    assert_eq!(core.head().epoch, head.epoch + 1);
}

#[test]
fn a_clock_that_is_set_back_does_not_take_the_log_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut core =
        Core::open(Box::new(SqliteLog::open(&folder.path().join("log")).unwrap())).unwrap();
    core.commit(vec![(Actor::Server, Event::TimePassed)], at(100)).unwrap();
    let done = core.commit(vec![(Actor::Server, Event::TimePassed)], at(5)).unwrap();
    assert_eq!(done.entries[0].at, at(100));
}

#[test]
fn a_state_of_another_log_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    for seq in [4, 9] {
        log.keep(&Snapshot { state: FleetState { seq, ..FleetState::default() }, hash: head.hash })
            .unwrap();
        let log = SqliteLog::open(&folder.path().join("log")).unwrap();
        let core = Core::open(Box::new(log)).unwrap();
        assert_eq!(
            (core.state().seq, core.state().nodes.len()),
            (5, 5),
            "folded from the first entry"
        );
    }
}
