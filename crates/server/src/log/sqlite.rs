//! The log in one SQLite file. Each append is a transaction in WAL mode with full sync, so the
//! entries survive a crash. Snapshots are separate files: SQLite has one writer at a time, and an
//! append must not wait until a snapshot of hundreds of megabytes is written.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use farrier_fleet::fleet::{Entry, FleetState};
use rusqlite::types::ValueRef;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params,
};

use super::base_snapshot::{BaseSnapshot, SnapshotReadError, decode_state};
use super::head_file::{HeadFile, RecordedHead, recorded_head};
use super::snapshot_file::SnapshotFile;
use super::{
    Anchor, Appended, FormatMismatch, Hash, Head, Integrity, Log, LogError, Snapshot,
    SnapshotWriter, Stored, integrity,
};

/// Version of the tables.
pub(super) const FORMAT: i64 = 2;
/// Version 1 has no anchor table. Its logs have all entries.
const FORMAT_WITHOUT_ANCHOR: i64 = 1;
/// Number of entries that one transaction deletes. A transaction takes about ten milliseconds, and
/// appends wait until it has ended.
const DELETE_BATCH: u64 = 2048;
/// `fstl`: distinguishes a log from other SQLite databases.
const APPLICATION_ID: i64 = 0x6673_746c;

const TABLES: &str = "
CREATE TABLE writer (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL);
INSERT INTO writer VALUES (1, 0);
CREATE TABLE entries (seq INTEGER PRIMARY KEY, bytes BLOB NOT NULL, hash BLOB NOT NULL);
";
/// The anchor and its base snapshot. The table has a row only after entries were archived.
const ANCHOR: &str = "
CREATE TABLE anchor (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, hash BLOB NOT NULL, state BLOB NOT NULL, digest BLOB NOT NULL);
";

#[derive(Debug)]
pub struct SqliteLog {
    path: PathBuf,
    connection: Connection,
    /// The head file. It is opened when the first head is recorded.
    acknowledged: Option<HeadFile>,
}

fn failed(what: &'static str) -> impl FnOnce(rusqlite::Error) -> LogError {
    move |err| LogError::Sqlite { what, err }
}

impl SqliteLog {
    /// Opens the log at `path`, or creates it.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let connection = open_private(path).map_err(failed("open the log"))?;
        let mut log = Self { path: path.to_owned(), connection, acknowledged: None };
        log.prepare()?;
        Ok(log)
    }

    /// Opens an existing log read-only.
    pub fn open_to_read(path: &Path) -> Result<Self, LogError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path, flags).map_err(failed("open the log"))?;
        let log = Self { path: path.to_owned(), connection, acknowledged: None };
        log.check_format()?;
        Ok(log)
    }

    fn prepare(&mut self) -> Result<(), LogError> {
        let what = failed("set up the log");
        if self.has_tables()? {
            self.check_format()?;
        } else if let Some(recorded) = self.recorded_head()?.filter(|head| head.seq > 0) {
            // There was a log here before. What remains is an empty file, or a log without its WAL.
            return Err(LogError::Truncated { recorded: recorded.seq, found: 0 });
        }
        let busy = std::time::Duration::from_secs(10);
        let set_up = |connection: &mut Connection| {
            connection.busy_timeout(busy)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let version = pragma(&transaction, "user_version")?;
            if version == 0 {
                transaction.execute_batch(TABLES)?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            }
            if version <= FORMAT_WITHOUT_ANCHOR {
                transaction.execute_batch(ANCHOR)?;
                transaction.pragma_update(None, "user_version", FORMAT)?;
            }
            transaction.commit()
        };
        set_up(&mut self.connection).map_err(what)
    }

    fn has_tables(&self) -> Result<bool, LogError> {
        let query = "SELECT count(*) > 0 FROM sqlite_schema";
        self.connection.query_row(query, [], |row| row.get(0)).map_err(failed("read the log"))
    }

    fn check_format(&self) -> Result<(), LogError> {
        let read = |name| pragma(&self.connection, name).map_err(failed("read the log"));
        let what = match (read("application_id")?, read("user_version")?) {
            (APPLICATION_ID, FORMAT_WITHOUT_ANCHOR | FORMAT) => return Ok(()),
            (APPLICATION_ID, version) => FormatMismatch::Format(version),
            _ if !self.has_tables()? => FormatMismatch::Empty,
            _ => FormatMismatch::Database,
        };
        Err(LogError::UnknownFormat { path: self.path.clone(), what })
    }

    /// Creates an archive that starts from a base snapshot.
    pub(super) fn create_archive(path: &Path, begin: &Snapshot) -> Result<Self, LogError> {
        let log = Self::open(path)?;
        let begin = BaseSnapshot::encode(begin)?;
        let what = "create the archive";
        // An archive is never appended to again, so it needs no WAL and stays a single file.
        log.connection.pragma_update(None, "journal_mode", "DELETE").map_err(failed(what))?;
        begin.put(&log.connection).map_err(failed(what))?;
        Ok(log)
    }

    /// Inserts either all stored entries, or none of them.
    pub(super) fn insert_all(&mut self, entries: &[Stored]) -> Result<(), LogError> {
        let put = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            {
                let query = "INSERT INTO entries (seq, bytes, hash) VALUES (?1, ?2, ?3)";
                let mut insert = transaction.prepare_cached(query)?;
                for entry in entries {
                    insert.execute(params![entry.seq, entry.bytes, entry.hash.0])?;
                }
            }
            transaction.commit()
        };
        put(&mut self.connection).map_err(failed("write the archive"))
    }

    /// Writes a consistent copy of the log to a new file.
    pub fn back_up(&self, to: &Path) -> Result<(), LogError> {
        make_private(to);
        let name = to.to_string_lossy();
        self.connection
            .execute("VACUUM INTO ?1", [name.as_ref()])
            .map_err(failed("copy the log"))?;
        Ok(())
    }
}

