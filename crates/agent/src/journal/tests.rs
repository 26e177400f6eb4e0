//! Durability of the journal.

use std::fs::OpenOptions;

use farrier_fleet::health::{Action, Change, Evidence, Finding, FindingKind, Severity, Subject};

use super::*;

const BOOT: &str = "boot-1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn retention(bytes: u64) -> Retention {
    Retention { days: 90, bytes }
}

pub(crate) fn finding(id: u64, count: u64) -> Finding {
    Finding {
        id,
        code: "gpu.xid".to_owned(),
        detail: format!("Xid {id}"),
        subject: Subject::Node,
        kind: FindingKind::Fault,
        severity: Severity::Warning,
        text: "text ".repeat(20),
        action: Action::Investigate,
        remedy: None,
        rule_action: Action::Investigate,
        action_by: farrier_fleet::health::finding::ActionBy::Rule,
        evidence: Vec::new(),
        first_seen: at(0),
        last_seen: at(0),
        opened_in: None,
        default_severity: None,
        last_in: None,
        count,
        clears_when: "nothing".to_owned(),
        cleared: None,
    }
}

fn open(dir: &Path) -> Journal {
    Journal::open(dir, retention(64 << 20)).unwrap()
}

fn write(journal: &mut Journal, second: i64, kernel_seq: u64, changes: Vec<Change>) {
    journal.append(at(second), BOOT, Some(kernel_seq), changes, Vec::new(), Vec::new());
    journal.flush(at(second), &Failpoint::default()).unwrap();
}

#[test]
fn flushed_records_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 10, vec![Change::Opened(finding(1, 1)), Change::Opened(finding(2, 1))]);
    write(
        &mut journal,
        2,
        12,
        vec![Change::Updated(finding(1, 5)), Change::Cleared(finding(2, 1))],
    );
    let durable = journal.durable().clone();
    drop(journal);
    let journal = open(folder.path());
    assert_eq!(journal.durable(), &durable);
    assert_eq!(durable.open.len(), 1);
    assert_eq!(durable.open[&1].count, 5);
    assert_eq!((durable.next_id, durable.seq), (3, 2));
    assert_eq!(durable.kernel_cursor(BOOT), Some(12));
    assert_eq!(durable.kernel_cursor("boot-2"), None);
    assert_eq!(durable.opened["gpu.xid"], 2);
}

#[test]
fn recovery_reports_are_restored_in_the_same_boot() {
    let reports = |value| {
        let (subject, signal) = (Subject::Node, farrier_fleet::health::Signal::NodeDriverLoaded);
        vec![RecoverySignal { subject, signal, value }]
    };
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    // Every write to this device fails, so records are merged.
    let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
    write(&mut journal, 1, 1, Vec::new());
    let good = journal.file.replace(full);
    journal.append(at(2), BOOT, None, Vec::new(), Vec::new(), reports(1.0));
    for turn in 0..2000 {
        let update = if turn == 7 { reports(0.0) } else { Vec::new() };
        journal.append(at(2), BOOT, None, Vec::new(), Vec::new(), update);
    }
    assert!(journal.flush(at(2), &Failpoint::default()).is_err());
    journal.file = good;
    journal.flush(at(3), &Failpoint::default()).unwrap();
    assert_eq!(journal.durable().saved().recovery_signals, reports(0.0));
    drop(journal);
    let mut journal = open(folder.path());
    assert_eq!(journal.durable().saved().recovery_signals, reports(0.0));
    journal.rotate(at(4)).unwrap();
    write(&mut journal, 4, 2, Vec::new());
    drop(journal);
    let mut journal = open(folder.path());
    assert_eq!(journal.durable().saved().recovery_signals, reports(0.0));
    journal.append(at(5), "boot-2", None, Vec::new(), Vec::new(), Vec::new());
    journal.flush(at(5), &Failpoint::default()).unwrap();
    assert_eq!(journal.durable().saved().recovery_signals, []);
}

