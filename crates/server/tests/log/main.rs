//! The guarantees of the log: one writer, no gaps, a hash chain, archives and snapshots.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod concurrent;
mod recorded;
mod recorded_demo;

use std::path::Path;

use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Entry, Event, FleetState, LOGIC_VERSION, Location, NodeId, Policy};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{
    Anchor, Archived, Hash, Head, IntegrityError, Log, LogError, RecordedHead, Snapshot, archive,
    check_joined, recorded_head, replace_head, verify,
};
use farrier_server::state_machine::StateMachine;
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
    let location = Location::in_pool("train".parse().unwrap());
    let event = Event::Enrolled { node: node(seq), location };
    Entry { seq, batch: seq, at: at(0), by: Actor::Server, logic: LOGIC_VERSION, event }
}

fn entries(from: u64, to: u64) -> Vec<Entry> {
    (from..=to).map(entry).collect()
}

/// A log with `count` entries, and its head with the epoch of its writer.
fn written(folder: &TempDir, count: u64) -> (SqliteLog, Head) {
    let mut log = SqliteLog::open(&folder.path().join("log")).unwrap();
    let epoch = log.take_over().unwrap();
    let head = Head { epoch, ..log.head().unwrap() };
    let head = log.append(&head, &entries(1, count)).unwrap().head;
    (log, head)
}

#[test]
fn appended_entries_survive_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    drop(log);
    let log = SqliteLog::open(&folder.path().join("log")).unwrap();
    assert_eq!(log.head().unwrap(), head);
    let read: Vec<Entry> =
        log.read(2, 2).unwrap().iter().map(|stored| stored.entry().unwrap()).collect();
    assert_eq!(read, entries(3, 4));
    assert_eq!(verify(&log).unwrap(), Ok(head));
}

#[test]
fn gaps_and_stale_heads_are_refused_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, head) = written(&folder, 3);
    let gap = [entry(4), entry(6)];
    assert!(matches!(log.append(&head, &gap), Err(LogError::Gap { seq: 6, after: 4 })));
    assert_eq!(log.head().unwrap(), head, "a refused append leaves no entry");
    let old = Head { seq: 2, ..head };
    assert!(matches!(
        log.append(&old, &[entry(3)]),
        Err(LogError::ConcurrentWrite { expected: 2, found: 3 })
    ));
}

#[test]
fn a_fenced_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, head) = written(&folder, 3);
    let mut other = SqliteLog::open(&folder.path().join("log")).unwrap();
    assert_eq!(other.take_over().unwrap(), head.epoch + 1);
    let refused = log.append(&head, &[entry(4)]);
    assert!(matches!(refused, Err(LogError::Fenced { epoch: 1, current: 2 })), "{refused:?}");
}

/// A log whose batches have two entries each. Each batch is two minutes later than the batch before
/// it.
fn aged(folder: &TempDir, count: u64) -> (SqliteLog, Head) {
    let mut log = SqliteLog::open(&folder.path().join("log")).unwrap();
    let epoch = log.take_over().unwrap();
    let mut head = Head { epoch, ..log.head().unwrap() };
    for seq in 1..=count {
        let batch = (seq - 1) / 2 * 2 + 1;
        let entry = Entry { at: at(60 * batch.cast_signed()), batch, ..entry(seq) };
        head = log.append(&head, &[entry]).unwrap().head;
    }
    (log, head)
}

