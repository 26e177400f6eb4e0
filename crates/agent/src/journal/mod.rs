//! The journal. A decision is on disk before it is reported.
//!
//! ```text
//! Decision ─ append ─> WriteBuffer ─ flush ─> write ─ fsync ─> durable DurableState ─> Published, sink
//!                        │ disk full: records wait (bounded by merging), with a retry each second
//! open ─ fold of all segments ─> DurableState ─> Engine::restore, kernel log cursor
//! ```
//!
//! Segments are append-only files of JSON lines. Each new segment begins with a snapshot, so that
//! retention can delete the earlier segments. If the last line is torn, it is truncated. A damaged
//! line is skipped and counted.

mod durable_state;
mod lock;
mod reader;
mod record;
pub(crate) mod segment;
mod sink;
mod state_dir;
mod write_buffer;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrier_fleet::health::Change;
use jiff::{SignedDuration, Timestamp};

pub use durable_state::DurableState;
pub use reader::load;
pub(crate) use record::is_readable;
pub use record::{JournalRecord, JournalSnapshot, VERSION};
pub use sink::{Sink, SinkError};
pub(crate) use state_dir::create as create_file;

use crate::config::Retention;
use crate::failpoint::{Failpoint, Point};
use farrier_fleet::health::{RecoverySignal, StoredEvent};
use reader::{JournalContent, read};
use segment::Segment;
use state_dir::acquire;
use write_buffer::WriteBuffer;

/// Number of segments into which the byte limit is divided. Retention deletes whole segments.
const SEGMENTS: u64 = 8;
/// Minimum segment size. Even with a small byte limit, a segment has room for a snapshot and some
/// changes.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Maximum age of the open segment. Without it, retention by days would find no segment to delete.
const SEGMENT_AGE_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Why the journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("failed to use the state directory `{}`", dir.display())]
    StateDir {
        dir: PathBuf,
        #[source]
        err: io::Error,
    },
    /// Another agent holds the lock.
    #[error("another agent{} uses the state directory `{}`", lock::pid_suffix(*pid), dir.display())]
    InUse {
        dir: PathBuf,
        /// PID of that agent. `None` if the kernel's list of locks does not show it.
        pid: Option<u32>,
    },
    /// Another user could replace the agent's files.
    #[error("the state directory `{}` is not the agent's own: {why}", dir.display())]
    NotOwn {
        dir: PathBuf,
        /// Names the owner, or says that every user may write to it.
        why: String,
    },
    #[error("`{}` was written by a newer farrier (format version {version})", path.display())]
    Newer {
        path: PathBuf,
        /// Version of the format.
        version: u32,
    },
}

/// Damage found while reading the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Lines that did not parse and were skipped.
    pub damaged_lines: u64,
    /// Bytes of a torn last line that were truncated.
    pub torn_bytes: u64,
}

/// The journal of one agent.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    /// The lock is held while the journal is open. `lock` and `file` are `None` as long as the disk
    /// does not even allow to create a lock file.
    lock: Option<File>,
    file: Option<File>,
    /// All segments. The last one is open for writing.
    segments: Vec<Segment>,
    retention: Retention,
    durable: DurableState,
    /// Sequence number of the last record. This includes records that wait to be written.
    seq: u64,
    waiting: WriteBuffer,
    /// Whether a write failed in the middle. The next write first truncates the file after its last
    /// good byte.
    dirty: bool,
    recovery: Recovery,
    /// Whether the wall clock may be wrong. Segments then do not expire by age.
    clock_suspect: bool,
    /// After a snapshot was too large, rotation is retried when the segment has reached this size.
    rotate_from: u64,
}

impl Journal {
    /// Opens the journal and computes the state from its records.
    pub fn open(dir: &Path, retention: Retention) -> Result<Self, JournalError> {
        let lock = acquire(dir, lock::WAIT)?;
        let JournalContent { state, mut segments, recovery } = match read(dir, |_| ()) {
            // The directory could not be created because the disk refuses writes, so there is
            // nothing to read.
            Err(JournalError::StateDir { err, .. }) if lock.is_none() && not_found(&err) => {
                JournalContent::default()
            }
            read => read?,
        };
        if segments.is_empty() {
            segments.push(Segment::empty(1));
        }
        let mut journal = Self {
            dir: dir.to_owned(),
            lock,
            file: None,
            segments,
            retention,
            seq: state.seq,
            durable: state,
            waiting: WriteBuffer::default(),
            dirty: recovery.torn_bytes > 0,
            recovery,
            clock_suspect: false,
            rotate_from: 0,
        };
        match journal.reopen() {
            Err(err) if !is_disk_unwritable(&err) => {
                Err(JournalError::StateDir { dir: dir.to_owned(), err })
            }
            _ => Ok(journal),
        }
    }