#[test]
fn a_torn_line_loses_only_its_own_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 10, vec![Change::Opened(finding(1, 1))]);
    let good = journal.bytes();
    write(&mut journal, 2, 11, vec![Change::Opened(finding(2, 1))]);
    let whole = journal.bytes();
    drop(journal);
    let path = segment::path(folder.path(), 1);
    let bytes = fs::read(&path).unwrap();
    for cut in (good..whole).step_by(7).chain([whole - 1]) {
        fs::write(&path, &bytes[..usize::try_from(cut).unwrap()]).unwrap();
        let mut journal = open(folder.path());
        assert_eq!(journal.recovery().torn_bytes, cut - good);
        assert_eq!(journal.durable().seq, 1, "cut at {cut}");
        assert_eq!(journal.durable().kernel_seq, Some(10));
        write(&mut journal, 3, 11, vec![Change::Opened(finding(2, 1))]);
        drop(journal);
        let journal = open(folder.path());
        assert_eq!(journal.recovery(), &Recovery::default());
        assert_eq!(journal.durable().open.len(), 2);
    }
}

#[test]
fn a_damaged_line_is_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    for id in 1..=3 {
        write(&mut journal, 1, 10 + id, vec![Change::Opened(finding(id, 1))]);
    }
    drop(journal);
    let path = segment::path(folder.path(), 1);
    let text = fs::read_to_string(&path).unwrap().replacen("\"seq\":2", "\"sXq\":2", 1);
    fs::write(&path, text).unwrap();
    let journal = open(folder.path());
    assert_eq!(journal.recovery().damaged_lines, 1);
    assert_eq!(journal.durable().open.keys().copied().collect::<Vec<_>>(), [1, 3]);
    assert_eq!((journal.durable().seq, journal.durable().next_id), (3, 4));
}

#[test]
fn a_newer_format_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = segment::path(folder.path(), 1);
    fs::write(&path, "{\"v\":3,\"something\":\"else\"}\n").unwrap();
    let err = Journal::open(folder.path(), retention(1 << 20)).unwrap_err();
    assert!(matches!(err, JournalError::Newer { version: 3, .. }), "{err}");
}

#[test]
fn format_version_1_is_readable() {
    let folder = tempfile::tempdir().unwrap();
    let line = include_str!("testdata/version_1.jsonl");
    fs::write(segment::path(folder.path(), 1), line).unwrap();
    let (state, recovery) = load(folder.path()).unwrap();
    assert_eq!(recovery, Recovery::default());
    assert_eq!(state.open[&7].count, 3);
    assert_eq!(state.kernel_cursor("2b4c"), Some(912));
    // In that version, the evidence of an Xid from NVML is a kernel log line.
    assert!(
        matches!(&state.open[&8].evidence[..], [Evidence::Kernel { line, .. }] if !line.is_empty())
    );
    // An agent that continues the journal appends records in its own version.
    let mut journal = open(folder.path());
    journal.append(
        at(1),
        "2b4c",
        None,
        vec![Change::Opened(finding(9, 1))],
        Vec::new(),
        Vec::new(),
    );
    journal.flush(at(1), &Failpoint::default()).unwrap();
    drop(journal);
    let (state, recovery) = load(folder.path()).unwrap();
    assert_eq!((recovery, state.open.len()), (Recovery::default(), 3));
}

#[test]
fn format_version_2_is_readable() {
    let folder = tempfile::tempdir().unwrap();
    let line = include_str!("testdata/version_2.jsonl");
    fs::write(segment::path(folder.path(), 1), line).unwrap();
    let (state, recovery) = load(folder.path()).unwrap();
    assert_eq!(recovery, Recovery::default());
    let [Evidence::Nvml { xid, .. }] = &state.open[&8].evidence[..] else {
        panic!("{:?}", state.open[&8].evidence);
    };
    assert_eq!((xid.code, xid.gpu.0.as_str(), xid.index), (79, "GPU-0005", Some(5)));
}

#[test]
fn one_agent_locks_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let journal = open(folder.path());
    let err = Journal::open(folder.path(), retention(1 << 20)).unwrap_err();
    assert!(matches!(err, JournalError::InUse { .. }), "{err}");
    drop(journal);
    drop(open(folder.path()));
}

