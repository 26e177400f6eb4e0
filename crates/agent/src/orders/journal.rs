//! `orders.jsonl`: write-ahead journal of orders. Each line is on disk before the agent acts on it
//! or reports it.
//!
//! The agent refuses a file with a damaged line, because that line may record a GPU reset. Only an
//! incomplete last line is truncated. The agent has neither acted on such a line nor reported it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::ledger::{JournalLine, OrderLedger, OrderRecord, VERSION};
use crate::failpoint::{Failpoint, Point};

/// File name in the state directory.
pub(crate) const FILE: &str = "orders.jsonl";
/// Lock file of the process that writes the journal.
pub(crate) const LOCK: &str = "orders.lock";

/// Size at which the journal is compacted. An order and its steps take one to two kilobytes.
const COMPACT_BYTES: u64 = 64 << 10;
/// Maximum size of the file. Compaction keeps it far smaller.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why the order journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OrdersError {
    #[error("failed to use `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Another process executes orders with this state directory.
    #[error("another process executes orders with `{}`", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// A line is damaged, so it is unknown which changes were made.
    #[error("line {line} of `{}` is damaged: changes already made for an order are unknown", path.display())]
    Damaged { path: PathBuf, line: usize },
    /// The system could not create a thread.
    #[error("failed to start the order thread")]
    Thread(#[source] io::Error),
    #[error("`{}` was written by a newer farrier (format version {version})", path.display())]
    Newer {
        path: PathBuf,
        /// Version of the file format.
        version: u32,
    },
}

/// The file, and the state that results from its lines.
#[derive(Debug)]
pub(super) struct OrderJournal {
    path: PathBuf,
    file: File,
    _lock: File,
    /// Bytes of complete lines on disk.
    bytes: u64,
    /// Whether the file may have a partial write after `bytes`.
    dirty: bool,
    /// Size at which the next compaction is due.
    compact_from: u64,
    ledger: OrderLedger,
}

impl OrderJournal {
    pub(super) fn open(dir: &Path) -> Result<Self, OrdersError> {
        let path = dir.join(FILE);
        let failed = |err| OrdersError::File { path: path.clone(), err };
        let lock_path = dir.join(LOCK);
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(OrdersError::InUse { path: lock_path });
            }
            Err(fs::TryLockError::Error(err)) => return Err(failed(err)),
        }
        let file = OpenOptions::new().append(true).create(true).open(&path).map_err(failed)?;
        let (ledger, bytes) = read(&path)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut journal = Self {
            path: path.clone(),
            file,
            _lock: lock,
            bytes,
            dirty: length > bytes,
            compact_from: COMPACT_BYTES,
            ledger,
        };
        journal.truncate_partial_line().and_then(|()| sync_dir(dir)).map_err(failed)?;
        Ok(journal)
    }

    pub(super) fn ledger(&self) -> &OrderLedger {
        &self.ledger
    }

    /// Appends a line, syncs it, and then applies it to the ledger.
    pub(super) fn write(
        &mut self,
        at: Timestamp,
        record: OrderRecord,
        crash: &Failpoint,
    ) -> io::Result<()> {
        self.truncate_partial_line()?;
        let line = JournalLine { v: VERSION, at, note: record };
        let bytes = encode(&line)?;
        self.dirty = true;
        if crash.is_due(Point::OrderHalfWritten) {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            crash.crash();
        }
        self.file.write_all(&bytes)?;
        crash.reach(Point::OrderWritten);
        self.file.sync_data()?;
        self.dirty = false;
        self.bytes += bytes.len() as u64;
        self.ledger.apply(&line.note);
        crash.reach(Point::OrderSynced);
        if self.bytes >= self.compact_from
            && let Err(err) = self.compact(at)
        {
            // A failed compaction does no harm: the file keeps growing, and the compaction is tried
            // again later.
            tracing::warn!(%err, "failed to compact the order journal");
            self.compact_from = self.bytes + COMPACT_BYTES;
        }
        Ok(())
    }

    /// Compacts the file into one line with the whole state.
    fn compact(&mut self, at: Timestamp) -> io::Result<()> {
        let record = OrderRecord::Whole(Box::new(self.ledger.clone()));
        let bytes = encode(&JournalLine { v: VERSION, at, note: record })?;
        let part = self.path.with_extension("part");
        match fs::remove_file(&part) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create_new(true).open(&part)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&part, &self.path)?;
        // After the rename, the new file is the journal, even if a later step fails.
        self.file = file;
        self.bytes = bytes.len() as u64;
        self.compact_from = self.bytes + COMPACT_BYTES;
        self.path.parent().map_or(Ok(()), sync_dir)
    }

    /// Removes the bytes that a failed or partial write left behind.
    fn truncate_partial_line(&mut self) -> io::Result<()> {
        if self.dirty {
            self.file.set_len(self.bytes)?;
            self.file.sync_all()?;
            self.dirty = false;
        }
        Ok(())
    }

    /// For tests: makes writes fail as on a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self, full: bool) {
        let path = if full { Path::new("/dev/full") } else { &self.path };
        self.file = OpenOptions::new().append(true).open(path).expect("both files exist");
        self.dirty = false;
    }
}

fn encode(line: &JournalLine) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Reads the state, and the length of the complete lines.
fn read(path: &Path) -> Result<(OrderLedger, u64), OrdersError> {
    #[derive(serde::Deserialize)]
    struct OnlyVersion {
        v: u32,
    }
    let failed = |err| OrdersError::File { path: path.to_owned(), err };
    if fs::metadata(path).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    let bytes = fs::read(path).map_err(failed)?;
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut ledger = OrderLedger::default();
    for (number, line) in bytes[..complete].split_inclusive(|byte| *byte == b'\n').enumerate() {
        let version = serde_json::from_slice::<OnlyVersion>(line).ok().map(|line| line.v);
        if let Some(version) = version.filter(|version| *version > VERSION) {
            return Err(OrdersError::Newer { path: path.to_owned(), version });
        }
        let Ok(line) = serde_json::from_slice::<JournalLine>(line) else {
            return Err(OrdersError::Damaged { path: path.to_owned(), line: number + 1 });
        };
        ledger.apply(&line.note);
    }
    Ok((ledger, complete as u64))
}
