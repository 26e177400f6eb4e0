//! `orders.jsonl`: every line is on disk before what it says is done or told.
//!
//! Nothing is passed over: a line that does not read may be the one that says that a GPU was reset, so that a file that is
//! damaged is not gone on with. Only a last line without its end was never told of, and is cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::ledger::{JournalRecord, Line, OrderLedger, VERSION};
use crate::failpoint::{Failpoint, Point};

/// The file below the state folder.
pub(crate) const FILE: &str = "orders.jsonl";
/// Held by the one who writes it.
pub(crate) const LOCK: &str = "orders.lock";

/// From so many bytes on what has ended is folded away. An order and what is done for it have one to two kilobytes.
const FOLD_BYTES: u64 = 64 << 10;
/// More is no such file: it is folded long before.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why there is no journal of orders.
#[derive(Debug, thiserror::Error)]
pub enum OrdersError {
    /// It cannot be used.
    #[error("failed to use `{}`", path.display())]
    File {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Somebody else carries out orders here.
    #[error("another process carries out orders with `{}`", path.display())]
    InUse {
        /// The lock.
        path: PathBuf,
    },
    /// What was done cannot be known.
    #[error("line {line} of `{}` does not read: what was done for an order is not known", path.display())]
    Damaged { path: PathBuf, line: usize },
    /// The system gives no thread.
    #[error("failed to start carrying out orders")]
    Thread(#[source] io::Error),
    /// A newer farrier wrote it.
    #[error("`{}` was written by a newer farrier (version {version} of the form)", path.display())]
    Newer {
        path: PathBuf,
        /// Of the form.
        version: u32,
    },
}

/// The file and what its lines come to.
#[derive(Debug)]
pub(super) struct OrderJournal {
    path: PathBuf,
    file: File,
    _lock: File,
    /// Bytes that are whole lines on disk.
    bytes: u64,
    /// Something may stand after them.
    dirty: bool,
    /// From so many bytes on it is folded.
    fold_from: u64,
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
        let mut book = Self {
            path: path.clone(),
            file,
            _lock: lock,
            bytes,
            dirty: length > bytes,
            fold_from: FOLD_BYTES,
            ledger,
        };
        book.mend().and_then(|()| sync_dir(dir)).map_err(failed)?;
        Ok(book)
    }

    pub(super) fn ledger(&self) -> &OrderLedger {
        &self.ledger
    }

    /// Writes a line; it is on disk when this returns, and only then part of the ledger.
    pub(super) fn write(
        &mut self,
        at: Timestamp,
        note: JournalRecord,
        crash: &Failpoint,
    ) -> io::Result<()> {
        self.mend()?;
        let line = Line { v: VERSION, at, note };
        let bytes = encoded(&line)?;
        self.dirty = true;
        if crash.is_due(Point::OrderHalfWritten) {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            crash.die();
        }
        self.file.write_all(&bytes)?;
        crash.reach(Point::OrderWritten);
        self.file.sync_data()?;
        self.dirty = false;
        self.bytes += bytes.len() as u64;
        self.ledger.apply(&line.note);
        crash.reach(Point::OrderSynced);
        if self.bytes >= self.fold_from
            && let Err(err) = self.fold(at)
        {
            // Nothing is lost by it: the file only grows meanwhile.
            tracing::warn!(%err, "failed to fold the journal of orders");
            self.fold_from = self.bytes + FOLD_BYTES;
        }
        Ok(())
    }

    /// Begins the file anew with all that is known.
    fn fold(&mut self, at: Timestamp) -> io::Result<()> {
        let note = JournalRecord::Whole(Box::new(self.ledger.clone()));
        let bytes = encoded(&Line { v: VERSION, at, note })?;
        let part = self.path.with_extension("part");
        match fs::remove_file(&part) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create_new(true).open(&part)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&part, &self.path)?;
        // From here on it is the file, whatever fails now.
        self.file = file;
        self.bytes = bytes.len() as u64;
        self.fold_from = self.bytes + FOLD_BYTES;
        self.path.parent().map_or(Ok(()), sync_dir)
    }

    /// Cuts off what a write that failed or was cut short has left behind.
    fn mend(&mut self) -> io::Result<()> {
        if self.dirty {
            self.file.set_len(self.bytes)?;
            self.file.sync_all()?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Lets every write fail as on a full disk, or no longer.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self, full: bool) {
        let path = if full { Path::new("/dev/full") } else { &self.path };
        self.file = OpenOptions::new().append(true).open(path).expect("both are there");
        self.dirty = false;
    }
}

fn encoded(line: &Line) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// What the file says, and the bytes of its whole lines.
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
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut ledger = OrderLedger::default();
    for (number, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
        let version = serde_json::from_slice::<OnlyVersion>(line).ok().map(|it| it.v);
        if let Some(version) = version.filter(|version| *version > VERSION) {
            return Err(OrdersError::Newer { path: path.to_owned(), version });
        }
        let Ok(line) = serde_json::from_slice::<Line>(line) else {
            return Err(OrdersError::Damaged { path: path.to_owned(), line: number + 1 });
        };
        ledger.apply(&line.note);
    }
    Ok((ledger, whole as u64))
}