/// Opens a database with mode 0600. SQLite uses the same mode for its side files.
pub(crate) fn open_private(path: &Path) -> rusqlite::Result<Connection> {
    make_private(path);
    // SQLite must not create the file. Otherwise the mode of the file would come from the umask,
    // and SQLite would follow a dangling symlink.
    let flags = OpenFlags::default().difference(OpenFlags::SQLITE_OPEN_CREATE);
    Connection::open_with_flags(path, flags)
}

/// Creates an empty file with mode 0600, unless the file exists. If the creation fails, SQLite
/// reports the reason when it opens the file.
fn make_private(path: &Path) {
    let mut open = std::fs::OpenOptions::new();
    let _ = open.write(true).create_new(true).mode(0o600).open(path);
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

/// The bytes of a column. A value that is neither bytes nor text becomes empty, and the hash of an
/// empty value does not match.
fn bytes_column(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => Vec::new(),
    })
}

/// The hash in a column. A value of another length becomes all zeros, which match no hash.
fn hash_column(row: &Row<'_>, column: usize) -> rusqlite::Result<Hash> {
    Ok(Hash(bytes_column(row, column)?.try_into().unwrap_or_default()))
}

fn epoch(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT epoch FROM writer", [], |row| row.get(0))
}

/// The last entry after the anchor. Entries up to the anchor may still be in the table, because
/// their deletion takes time.
fn last(connection: &Connection, anchor: u64) -> rusqlite::Result<Option<(u64, Hash)>> {
    let query = "SELECT seq, hash FROM entries WHERE seq > ?1 ORDER BY seq DESC LIMIT 1";
    connection.query_row(query, [anchor], |row| Ok((row.get(0)?, hash_column(row, 1)?))).optional()
}

fn read_anchor(connection: &Connection) -> rusqlite::Result<Anchor> {
    if pragma(connection, "user_version")? == FORMAT_WITHOUT_ANCHOR {
        return Ok(Anchor::genesis());
    }
    let read = |row: &Row<'_>| Ok(Anchor { seq: row.get(0)?, hash: hash_column(row, 1)? });
    let found = connection.query_row("SELECT seq, hash FROM anchor", [], read).optional()?;
    Ok(found.unwrap_or_else(Anchor::genesis))
}

fn read_head(connection: &Connection) -> rusqlite::Result<Head> {
    let anchor = read_anchor(connection)?;
    let (seq, hash) = last(connection, anchor.seq)?.unwrap_or((anchor.seq, anchor.hash));
    Ok(Head { seq, hash, epoch: epoch(connection)? })
}

/// Refuses a writer that is fenced, or that has not seen the end of the log.
fn admit(transaction: &Transaction<'_>, head: &Head) -> Result<(), LogError> {
    let now = read_head(transaction).map_err(failed("read the end of the log"))?;
    if now.epoch != head.epoch {
        return Err(LogError::Fenced { epoch: head.epoch, current: now.epoch });
    }
    if now.seq != head.seq || now.hash != head.hash {
        return Err(LogError::ConcurrentWrite { expected: head.seq, found: now.seq });
    }
    Ok(())
}

impl Log for SqliteLog {
    fn head(&self) -> Result<Head, LogError> {
        // Both reads are in one transaction, because an archiver may move the anchor between them.
        let read = || read_head(&*self.connection.unchecked_transaction()?);
        read().map_err(failed("read the end of the log"))
    }

    fn anchor(&self) -> Result<Anchor, LogError> {
        read_anchor(&self.connection).map_err(failed("read the log's base snapshot"))
    }

    fn base_state(&self) -> Result<FleetState, LogError> {
        // One transaction, as in `head`.
        let read = || {
            let transaction = self.connection.unchecked_transaction()?;
            let anchor = read_anchor(&transaction)?;
            let pair = |row: &Row<'_>| Ok((bytes_column(row, 0)?, hash_column(row, 1)?));
            let base = (anchor.seq > 0)
                .then(|| transaction.query_row("SELECT state, digest FROM anchor", [], pair));
            Ok((anchor, base.transpose()?))
        };
        let (anchor, base) = read().map_err(failed("read the log's base snapshot"))?;
        let Some((bytes, digest)) = base else { return Ok(FleetState::default()) };
        decode_state(&bytes, digest).map_err(|unread| match unread {
            SnapshotReadError::Damaged => LogError::MissingBaseSnapshot(anchor.seq),
            SnapshotReadError::Newer => {
                LogError::UnknownFormat { path: self.path.clone(), what: FormatMismatch::State }
            }
        })
    }