#[test]
fn old_entries_are_archived_and_the_chain_continues() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, head) = aged(&folder, 20);
    let file = |name: &str| folder.path().join(name);
    let moved = archive(&mut log, at(60 * 6), &file("first")).unwrap().unwrap();
    let Archived::Moved { from: 1, through: first } = moved else { panic!("{moved:?}") };
    assert_eq!((first.seq, log.anchor().unwrap()), (6, first), "a batch is not split");
    assert_eq!(archive(&mut log, at(60 * 6), &file("none")).unwrap(), Ok(Archived::Nothing));
    let moved = archive(&mut log, at(60 * 12), &file("second")).unwrap().unwrap();
    let Archived::Moved { from: 7, through: second } = moved else { panic!("{moved:?}") };
    assert_eq!((second.seq, log.anchor().unwrap()), (12, second));
    assert_eq!(verify(&log).unwrap(), Ok(head), "the remaining entries are intact");
    let archives = ["first", "second"].map(|name| SqliteLog::open_to_read(&file(name)).unwrap());
    assert!(archives.iter().all(|archive| verify(archive).unwrap().is_ok()));
    let read = |log: &dyn Log| log.read(0, 100).unwrap().into_iter().map(|stored| stored.seq);
    let all: Vec<u64> = read(&archives[0]).chain(read(&archives[1])).chain(read(&log)).collect();
    assert_eq!(all, (1..=20).collect::<Vec<u64>>());
    assert_eq!(check_joined(&[&archives[0], &archives[1], &log]).unwrap(), Ok(()));
    assert_eq!(check_joined(&[&archives[0], &log]).unwrap(), Err(IntegrityError::Missing(7)));
    assert_eq!(
        check_joined(&[&archives[0], &archives[0]]).unwrap(),
        Err(IntegrityError::Duplicate(1))
    );
    // Each base state holds the nodes from all earlier archives.
    let base_node_count = |log: &dyn Log| log.base_state().unwrap().nodes.len();
    assert_eq!(
        [base_node_count(&archives[0]), base_node_count(&archives[1]), base_node_count(&log)],
        [0, 6, 12]
    );
    let state_machine = StateMachine::open(Box::new(log)).unwrap();
    assert_eq!((state_machine.state().seq, state_machine.state().nodes.len()), (20, 20));
}

#[test]
fn a_fully_archived_log_can_be_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, head) = aged(&folder, 4);
    archive(&mut log, at(100_000), &folder.path().join("all")).unwrap().unwrap();
    assert_eq!(log.head().unwrap(), head);
    log.append(&head, &[entry(5)]).unwrap();
    let copy = folder.path().join("copy");
    log.back_up(&copy).unwrap();
    let state_machine = StateMachine::open(Box::new(SqliteLog::open(&copy).unwrap())).unwrap();
    assert_eq!(
        (state_machine.state().seq, state_machine.state().nodes.len()),
        (5, 5),
        "a backup has the base snapshot"
    );
}

#[test]
fn a_crash_during_truncation_leaves_a_log_with_the_right_base() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = written(&folder, 10_000);
    let path = folder.path().join("log");
    let edited = rusqlite::Connection::open(&path).unwrap();
    let crash_trigger = "CREATE TRIGGER die BEFORE DELETE ON entries WHEN OLD.seq = 6000
        BEGIN SELECT RAISE(ROLLBACK, 'the power is gone'); END";
    edited.execute_batch(crash_trigger).unwrap();
    let all = at(1);
    assert!(archive(&mut log, all, &folder.path().join("old")).is_err());
    let mut count = edited.prepare("SELECT count(*) FROM entries").unwrap();
    let mut left = || count.query_row([], |row| row.get::<_, u64>(0)).unwrap();
    let after = left();
    assert!(
        (4001..10_000).contains(&after),
        "some pages are deleted and some are left: {after} entries"
    );
    // The log does not show the archived entries that the crash left in the database.
    let anchor = Anchor { seq: 10_000, hash: log.head().unwrap().hash };
    assert_eq!(log.anchor().unwrap(), anchor);
    assert_eq!(log.read(0, 100).unwrap(), []);
    assert!(verify(&log).unwrap().is_ok());
    let mut state_machine = StateMachine::open(Box::new(SqliteLog::open(&path).unwrap())).unwrap();
    assert_eq!((state_machine.state().seq, state_machine.state().nodes.len()), (10_000, 10_000));
    let event = entry(10_001).event;
    state_machine.commit(vec![(Actor::Server, event)], at(2)).unwrap();
    assert_eq!(log.read(0, 1).unwrap()[0].seq, 10_001);
    assert!(verify(&log).unwrap().is_ok());
    // The next run of `archive` deletes these entries, even if it moves no other entry.
    edited.execute_batch("DROP TRIGGER die").unwrap();
    let none = folder.path().join("none");
    assert_eq!(archive(&mut log, all, &none).unwrap(), Ok(Archived::Nothing));
    assert_eq!(left(), log.head().unwrap().seq - 10_000);
}

