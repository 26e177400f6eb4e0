//! Readers of the growing log. Each reader reads from disk at its own speed, so a slow reader does
//! not block the controller and misses no entries.

use std::path::PathBuf;
use std::sync::Arc;

use farrier_fleet::fleet::Entry;
use farrier_fleet::fleet::ledger::{FleetReport, LedgerSpec};
use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::log::sqlite::SqliteLog;
use crate::log::{Damage, Log, LogError, Stored};
use crate::report::{ReportError, report};

/// Maximum number of bytes of entries per read. A single entry may be larger. An entry typically
/// has some hundred bytes, but up to a megabyte if it has all open findings of a node.
pub const READ_BYTES_MAX: usize = 512 << 10;
/// Number of entries that are loaded before their bytes are counted.
const STEP_ENTRIES: u64 = 8;
/// Maximum concurrent reads. Together with [`STEP_ENTRIES`], this limits the memory for entries
/// whose bytes are not counted yet.
const READS_MAX: usize = 4;

/// A handle to read the log.
#[derive(Debug, Clone)]
pub struct LogTail {
    path: Arc<PathBuf>,
    end: watch::Receiver<u64>,
    damage: Damage,
    reads: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct EntryPage {
    entries: Vec<Entry>,
    bytes: usize,
}

impl EntryPage {
    /// Adds an entry. Returns false if the page is already full.
    fn push(&mut self, stored: &Stored) -> Result<bool, LogError> {
        self.bytes += stored.bytes.len();
        if self.bytes > READ_BYTES_MAX && !self.entries.is_empty() {
            return Ok(false);
        }
        self.entries.push(stored.entry()?);
        Ok(true)
    }
}

/// Entries after `seq`, oldest first.
fn forward(log: &dyn Log, seq: u64, limit: usize) -> Result<Vec<Entry>, LogError> {
    let mut page = EntryPage::default();
    let mut at = seq;
    while page.entries.len() < limit {
        let step = usize::try_from(STEP_ENTRIES).unwrap_or(1).min(limit - page.entries.len());
        let stored_entries = log.read(at, step)?;
        let Some(last) = stored_entries.last() else { break };
        at = last.seq;
        for stored in &stored_entries {
            if !page.push(stored)? {
                return Ok(page.entries);
            }
        }
    }
    Ok(page.entries)
}

/// Entries before `seq`, newest first.
fn backward(log: &dyn Log, seq: u64, limit: usize) -> Result<Vec<Entry>, LogError> {
    let mut page = EntryPage::default();
    let first = seq.saturating_sub(u64::try_from(limit).unwrap_or(u64::MAX)).max(1);
    let mut end = seq;
    while end > first {
        let begin = end.saturating_sub(STEP_ENTRIES).max(first);
        let stored_entries = log.read(begin - 1, usize::try_from(end - begin).unwrap_or(1))?;
        // If entries were archived in the meantime, the log returns later entries instead. Skip
        // these later entries.
        for stored in stored_entries.iter().rev().filter(|stored| stored.seq < end) {
            if !page.push(stored)? {
                return Ok(page.entries);
            }
        }
        end = begin;
    }
    Ok(page.entries)
}

impl LogTail {
    /// Creates a handle. `end` provides the number of the last entry.
    pub(crate) fn new(path: PathBuf, end: watch::Receiver<u64>, damage: Damage) -> Self {
        Self { path: Arc::new(path), end, damage, reads: Arc::new(Semaphore::new(READS_MAX)) }
    }

    /// Reports damage that a read found. The writer then stops, because nothing may be appended to
    /// a damaged log.
    fn note_damage<T>(&self, read: Result<T, LogError>) -> Result<T, LogError> {
        read.inspect_err(|err| self.damage.note(err))
    }

    /// Number of the last entry in the log.
    pub fn end(&self) -> u64 {
        *self.end.borrow()
    }

