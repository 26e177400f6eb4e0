//! Tracks which records of the kernel log were delivered, and how many are missing between two
//! records.

use super::KernelLog;
use super::record::{self, KmsgRecord};

/// Position in the log.
#[derive(Debug)]
pub(super) struct Cursor {
    /// Records up to this sequence number are skipped, because they were already delivered.
    skip_to: Option<u64>,
    /// Sequence number of the last record delivered.
    last: Option<u64>,
}

impl Cursor {
    pub(super) fn after(after: Option<u64>) -> Self {
        Self { skip_to: after, last: after }
    }

    /// Prepares for reading the log from its beginning again.
    pub(super) fn rewind(&mut self) {
        self.skip_to = self.last;
    }

    /// Prepares for another log, whose sequence numbers are unrelated.
    pub(super) fn reset(&mut self) {
        *self = Self { skip_to: None, last: None };
    }

    /// Passes a record to `sink`, unless the record was already delivered. If sequence numbers are
    /// missing between the previous record and this record, first passes the number of lost records
    /// to `sink`. Ignores malformed input.
    pub(super) fn deliver(&mut self, bytes: &[u8], sink: &mut dyn FnMut(KernelLog)) {
        let Some(KmsgRecord { seq, since_boot_us, level, text }) = record::parse(bytes) else {
            return;
        };
        if self.skip_to.is_some_and(|delivered| seq <= delivered) {
            return;
        }
        let missing = self.last.map_or(0, |last| seq.saturating_sub(last).saturating_sub(1));
        if missing > 0 {
            sink(KernelLog::Lost { lines: missing });
        }
        self.last = Some(seq);
        sink(KernelLog::Record { seq, since_boot_us, level, text });
    }
}