#[test]
fn a_log_without_its_base_snapshot_is_not_folded() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, head) = aged(&folder, 20);
    let state = FleetState { seq: 12, ..FleetState::default() };
    let other = Snapshot { state, hash: head.hash };
    assert!(matches!(log.truncate(&other), Err(LogError::WrongLog(12))));
    archive(&mut log, at(60 * 12), &folder.path().join("old")).unwrap().unwrap();
    edit(&folder, "UPDATE anchor SET state = x'7b'");
    let opened = StateMachine::open(Box::new(SqliteLog::open(&folder.path().join("log")).unwrap()));
    assert!(matches!(opened.err(), Some(LogError::MissingBaseSnapshot(12))));
}

#[test]
fn a_log_of_format_1_is_read_and_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    drop(log);
    let path = folder.path().join("log");
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch("DROP TABLE anchor; PRAGMA user_version = 1").unwrap();
    drop(old);
    assert_eq!(verify(&SqliteLog::open_to_read(&path).unwrap()).unwrap(), Ok(head));
    let mut log = SqliteLog::open(&path).unwrap();
    log.append(&head, &[entry(6)]).unwrap();
    assert_eq!(log.anchor().unwrap(), Anchor::genesis());
}

fn edit(folder: &TempDir, statement: &str) {
    let connection = rusqlite::Connection::open(folder.path().join("log")).unwrap();
    assert_eq!(connection.execute(statement, []).unwrap(), 1);
}

#[test]
fn an_edited_row_is_detected() {
    for (statement, error) in [
        (
            "UPDATE entries SET bytes = replace(bytes, 'train', 'drain') WHERE seq = 3",
            IntegrityError::Changed(3),
        ),
        ("UPDATE entries SET hash = zeroblob(32) WHERE seq = 5", IntegrityError::Changed(5)),
        ("DELETE FROM entries WHERE seq = 2", IntegrityError::Missing(2)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (log, _) = written(&folder, 5);
        edit(&folder, statement);
        assert_eq!(verify(&log).unwrap(), Err(error), "{statement}");
    }
}

#[test]
fn a_damaged_snapshot_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    for seq in [2, 4] {
        let state = FleetState { seq, ..FleetState::default() };
        log.write_snapshot(&Snapshot { state, hash: head.hash }).unwrap();
    }
    assert_eq!(log.latest_snapshot().unwrap().unwrap().state.seq, 4);
    // The newer snapshot is first truncated, as on a full disk, and then changed.
    let path = folder.path().join("log.state");
    let mut bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(log.latest_snapshot().unwrap().unwrap().state.seq, 2);
    let position = bytes.iter().position(|byte| *byte == b'4').unwrap();
    bytes[position] = b'5';
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(log.latest_snapshot().unwrap().unwrap().state.seq, 2);
}

#[test]
fn another_programs_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE mine (a)").unwrap();
    let error = SqliteLog::open(&path).unwrap_err().to_string();
    assert!(error.contains("another program's database"), "{error}");
    assert!(SqliteLog::open_to_read(Path::new("/nonexistent/log")).is_err());
}

#[test]
fn a_backup_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    let to = folder.path().join("copy");
    log.back_up(&to).unwrap();
    let copy = SqliteLog::open_to_read(&to).unwrap();
    assert_eq!(verify(&copy).unwrap(), Ok(head));
    assert!(log.back_up(&to).is_err(), "an existing file is not overwritten");
}

