//! The log as it grows, for whoever wants to hear of it: each reads from where they are, at their own pace. Nobody who is slow
//! holds the brain up or loses an entry, because what is read is what is on disk.

use std::path::PathBuf;
use std::sync::Arc;

use farrier_fleet::fleet::Entry;
use tokio::sync::watch;

use crate::log::sqlite::SqliteLog;
use crate::log::{Damage, Log, LogError};

/// Where the log ends, and how to read it.
#[derive(Debug, Clone)]
pub struct Tail {
    path: Arc<PathBuf>,
    end: watch::Receiver<u64>,
    damage: Damage,
}

impl Tail {
    /// Of the log at `path`, whose last entry `end` tells.
    pub(crate) fn new(path: PathBuf, end: watch::Receiver<u64>, damage: Damage) -> Self {
        Self { path: Arc::new(path), end, damage }
    }

    /// What was read; a log that is found damaged is not written on.
    fn told<T>(&self, read: Result<T, LogError>) -> Result<T, LogError> {
        read.inspect_err(|err| self.damage.note(err))
    }

    /// The last entry's place.
    pub fn end(&self) -> u64 {
        *self.end.borrow()
    }

    /// The first entry's place: what was before it is in an archive.
    pub async fn begin(&self) -> Result<u64, LogError> {
        let path = Arc::clone(&self.path);
        let read = tokio::task::spawn_blocking(move || {
            Ok(SqliteLog::open_to_read(&path)?.anchor()?.seq + 1)
        });
        // A task that was cut off has read nothing: the server ends.
        self.told(read.await.unwrap_or(Ok(1)))
    }

    /// Up to `most` entries after `seq`, as they are now.
    pub async fn read(&self, seq: u64, most: usize) -> Result<Vec<Entry>, LogError> {
        if seq >= self.end() {
            return Ok(Vec::new());
        }
        let path = Arc::clone(&self.path);
        let read = tokio::task::spawn_blocking(move || {
            let log = SqliteLog::open_to_read(&path)?;
            log.read(seq, most)?.iter().map(crate::log::Stored::entry).collect()
        });
        // A task that panicked or was cut off has read nothing, and whoever asks again is told.
        self.told(read.await.unwrap_or_else(|_| Ok(Vec::new())))
    }

    /// Up to `most` entries after `seq`, as soon as there is one. None: the server has ended.
    pub async fn next(&mut self, seq: u64, most: usize) -> Option<Result<Vec<Entry>, LogError>> {
        self.end.wait_for(|end| *end > seq).await.ok()?;
        Some(self.read(seq, most).await)
    }
}
