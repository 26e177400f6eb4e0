//! Which records were given already, and how many are missing between two.

use super::KernelLog;
use super::record::{self, Record};

/// The place in the log.
#[derive(Debug)]
pub(super) struct Cursor {
    /// Records up to this one were given before.
    skip_to: Option<u64>,
    /// The last record that was read.
    last: Option<u64>,
}

impl Cursor {
    pub(super) fn after(after: Option<u64>) -> Self {
        Self { skip_to: after, last: after }
    }

    /// The log is read anew from its beginning.
    pub(super) fn rewind(&mut self) {
        self.skip_to = self.last;
    }

    /// The log is another one: its numbers have nothing to do with those before.
    pub(super) fn forget(&mut self) {
        *self = Self { skip_to: None, last: None };
    }

    /// Gives a record unless it was given before, and says what is missing before it. What is not
    /// a record is none of ours.
    pub(super) fn give(&mut self, bytes: &[u8], sink: &mut dyn FnMut(KernelLog)) {
        let Some(Record { seq, since_boot_us, level, text }) = record::parse(bytes) else { return };
        if self.skip_to.is_some_and(|given| seq <= given) {
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