#[test]
fn a_reopened_state_machine_has_the_same_state() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        StateMachine::open(Box::new(SqliteLog::open(&folder.path().join("log")).unwrap())).unwrap()
    };
    let mut state_machine = open();
    state_machine
        .commit(
            vec![(Actor::Server, Event::PolicySet { policy: Box::new(Policy::default()) })],
            at(0),
        )
        .unwrap();
    for number in 1..=20 {
        let event = entry(number).event;
        let done =
            state_machine.commit(vec![(Actor::Server, event)], at(number.cast_signed())).unwrap();
        assert!(done.entries.len() >= 2, "verification is ordered: {:?}", done.entries);
        let sizes: Vec<usize> =
            done.entries.iter().map(|entry| entry.encode().unwrap().len()).collect();
        assert_eq!(done.entry_bytes, sizes);
        if number == 10 {
            state_machine.write_snapshot().unwrap();
        }
    }
    let (state, head) = (state_machine.state().clone(), state_machine.head());
    drop(state_machine);
    let state_machine = open();
    let bytes = |state: &FleetState| serde_json::to_vec(state).unwrap();
    assert_eq!(bytes(state_machine.state()), bytes(&state));
    assert_eq!((state_machine.head().seq, state_machine.head().hash), (head.seq, head.hash));
    assert_eq!(state_machine.head().epoch, head.epoch + 1);
}

#[test]
fn a_clock_set_back_does_not_set_the_log_time_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut state_machine =
        StateMachine::open(Box::new(SqliteLog::open(&folder.path().join("log")).unwrap())).unwrap();
    state_machine.commit(vec![(Actor::Server, Event::Tick)], at(100)).unwrap();
    let done = state_machine.commit(vec![(Actor::Server, Event::Tick)], at(5)).unwrap();
    assert_eq!(done.entries[0].at, at(100));
}

#[test]
fn a_snapshot_of_another_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (log, head) = written(&folder, 5);
    for seq in [4, 9] {
        log.write_snapshot(&Snapshot {
            state: FleetState { seq, ..FleetState::default() },
            hash: head.hash,
        })
        .unwrap();
        let log = SqliteLog::open(&folder.path().join("log")).unwrap();
        let refused = StateMachine::open(Box::new(log)).err();
        let names_both_heads = matches!(
            refused,
            Some(LogError::OlderThanSnapshot { snapshot, found: 5 }) if snapshot == seq
        );
        assert!(names_both_heads, "{refused:?}");
        let log = SqliteLog::open_to_read(&folder.path().join("log")).unwrap();
        assert_eq!(log.head().unwrap(), head, "no writer took over");
    }
}

#[test]
fn acknowledged_entries_must_exist_and_later_entries_may() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let open = || StateMachine::open(Box::new(SqliteLog::open(&path).unwrap()));
    let mut state_machine = open().unwrap();
    for number in 1..=5 {
        let input = (Actor::Server, entry(number).event);
        state_machine.commit(vec![input], at(number.cast_signed())).unwrap();
    }
    let head = state_machine.head();
    drop(state_machine);
    let recorded = recorded_head(&path).unwrap().unwrap();
    assert_eq!(
        (recorded.seq, recorded.hash),
        (head.seq, head.hash),
        "each commit records the head"
    );
    let check = |recorded: RecordedHead| {
        replace_head(&path, &recorded).unwrap();
        open().map(drop)
    };
    let ahead = check(RecordedHead { seq: head.seq + 1, ..recorded });
    assert!(matches!(ahead, Err(LogError::Truncated { .. })), "{ahead:?}");
    let error = verify(&SqliteLog::open_to_read(&path).unwrap()).unwrap();
    let (recorded_seq, found) = (head.seq + 1, head.seq);
    assert_eq!(error, Err(IntegrityError::Truncated { recorded: recorded_seq, found }));
    let other = check(RecordedHead { hash: Hash::genesis(), ..recorded });
    assert!(matches!(other, Err(LogError::Replaced(_))), "{other:?}");
    let error = verify(&SqliteLog::open_to_read(&path).unwrap()).unwrap();
    assert_eq!(error, Err(IntegrityError::Replaced(head.seq)));
    let log = SqliteLog::open(&path).unwrap();
    let before = log.read(1, 1).unwrap()[0].clone();
    check(RecordedHead { seq: before.seq, hash: before.hash, access: 0 }).unwrap();
    // The recorded entry may also be in an archive.
    drop(log);
    replace_head(&path, &RecordedHead { seq: before.seq, hash: before.hash, access: 0 }).unwrap();
    let mut log = SqliteLog::open(&path).unwrap();
    archive(&mut log, at(100_000), &folder.path().join("old")).unwrap().unwrap();
    drop(log);
    open().unwrap();
}