    /// Number of the first entry in the log. Earlier entries are in an archive.
    pub async fn begin(&self) -> Result<u64, LogError> {
        let path = Arc::clone(&self.path);
        let read = tokio::task::spawn_blocking(move || {
            Ok(SqliteLog::open_to_read(&path)?.anchor()?.seq + 1)
        });
        self.note_damage(read.await.unwrap_or(Err(LogError::ReadUnfinished)))
    }

    /// Returns up to `limit` entries after `seq`. If these entries exceed [`READ_BYTES_MAX`],
    /// returns fewer entries, but at least one.
    pub async fn read(&self, seq: u64, limit: usize) -> Result<Vec<Entry>, LogError> {
        if seq >= self.end() {
            return Ok(Vec::new());
        }
        self.page(move |log| forward(log, seq, limit)).await
    }

    /// Returns up to `limit` entries before `seq`, newest first. The size limit of
    /// [`Self::read`] applies.
    pub async fn read_back(&self, seq: u64, limit: usize) -> Result<Vec<Entry>, LogError> {
        self.page(move |log| backward(log, seq, limit)).await
    }

    /// Computes a report from the whole log, unless the reader disconnects. The time depends on the
    /// length of the log, so this does not use one of the concurrent reads.
    pub(crate) async fn report<T: Send + 'static>(
        &self,
        spec: LedgerSpec,
        now: Timestamp,
        reader: mpsc::WeakSender<T>,
    ) -> Result<FleetReport, ReportError> {
        let path = Arc::clone(&self.path);
        let folded = tokio::task::spawn_blocking(move || {
            let log = SqliteLog::open_to_read(&path)?;
            report(&[&log], spec, Some(now), || {
                reader.upgrade().is_none_or(|reader| reader.is_closed())
            })
        });
        let report = folded.await.unwrap_or(Err(LogError::ReadUnfinished.into()));
        report.inspect_err(|err| {
            if let ReportError::Log(err) = err {
                self.damage.note(err);
            }
        })
    }

    async fn page(
        &self,
        read: impl FnOnce(&dyn Log) -> Result<Vec<Entry>, LogError> + Send + 'static,
    ) -> Result<Vec<Entry>, LogError> {
        let permit = Arc::clone(&self.reads).acquire_owned().await;
        let permit = permit.map_err(|_| LogError::ReadUnfinished)?;
        let path = Arc::clone(&self.path);
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read(&SqliteLog::open_to_read(&path)?)
        });
        // Archived entries are missing from the page. Readers skip over them.
        self.note_damage(read.await.unwrap_or(Err(LogError::ReadUnfinished)))
    }

    /// Waits for an entry after `seq`, then reads up to `limit` entries. Returns `None` if the
    /// server has stopped. A caller that drops this future loses its place in the queue of readers.
    pub async fn next(&mut self, seq: u64, limit: usize) -> Option<Result<Vec<Entry>, LogError>> {
        self.end.wait_for(|end| *end > seq).await.ok()?;
        Some(self.read(seq, limit).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LogTail {
        pub(crate) async fn permit(&self) -> tokio::sync::OwnedSemaphorePermit {
            Arc::clone(&self.reads).acquire_owned().await.unwrap()
        }

        pub(crate) async fn all_permits(&self) -> Vec<tokio::sync::OwnedSemaphorePermit> {
            let mut permits = Vec::new();
            for _ in 0..READS_MAX {
                permits.push(self.permit().await);
            }
            permits
        }
    }

    #[tokio::test]
    async fn a_panicking_read_is_an_error_and_not_an_empty_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        drop(SqliteLog::open(&path).unwrap());
        let tail = LogTail::new(path, watch::channel(1).1, Damage::default());
        assert!(tail.read(0, 1).await.unwrap().is_empty());
        let panicked = tail.page(|_| panic!("on purpose")).await;
        assert!(matches!(panicked, Err(LogError::ReadUnfinished)), "{panicked:?}");
        assert!(tail.read(0, 1).await.is_ok(), "the failed read has released its permit");
    }
}
