//! The server appends and archives entries while its log is verified.

use std::cell::{Cell, RefCell};

use farrier_fleet::fleet::{Entry, FleetState};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{
    Anchor, Appended, Archived, Head, Integrity, Log, LogError, RecordedHead, Snapshot,
    SnapshotWriter, Stored, archive, verify,
};

use crate::{at, entry, written};

/// A log that changes right after each read. `after_read` gets the number of the read.
struct Busy<'b> {
    log: SqliteLog,
    reads: Cell<usize>,
    after_read: RefCell<Box<dyn FnMut(usize) + 'b>>,
}

impl<'b> Busy<'b> {
    fn new(log: SqliteLog, after_read: impl FnMut(usize) + 'b) -> Self {
        Self { log, reads: Cell::new(0), after_read: RefCell::new(Box::new(after_read)) }
    }
}

impl Log for Busy<'_> {
    fn head(&self) -> Result<Head, LogError> {
        self.log.head()
    }

    fn anchor(&self) -> Result<Anchor, LogError> {
        self.log.anchor()
    }

    fn take_over(&mut self) -> Result<u64, LogError> {
        self.log.take_over()
    }

    fn append(&mut self, head: &Head, entries: &[Entry]) -> Result<Appended, LogError> {
        self.log.append(head, entries)
    }

    fn read(&self, seq: u64, limit: usize) -> Result<Vec<Stored>, LogError> {
        let read = self.log.read(seq, limit);
        self.reads.set(self.reads.get() + 1);
        self.after_read.borrow_mut()(self.reads.get());
        read
    }

    fn snapshot_writer(&self) -> Box<dyn SnapshotWriter + Send> {
        self.log.snapshot_writer()
    }

    fn latest_snapshot(&self) -> Result<Option<Snapshot>, LogError> {
        self.log.latest_snapshot()
    }

    fn recorded_head(&self) -> Result<Option<RecordedHead>, LogError> {
        self.log.recorded_head()
    }

    fn record_head(&mut self, head: &RecordedHead) -> Result<(), LogError> {
        self.log.record_head(head)
    }

    fn check_integrity(&self) -> Result<Integrity, LogError> {
        self.log.check_integrity()
    }

    fn base_state(&self) -> Result<FleetState, LogError> {
        self.log.base_state()
    }

    fn truncate(&mut self, begin: &Snapshot) -> Result<(), LogError> {
        self.log.truncate(begin)
    }

    fn delete_truncated(&mut self) -> Result<(), LogError> {
        self.log.delete_truncated()
    }
}

#[test]
fn appends_during_verification_are_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, mut head) = written(&folder, 5);
    let read = SqliteLog::open_to_read(&folder.path().join("log")).unwrap();
    // The second page is empty, and an entry is appended before the head is read. Then the same
    // happens again.
    let busy = Busy::new(read, |reads| {
        if reads == 2 || reads == 4 {
            head = log.append(&head, &[entry(head.seq + 1)]).unwrap().head;
        }
    });
    let verified = verify(&busy).unwrap();
    drop(busy);
    assert_eq!(verified, Ok(head));
    assert_eq!(head.seq, 7);
}

#[test]
fn archiving_during_verification_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    // The first page ends before the last archived entry.
    let (mut log, head) = written(&folder, 6000);
    let last = Entry { at: at(100), ..entry(6001) };
    let head = log.append(&head, &[last]).unwrap().head;
    let read = SqliteLog::open_to_read(&folder.path().join("log")).unwrap();
    let old = folder.path().join("old");
    let busy = Busy::new(read, |reads| {
        if reads == 1 {
            let moved = archive(&mut log, at(50), &old).unwrap().unwrap();
            assert!(matches!(
                moved,
                Archived::Moved { from: 1, through: Anchor { seq: 6000, .. } }
            ));
        }
    });
    assert_eq!(verify(&busy).unwrap(), Ok(head));
}