    /// `true` if the journal is open for writing. If it is not, every flush tries to open it.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// The state that is on disk.
    pub fn durable(&self) -> &DurableState {
        &self.durable
    }

    /// Calls `visit` with every record on disk, oldest first.
    pub fn for_each(&self, visit: impl FnMut(&JournalRecord)) -> Result<(), JournalError> {
        match read(&self.dir, visit) {
            Err(JournalError::StateDir { err, .. }) if self.lock.is_none() && not_found(&err) => {
                Ok(())
            }
            read => read.map(|_| ()),
        }
    }

    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Total size of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Records not yet on disk.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sets new retention limits.
    pub fn set_retention(&mut self, retention: Retention) {
        self.retention = retention;
    }

    /// Sets whether the wall clock stepped recently. If the clock steps into the future, the whole
    /// history must not expire before the clock is corrected.
    pub fn set_clock_suspect(&mut self, suspect: bool) {
        self.clock_suspect = suspect;
    }

    /// Adds a decision. It is on disk only after [`Self::flush`].
    pub fn append(
        &mut self,
        at: Timestamp,
        boot: &str,
        kernel_seq: Option<u64>,
        changes: Vec<Change>,
        stored_events: Vec<StoredEvent>,
        recovery_signals: Vec<RecoverySignal>,
    ) {
        let record = JournalRecord {
            v: VERSION,
            seq: self.seq + 1,
            at,
            boot: boot.to_owned(),
            kernel_seq,
            snapshot: None,
            changes,
            stored_events,
            recovery_signals,
        };
        self.seq = record.seq;
        self.waiting.push(record);
    }

    /// Writes and syncs the waiting records. Returns the records that were written.
    pub fn flush(
        &mut self,
        now: Timestamp,
        failpoint: &Failpoint,
    ) -> io::Result<Vec<JournalRecord>> {
        if self.waiting.is_empty() {
            return Ok(Vec::new());
        }
        self.reopen()?;
        let newest = self.segments.iter().filter_map(|segment| segment.last).max();
        if self.is_segment_full(now) {
            self.rotate(now)?;
        }
        let mut bytes = Vec::new();
        for record in self.waiting.iter() {
            serde_json::to_writer(&mut bytes, record)?;
            bytes.push(b'\n');
        }
        self.write(&bytes, failpoint)?;
        let written = self.waiting.take();
        if let Some(segment) = self.segments.last_mut() {
            segment.bytes += bytes.len() as u64;
            segment.first = segment.first.or(written.first().map(|record| record.at));
            segment.last = written.last().map(|record| record.at).or(segment.last);
        }
        for record in &written {
            self.durable.apply(record);
        }
        self.delete_expired(newest.map_or(now, |newest| newest.min(now)));
        Ok(written)
    }