#[test]
fn retention_is_bounded_in_bytes_and_days_and_keeps_open_findings() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = 1 << 20;
    let mut journal = Journal::open(folder.path(), retention(bytes)).unwrap();
    write(&mut journal, 0, 1, vec![Change::Opened(finding(1, 1))]);
    for turn in 0..200 {
        let changes = (2..=41).map(|id| Change::Updated(finding(id, turn))).collect();
        write(&mut journal, 1, turn, changes);
        assert!(journal.bytes() <= bytes + (128 << 10), "{}", journal.bytes());
    }
    assert!(journal.segments.len() > 2);
    assert!(journal.segments[0].number > 1);
    let durable = journal.durable().clone();
    drop(journal);
    let mut journal = Journal::open(folder.path(), retention(bytes)).unwrap();
    assert_eq!(journal.durable(), &durable);
    assert_eq!(durable.open.len(), 41);
    // Three months later all but the newest have expired.
    let later = 91 * 86_400;
    write(&mut journal, later, 1, vec![Change::Updated(finding(2, 1))]);
    write(&mut journal, later + 100 * 86_400, 1, vec![Change::Updated(finding(2, 2))]);
    write(&mut journal, later + 100 * 86_400 + 1, 1, vec![Change::Updated(finding(2, 2))]);
    assert_eq!(journal.segments.len(), 1, "{:?}", journal.segments);
    assert_eq!(segment::list(folder.path()).unwrap().len(), 1);
    assert_eq!(journal.durable().open.len(), 41);
}

#[test]
fn a_new_segment_that_could_not_be_opened_is_used_by_the_next_write() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 1, vec![Change::Opened(finding(1, 1))]);
    // Make a step after the rename fail: `reopen` requests the lock, which this test still holds.
    let lock = journal.lock.take();
    assert!(journal.rotate(at(2)).is_err());
    assert!(segment::path(folder.path(), 2).exists());
    journal.lock = lock;
    write(&mut journal, 3, 2, vec![Change::Opened(finding(2, 1))]);
    let durable = journal.durable().clone();
    assert_eq!(durable.open.len(), 2);
    drop(journal);
    assert_eq!(open(folder.path()).durable(), &durable);
}

#[test]
fn a_large_snapshot_is_not_rewritten_with_every_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), retention(1 << 20)).unwrap();
    let large = |id| Change::Opened(Finding { text: "x".repeat(40_000), ..finding(id, 1) });
    write(&mut journal, 1, 1, (1..=5).map(large).collect());
    for turn in 0..20 {
        write(&mut journal, 2, turn, vec![Change::Opened(finding(6, turn))]);
    }
    assert_eq!(journal.segments.last().unwrap().number, 2);
    let durable = journal.durable().clone();
    drop(journal);
    let mut journal = Journal::open(folder.path(), retention(1 << 20)).unwrap();
    write(&mut journal, 3, 1, vec![Change::Opened(finding(6, 99))]);
    assert_eq!(journal.segments.last().unwrap().number, 2, "a restart does not rewrite it either");
    assert_eq!(durable.open.len(), journal.durable().open.len());
}

#[test]
fn a_state_larger_than_the_line_limit_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), retention(1 << 20)).unwrap();
    for id in 1..=18 {
        let large = Finding { text: "x".repeat(1_000_000), ..finding(id, 1) };
        write(&mut journal, 1, id, vec![Change::Opened(large)]);
    }
    let durable = journal.durable().clone();
    drop(journal);
    let journal = Journal::open(folder.path(), retention(1 << 20)).unwrap();
    assert_eq!(journal.recovery(), &Recovery::default());
    assert!(journal.durable() == &durable, "{} findings", journal.durable().open.len());
}