    fn truncate(&mut self, begin: &Snapshot) -> Result<(), LogError> {
        let what = "truncate the log";
        let beginning = BaseSnapshot::encode(begin)?;
        let immediate = TransactionBehavior::Immediate;
        let transaction =
            self.connection.transaction_with_behavior(immediate).map_err(failed(what))?;
        let through = begin.state.seq;
        let query = "SELECT hash FROM entries WHERE seq = ?1";
        let found = transaction.query_row(query, [through], |row| hash_column(row, 0)).optional();
        let is_old = read_anchor(&transaction).map_err(failed(what))?.seq >= through;
        if is_old || found.map_err(failed(what))? != Some(begin.hash) {
            return Err(LogError::WrongLog(through));
        }
        beginning.put(&transaction).map_err(failed(what))?;
        transaction.commit().map_err(failed(what))?;
        self.delete_truncated()
    }

    fn delete_truncated(&mut self) -> Result<(), LogError> {
        let what = "delete archived entries";
        let through = self.anchor()?.seq;
        let first = "SELECT min(seq) FROM entries WHERE seq <= ?1";
        let delete = "DELETE FROM entries WHERE seq < ?1 AND seq <= ?2";
        loop {
            let start = Instant::now();
            let first = self.connection.query_row(first, [through], |row| row.get(0));
            let first: Option<u64> = first.map_err(failed(what))?;
            let Some(first) = first else { return Ok(()) };
            let some = params![first + DELETE_BATCH, through];
            self.connection.execute(delete, some).map_err(failed(what))?;
            // SQLite's lock is not fair. The pause is as long as the deletion, so the server can
            // use half of the time.
            thread::sleep(start.elapsed());
        }
    }

    fn take_over(&mut self) -> Result<u64, LogError> {
        let query = "UPDATE writer SET epoch = epoch + 1 RETURNING epoch";
        self.connection
            .query_row(query, [], |row| row.get(0))
            .map_err(failed("become the log's writer"))
    }

    fn append(&mut self, head: &Head, entries: &[Entry]) -> Result<Appended, LogError> {
        let begin = TransactionBehavior::Immediate;
        let transaction =
            self.connection.transaction_with_behavior(begin).map_err(failed("begin to append"))?;
        admit(&transaction, head)?;
        let mut end = *head;
        let mut entry_bytes = Vec::with_capacity(entries.len());
        {
            let query = "INSERT INTO entries (seq, bytes, hash) VALUES (?1, ?2, ?3)";
            let mut insert = transaction.prepare_cached(query).map_err(failed("append"))?;
            for entry in entries {
                if entry.seq != end.seq + 1 {
                    return Err(LogError::Gap { seq: entry.seq, after: end.seq });
                }
                let bytes =
                    entry.encode().map_err(|err| LogError::EncodeEntry { seq: entry.seq, err })?;
                end.hash = end.hash.then(entry.seq, &bytes);
                end.seq = entry.seq;
                entry_bytes.push(bytes.len());
                insert.execute(params![entry.seq, bytes, end.hash.0]).map_err(failed("append"))?;
            }
        }
        transaction.commit().map_err(failed("commit appended entries"))?;
        Ok(Appended { head: end, entry_bytes })
    }

    fn read(&self, seq: u64, limit: usize) -> Result<Vec<Stored>, LogError> {
        let read = || -> rusqlite::Result<Vec<Stored>> {
            // The anchor is read in the same query as the entries, because an archiver may move it
            // between two queries.
            let anchor = match pragma(&self.connection, "user_version")? {
                FORMAT_WITHOUT_ANCHOR => "0",
                _ => "(SELECT coalesce(max(seq), 0) FROM anchor)",
            };
            let query = format!(
                "SELECT seq, bytes, hash FROM entries WHERE seq > max(?1, {anchor}) ORDER BY seq LIMIT ?2"
            );
            let mut select = self.connection.prepare_cached(&query)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = select.query_map(params![seq, limit], |row| {
                Ok(Stored {
                    seq: row.get(0)?,
                    bytes: bytes_column(row, 1)?,
                    hash: hash_column(row, 2)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(failed("read the log"))
    }

    fn snapshot_writer(&self) -> Box<dyn SnapshotWriter + Send> {
        Box::new(SnapshotFile::beside(&self.path))
    }

    fn latest_snapshot(&self) -> Result<Option<Snapshot>, LogError> {
        SnapshotFile::beside(&self.path).latest_snapshot()
    }

    fn recorded_head(&self) -> Result<Option<RecordedHead>, LogError> {
        recorded_head(&self.path)
    }

    fn record_head(&mut self, head: &RecordedHead) -> Result<(), LogError> {
        let file = match &mut self.acknowledged {
            Some(file) => file,
            none => none.insert(HeadFile::open(&self.path, head)?),
        };
        file.record_head(head)
    }

    fn check_integrity(&self) -> Result<Integrity, LogError> {
        integrity::check(&self.connection)
    }
}
