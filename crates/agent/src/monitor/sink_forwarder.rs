//! Forwards journal records to the sink. Records that the sink rejects are retried. The journal
//! holds them meanwhile; the buffer here only saves a re-read after a short outage.

use std::path::PathBuf;

use farrier_fleet::health::Moment;

use super::Chain;
use crate::journal::{Journal, JournalError, Record, Sink, SinkError};

/// Records buffered for a failing sink. Beyond this the forwarder re-reads the journal.
const KEPT_MAX: usize = 256;

/// Retry interval of a failed sink. A reload also retries.
const RETRY_MS: i64 = 60_000;

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("failed to read again what the sink lacks")]
    Journal(#[from] JournalError),
}

/// The sink and its backlog.
#[derive(Debug)]
pub(super) struct SinkForwarder {
    /// `None` if no sink is configured.
    path: Option<PathBuf>,
    sink: Option<Sink>,
    /// Records on disk that the sink has not accepted.
    unsunk: Vec<Record>,
    /// The backlog exceeds the buffer and has to be read from the journal.
    behind: bool,
    /// The record at which the sink failed. The journal is not read until the sink accepts it.
    refused: Option<Record>,
    /// A new sink file starts after this record.
    from: u64,
    failed_ms: Option<i64>,
    retry_now: bool,
}

impl SinkForwarder {
    /// Starts behind: the previous agent may have left a backlog as large as the whole journal.
    pub(super) fn new(path: Option<PathBuf>, seq: u64) -> Self {
        Self {
            behind: path.is_some(),
            path,
            sink: None,
            unsunk: Vec::new(),
            refused: None,
            from: seq,
            failed_ms: None,
            retry_now: false,
        }
    }

    /// Whether the sink works, or none is configured.
    pub(super) fn is_good(&self) -> bool {
        self.failed_ms.is_none()
    }

    /// Buffers records that are now on disk.
    pub(super) fn keep(&mut self, records: Vec<Record>) {
        if self.path.is_none() || self.behind {
            return;
        }
        self.unsunk.extend(records.into_iter().filter(|record| !record.changes.is_empty()));
        if self.unsunk.len() > KEPT_MAX && !self.is_good() {
            self.refused = self.unsunk.drain(..).next();
            self.behind = true;
        }
    }

    /// Forwards the backlog, unless the sink failed within the retry interval.
    pub(super) fn pass_on(&mut self, now: Moment, journal: &Journal) {
        let too_soon = self.failed_ms.is_some_and(|failed| now.steady_ms - failed < RETRY_MS);
        if too_soon && !self.retry_now {
            return;
        }
        self.retry_now = false;
        match self.pass(journal) {
            Ok(()) => {
                if self.failed_ms.take().is_some() {
                    tracing::info!("the sink takes again what it is given");
                }
            }
            Err(err) => {
                if self.failed_ms.replace(now.steady_ms).is_none() {
                    tracing::error!(err = %Chain(&err), "the sink takes nothing");
                }
            }
        }
    }

    fn pass(&mut self, journal: &Journal) -> Result<(), PassError> {
        let Some(path) = &self.path else { return Ok(()) };
        let sink = match &mut self.sink {
            Some(sink) => sink,
            none => none.insert(Sink::open(path, self.from, journal.durable().seq)?),
        };
        if self.behind {
            if let Some(refused) = &self.refused {
                sink.pass(refused)?;
            }
            let mut passed = Ok(());
            let owed = sink.seq();
            let refused = &mut self.refused;
            journal.each(|record| {
                if record.seq >= owed && passed.is_ok() {
                    passed = sink.pass(record);
                    *refused = passed.is_err().then(|| record.clone());
                }
            })?;
            passed?;
            self.behind = false;
            self.unsunk.clear();
            return Ok(());
        }
        let mut taken = 0;
        let mut passed = Ok(());
        for record in &self.unsunk {
            passed = sink.pass(record);
            if passed.is_err() {
                break;
            }
            taken += 1;
        }
        self.unsunk.drain(..taken);
        Ok(passed?)
    }

    /// Applies a reload: reopens a file that was rotated, and retries a failed sink.
    pub(super) fn reload(&mut self, path: Option<PathBuf>, now: Moment, journal: &Journal) {
        let moved = self.sink.as_ref().is_some_and(Sink::was_moved);
        if moved || self.path != path {
            self.pass_on(now, journal);
            let durable = journal.durable().seq;
            self.from = match (&self.sink, self.unsunk.first()) {
                (Some(sink), _) if self.behind => sink.seq(),
                (_, Some(first)) => first.seq - 1,
                // A sink that was just configured does not get earlier records.
                (_, None) if self.behind && self.path.is_some() => self.from,
                (_, None) => durable,
            };
            self.sink = None;
            self.refused = None;
            self.unsunk = Vec::new();
            self.behind = path.is_some();
            if path.is_none() {
                self.failed_ms = None;
            }
            self.path = path;
        }
        self.retry_now = true;
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.unsunk.len()
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
    fn a_sink_that_takes_nothing_costs_no_reading_of_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        let mut journal = Journal::open(&dir, Retention { days: 90, bytes: 1 << 20 }).unwrap();
        let at = Timestamp::UNIX_EPOCH;
        for id in 1..=3 {
            let changes = vec![Change::Opened(finding(id, 1))];
            journal.note(at, "boot", None, changes, Vec::new(), Vec::new());
        }
        journal.flush(at, &Failpoint::default()).unwrap();
        let mut passing = SinkForwarder::new(Some(folder.path().join("sink.jsonl")), 0);
        let path = folder.path().join("sink.jsonl");
        passing.sink = Some(Sink::open(&path, 0, 3).unwrap());
        // The file is opened read-only, so that writes fail.
        passing.sink.as_mut().unwrap().break_file();
        assert!(matches!(passing.pass(&journal), Err(PassError::Sink(_))));
        assert_eq!(passing.refused.as_ref().map(|record| record.seq), Some(1));
        // Reading the journal now would fail: its directory is moved.
        let aside = folder.path().join("aside");
        std::fs::rename(&dir, &aside).unwrap();
        assert!(matches!(passing.pass(&journal), Err(PassError::Sink(_))));
        std::fs::rename(&aside, &dir).unwrap();
        passing.sink = None;
        passing.pass(&journal).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("\"opened\"").count(), 3, "{text}");
    }
}