#[test]
fn a_damaged_snapshot_does_not_stop_retention() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = 1 << 20;
    let mut journal = Journal::open(folder.path(), retention(bytes)).unwrap();
    let fill = |journal: &mut Journal, to: u64| {
        while journal.segments.last().unwrap().number < to {
            let changes = (1..=40).map(|id| Change::Updated(finding(id, to))).collect();
            write(journal, 1, 1, changes);
        }
    };
    fill(&mut journal, 3);
    drop(journal);
    let path = segment::path(folder.path(), 2);
    let text = fs::read_to_string(&path).unwrap().replacen("\"seq\"", "\"sXq\"", 1);
    fs::write(&path, text).unwrap();
    let mut journal = Journal::open(folder.path(), retention(bytes)).unwrap();
    assert_eq!((journal.durable().open.len(), journal.recovery().damaged_lines), (40, 1));
    fill(&mut journal, 20);
    assert!(journal.bytes() <= bytes + (128 << 10), "{}", journal.bytes());
    let durable = journal.durable().clone();
    drop(journal);
    assert_eq!(open(folder.path()).durable(), &durable);
}

#[test]
fn no_record_is_lost_while_the_disk_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 1, vec![Change::Opened(finding(1, 1))]);
    // Every write to this device fails as on a full disk.
    let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
    let good = journal.file.replace(full);
    for turn in 0..5000 {
        let changes =
            vec![Change::Updated(finding(1, turn)), Change::Opened(finding(10 + turn, 1))];
        journal.append(at(2), BOOT, Some(turn), changes, Vec::new(), Vec::new());
        if turn % 500 == 0 {
            assert!(journal.flush(at(2), &Failpoint::default()).is_err());
        }
    }
    assert!(journal.waiting() <= 1001);
    assert_eq!(journal.durable().open.len(), 1);
    journal.file = good;
    let written = journal.flush(at(3), &Failpoint::default()).unwrap();
    assert!(!written.is_empty());
    let durable = journal.durable().clone();
    assert_eq!(durable.open.len(), 5001);
    assert_eq!(durable.open[&1].count, 4999);
    drop(journal);
    assert_eq!(open(folder.path()).durable(), &durable);
}

#[test]
fn a_partial_write_is_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 1, vec![Change::Opened(finding(1, 1))]);
    journal.file.as_mut().unwrap().write_all(b"{\"v\":1,\"seq\":2,\"at").unwrap();
    journal.dirty = true;
    write(&mut journal, 2, 2, vec![Change::Opened(finding(2, 1))]);
    drop(journal);
    let journal = open(folder.path());
    assert_eq!(journal.recovery(), &Recovery::default());
    assert_eq!(journal.durable().open.len(), 2);
}

#[test]
fn a_disk_that_is_full_at_startup_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 1, vec![Change::Opened(finding(1, 1))]);
    // As when even the lock file cannot be created.
    (journal.lock, journal.file) = (None, None);
    assert!(!journal.is_open());
    write(&mut journal, 2, 2, vec![Change::Opened(finding(2, 1))]);
    assert!(journal.is_open());
    drop(journal);
    assert_eq!(open(folder.path()).durable().open.len(), 2);
    assert!(is_disk_unwritable(&io::Error::from(io::ErrorKind::StorageFull)));
    assert!(!is_disk_unwritable(&io::Error::from(io::ErrorKind::PermissionDenied)));
}

fn sunk(path: &Path) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter_map(|line| Some((line.get("seq")?.as_u64()?, line.get("n")?.as_u64()?))).collect()
}

#[test]
fn the_sink_gets_each_change_once_wherever_it_was_torn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sink.jsonl");
    let mut journal = open(folder.path());
    let mut sink = Sink::open(&path, 0, 0).unwrap();
    let mut records = Vec::new();
    for turn in 1..=4 {
        let changes =
            vec![Change::Opened(finding(2 * turn, 1)), Change::Opened(finding(2 * turn + 1, 1))];
        journal.append(at(1), BOOT, None, changes, Vec::new(), Vec::new());
        records.extend(journal.flush(at(1), &Failpoint::default()).unwrap());
    }
    for record in &records {
        sink.write_record(record).unwrap();
    }
    let whole = sunk(&path);
    assert_eq!(whole.len(), 8);
    let bytes = fs::read(&path).unwrap();
    let start = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for cut in start..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let mut sink = Sink::open(&path, 4, 4).unwrap();
        for record in &records {
            sink.write_record(record).unwrap();
        }
        assert_eq!(sunk(&path), whole, "cut at {cut}");
    }
}

