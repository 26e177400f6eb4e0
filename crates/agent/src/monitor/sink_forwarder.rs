//! Forwards journal records to the sink, which is a file of changes for log shippers. If a write to
//! the sink fails, its records stay in the journal, and the write is retried. Records go through a
//! buffer, so that the journal is read only at the start, after a reload, and after a long failure.

use std::path::PathBuf;

use farrier_fleet::health::Moment;

use super::Chain;
use crate::journal::{Journal, JournalError, JournalRecord, Sink, SinkError};

/// Maximum number of records that are buffered while the sink fails. If there are more, they are
/// read from the journal again.
const BUFFERED_MAX: usize = 256;

/// Retry interval after a failure of the sink. A reload of the configuration retries at once.
const RETRY_MS: i64 = 60_000;

#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("failed to read the sink's backlog from the journal")]
    Journal(#[from] JournalError),
}

/// The sink and its backlog.
#[derive(Debug)]
pub(super) struct SinkForwarder {
    /// `None` if no sink is configured.
    path: Option<PathBuf>,
    sink: Option<Sink>,
    /// Records on disk that the sink has not accepted.
    buffered: Vec<JournalRecord>,
    /// Whether the backlog has to be read from the journal: after a start or a reload, and when it
    /// is too large for the buffer.
    behind: bool,
    /// The first record that the sink has not accepted. While the forwarder has it, it tries this
    /// record before it reads the journal again. A reload that reopens the sink drops it.
    rejected: Option<JournalRecord>,
    /// Sequence number after which a new sink file starts: the file gets only later records.
    from: u64,
    failed_ms: Option<i64>,
    retry_now: bool,
}

impl SinkForwarder {
    /// Creates a forwarder. `behind` is set at first, because the backlog of the previous agent
    /// process may be as large as the whole journal.
    pub(super) fn new(path: Option<PathBuf>, seq: u64) -> Self {
        Self {
            behind: path.is_some(),
            path,
            sink: None,
            buffered: Vec::new(),
            rejected: None,
            from: seq,
            failed_ms: None,
            retry_now: false,
        }
    }

    /// `true` if the sink works, or if no sink is configured.
    pub(super) fn is_ok(&self) -> bool {
        self.failed_ms.is_none()
    }

    /// Buffers records that are now on disk.
    pub(super) fn enqueue(&mut self, records: Vec<JournalRecord>) {
        if self.path.is_none() || self.behind {
            return;
        }
        self.buffered.extend(records.into_iter().filter(|record| !record.changes.is_empty()));
        if self.buffered.len() > BUFFERED_MAX && !self.is_ok() {
            self.rejected = self.buffered.drain(..).next();
            self.behind = true;
        }
    }

    /// Forwards the backlog, unless the sink failed within the retry interval.
    pub(super) fn forward(&mut self, now: Moment, journal: &Journal) {
        let too_soon = self.failed_ms.is_some_and(|failed| now.steady_ms - failed < RETRY_MS);
        if too_soon && !self.retry_now {
            return;
        }
        self.retry_now = false;
        match self.try_forward(journal) {
            Ok(()) => {
                if self.failed_ms.take().is_some() {
                    tracing::info!("the sink accepts records again");
                }
            }
            Err(err) => {
                if self.failed_ms.replace(now.steady_ms).is_none() {
                    tracing::error!(err = %Chain(&err), "the sink rejects records");
                }
            }
        }
    }

    fn try_forward(&mut self, journal: &Journal) -> Result<(), ForwardError> {
        let Some(path) = &self.path else { return Ok(()) };
        let sink = match &mut self.sink {
            Some(sink) => sink,
            none => none.insert(Sink::open(path, self.from, journal.durable().seq)?),
        };
        if self.behind {
            if let Some(rejected) = &self.rejected {
                sink.write_record(rejected)?;
            }
            let mut result = Ok(());
            let first = sink.seq();
            let rejected = &mut self.rejected;
            journal.for_each(|record| {
                if record.seq >= first && result.is_ok() {
                    result = sink.write_record(record);
                    *rejected = result.is_err().then(|| record.clone());
                }
            })?;
            result?;
            self.behind = false;
            self.buffered.clear();
            return Ok(());
        }
        let mut accepted = 0;
        let mut result = Ok(());
        for record in &self.buffered {
            result = sink.write_record(record);
            if result.is_err() {
                break;
            }
            accepted += 1;
        }
        self.buffered.drain(..accepted);
        Ok(result?)
    }

    /// Applies a reload: reopens a file that was rotated, and retries a failed sink.
    pub(super) fn reload(&mut self, path: Option<PathBuf>, now: Moment, journal: &Journal) {
        let moved = self.sink.as_ref().is_some_and(Sink::was_moved);
        if moved || self.path != path {
            self.forward(now, journal);
            let durable = journal.durable().seq;
            self.from = match (&self.sink, self.buffered.first()) {
                (Some(sink), _) if self.behind => sink.seq(),
                (_, Some(first)) => first.seq - 1,
                // The sink was configured but never opened: keep its starting point, so that it gets
                // everything since it was configured.
                (_, None) if self.behind && self.path.is_some() => self.from,
                // Everything was forwarded, or the sink is new and gets only later records.
                (_, None) => durable,
            };
            self.sink = None;
            self.rejected = None;
            self.buffered = Vec::new();
            self.behind = path.is_some();
            if path.is_none() {
                self.failed_ms = None;
            }
            self.path = path;
        }
        self.retry_now = true;
    }

    #[cfg(test)]
    pub(super) fn buffered(&self) -> usize {
        self.buffered.len()
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Change;
    use jiff::Timestamp;

    use super::*;
    use crate::config::Retention;
    use crate::failpoint::Failpoint;
    use crate::journal::tests::finding;

    #[test]
    fn a_failing_sink_does_not_re_read_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        let mut journal = Journal::open(&dir, Retention { days: 90, bytes: 1 << 20 }).unwrap();
        let at = Timestamp::UNIX_EPOCH;
        for id in 1..=3 {
            let changes = vec![Change::Opened(finding(id, 1))];
            journal.append(at, "boot", None, changes, Vec::new(), Vec::new());
        }
        journal.flush(at, &Failpoint::default()).unwrap();
        let mut forwarder = SinkForwarder::new(Some(folder.path().join("sink.jsonl")), 0);
        let path = folder.path().join("sink.jsonl");
        forwarder.sink = Some(Sink::open(&path, 0, 3).unwrap());
        // Open the file read-only, so that writes fail.
        forwarder.sink.as_mut().unwrap().break_file();
        assert!(matches!(forwarder.try_forward(&journal), Err(ForwardError::Sink(_))));
        assert_eq!(forwarder.rejected.as_ref().map(|record| record.seq), Some(1));
        // Move the journal's directory, so that reading the journal would fail.
        let aside = folder.path().join("aside");
        std::fs::rename(&dir, &aside).unwrap();
        assert!(matches!(forwarder.try_forward(&journal), Err(ForwardError::Sink(_))));
        std::fs::rename(&aside, &dir).unwrap();
        forwarder.sink = None;
        forwarder.try_forward(&journal).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("\"opened\"").count(), 3, "{text}");
    }
}