    fn write(&mut self, bytes: &[u8], failpoint: &Failpoint) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        self.dirty = true;
        if failpoint.is_due(Point::HalfWritten) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            failpoint.crash();
        }
        file.write_all(bytes)?;
        failpoint.reach(Point::Written);
        file.sync_data()?;
        self.dirty = false;
        failpoint.reach(Point::Synced);
        Ok(())
    }

    /// For tests: makes writes fail as on a full disk.
    #[cfg(test)]
    pub(crate) fn fill_disk(&mut self, full: bool) {
        let last = self.segments.last().map_or(1, |segment| segment.number);
        let path = if full { "/dev/full".into() } else { segment::path(&self.dir, last) };
        let file = fs::OpenOptions::new().append(true).open(path);
        self.file = Some(file.expect("both files exist"));
    }

    /// Takes the lock and opens the segment if they are missing, and truncates a partial write.
    fn reopen(&mut self) -> io::Result<()> {
        if self.lock.is_none() {
            let lock = acquire(&self.dir, Duration::ZERO)
                .map_err(|err| io::Error::other(err.to_string()))?;
            self.lock = Some(lock.ok_or(io::ErrorKind::ReadOnlyFilesystem)?);
        }
        let (number, good_bytes) =
            self.segments.last().map_or((1, 0), |last| (last.number, last.bytes));
        if self.file.is_none() {
            let file = segment::open(&segment::path(&self.dir, number))?;
            segment::sync_dir(&self.dir)?;
            self.file = Some(file);
        }
        if let Some(file) = self.file.as_ref().filter(|_| self.dirty) {
            file.set_len(good_bytes)?;
            file.sync_all()?;
            self.dirty = false;
        }
        Ok(())
    }

    fn is_segment_full(&self, now: Timestamp) -> bool {
        let Some(segment) = self.segments.last() else { return true };
        // If a snapshot is large compared to the limit, it must not be written again with every
        // record.
        let snapshot_bytes = segment.snapshot_bytes.unwrap_or(0);
        let limit =
            (self.retention.bytes / SEGMENTS).max(SEGMENT_BYTES_MIN).max(2 * snapshot_bytes);
        let old = segment.first.is_some_and(|first| now.duration_since(first) > SEGMENT_AGE_MAX);
        // The first segment needs no snapshot, because there are no earlier records.
        let lacks_snapshot = segment.snapshot_bytes.is_none() && segment.number > 1;
        (segment.bytes >= limit || old || lacks_snapshot) && segment.bytes >= self.rotate_from
    }

    /// Starts a new segment with a snapshot.
    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let number = self.segments.last().map_or(1, |segment| segment.number + 1);
        let path = segment::path(&self.dir, number);
        let record = JournalRecord {
            v: VERSION,
            seq: self.durable.seq,
            at: now,
            boot: self.durable.boot.clone(),
            kernel_seq: self.durable.kernel_seq,
            snapshot: Some(self.durable.snapshot()),
            changes: Vec::new(),
            stored_events: Vec::new(),
            recovery_signals: Vec::new(),
        };
        let mut line = serde_json::to_vec(&record)?;
        line.push(b'\n');
        if line.len() > segment::LINE_BYTES_MAX {
            // A reader would reject a line of this length. Let the segment grow until the state is
            // smaller.
            tracing::warn!(
                bytes = line.len(),
                "the snapshot is too large for one line; the segment keeps growing"
            );
            self.rotate_from =
                self.segments.last().map_or(0, |last| last.bytes) + line.len() as u64;
            return Ok(());
        }
        self.rotate_from = 0;
        // Write under a temporary name, so that a new segment always has its snapshot.
        let temporary = path.with_extension("part");
        let mut file = state_dir::create(&temporary)?;
        file.write_all(&line)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        // The new segment now supersedes all earlier segments. Earlier segments must not be written
        // again, even if a later step fails.
        self.segments.push(Segment {
            number,
            bytes: line.len() as u64,
            first: Some(now),
            last: Some(now),
            snapshot_bytes: Some(line.len() as u64),
        });
        self.file = None;
        self.reopen()
    }

    /// Deletes closed segments beyond the age or size limit. The next flush retries failed
    /// deletions. The caller must pass a `now` that is not later than the previous record, because
    /// the clock may have stepped since then.
    fn delete_expired(&mut self, now: Timestamp) {
        let age_max =
            SignedDuration::from_hours(24) * i32::try_from(self.retention.days).unwrap_or(i32::MAX);
        // A segment with a damaged snapshot depends on the previous segment. Delete both together.
        while let Some(next) =
            self.segments.iter().skip(1).position(|later| later.snapshot_bytes.is_some())
        {
            let closed = &self.segments[..=next];
            let ended = closed.iter().filter_map(|segment| segment.last).max();
            let old = ended.is_some_and(|ended| now.duration_since(ended) > age_max);
            let old = old && !self.clock_suspect;
            if !(old || self.bytes() > self.retention.bytes) {
                return;
            }
            for _ in 0..=next {
                let path = segment::path(&self.dir, self.segments[0].number);
                let removed = fs::remove_file(&path);
                if let Err(err) = removed.or_else(|err| not_found(&err).then_some(()).ok_or(err)) {
                    tracing::warn!(path = %path.display(), %err, "failed to delete an old segment");
                    return;
                }
                self.segments.remove(0);
            }
        }
    }
}

/// `true` if the disk is full or read-only. The agent starts in spite of this, because the problem
/// may pass, and because only a running agent can report it.
fn is_disk_unwritable(err: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(err.kind(), QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

fn not_found(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
pub(crate) mod tests;