#[test]
fn a_file_that_is_not_a_sink_is_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 1, vec![Change::Opened(finding(1, 1))]);
    let path = folder.path().join("other");
    let segment = fs::read_to_string(segment::path(folder.path(), 1)).unwrap();
    for text in ["root:x:0:0\nlast line without an end", "one line", &segment] {
        fs::write(&path, text).unwrap();
        let err = Sink::open(&path, 1, 1).unwrap_err();
        assert!(matches!(err, SinkError::Foreign { .. }), "{err}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    // A file torn in its first line counts as a sink.
    let first = "{\"v\":1,\"start\":1}\n";
    for cut in 0..=first.len() {
        fs::write(&path, &first[..cut]).unwrap();
        drop(Sink::open(&path, 1, 1).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), first);
    }
}

#[test]
fn a_new_sink_starts_at_the_end_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sink.jsonl");
    let mut journal = open(folder.path());
    let mut records = Vec::new();
    for id in 1..=3 {
        journal.append(
            at(1),
            BOOT,
            None,
            vec![Change::Opened(finding(id, 1))],
            Vec::new(),
            Vec::new(),
        );
        records.extend(journal.flush(at(1), &Failpoint::default()).unwrap());
    }
    drop(Sink::open(&path, 2, 2).unwrap());
    let mut sink = Sink::open(&path, 3, 3).unwrap();
    for record in &records {
        sink.write_record(record).unwrap();
    }
    assert_eq!(sunk(&path), [(3, 1)]);
    assert!(!sink.was_moved());
    fs::rename(&path, folder.path().join("sink.jsonl.1")).unwrap();
    assert!(sink.was_moved());
}

#[test]
fn a_clock_step_does_not_expire_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    let day = 86_400;
    for turn in 0..5 {
        write(&mut journal, turn * 2 * day, 1, vec![Change::Opened(finding(1, 1))]);
    }
    let before = journal.segments.len();
    assert!(before > 3);
    let year = 365 * day;
    write(&mut journal, year, 1, vec![Change::Updated(finding(1, 2))]);
    assert!(journal.segments.len() > before, "the jump alone deletes nothing");
    journal.set_clock_suspect(true);
    write(&mut journal, year + 1, 1, vec![Change::Updated(finding(1, 3))]);
    assert!(journal.segments.len() > before, "a write while the clock is suspect deletes nothing");
    write(&mut journal, 9 * day, 1, vec![Change::Updated(finding(1, 4))]);
    journal.set_clock_suspect(false);
    write(&mut journal, 9 * day + 1, 1, vec![Change::Updated(finding(1, 5))]);
    assert!(journal.segments.len() > before, "after the correction, nothing is too old");
}

#[test]
fn merged_records_stay_below_the_line_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = open(folder.path());
    write(&mut journal, 1, 1, vec![Change::Opened(finding(1, 1))]);
    let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
    let good = journal.file.replace(full);
    for turn in 0..1100 {
        let large = Finding { text: "x".repeat(20_000), ..finding(10 + turn, 1) };
        journal.append(
            at(2),
            BOOT,
            Some(turn),
            vec![Change::Opened(large)],
            Vec::new(),
            Vec::new(),
        );
    }
    journal.file = good;
    let written = journal.flush(at(3), &Failpoint::default()).unwrap();
    assert!(written.windows(2).all(|two| two[0].seq < two[1].seq), "sequence numbers increase");
    let durable = journal.durable().clone();
    assert_eq!((durable.open.len(), durable.kernel_seq), (1101, Some(1099)));
    drop(journal);
    let journal = open(folder.path());
    assert_eq!(journal.recovery(), &Recovery::default());
    assert_eq!(journal.durable(), &durable);
}
