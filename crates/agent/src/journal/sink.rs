//! The sink: a file of changes for log shippers. It has every durable change exactly once.
//!
//! ```text
//! {"v":1,"start":41}                                                  starts after record 41
//! {"v":1,"seq":42,"n":1,"of":2,"at":"...","change":{"opened":{...}}}
//! ```
//!
//! The last line is the cursor: it says up to which record of the journal the file is complete. At
//! startup, the agent truncates a torn last line and writes the later changes from the journal.
//! After log rotation, send SIGHUP. If the journal does not have the record at the cursor, the file
//! belongs to a deleted journal, and the agent appends a new `start` line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use farrier_fleet::health::Change;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::record::JournalRecord;

/// Version of the line format.
const VERSION: u32 = 1;

/// The beginning of the first line, up to the number.
const START: &str = "{\"v\":1,\"start\":";

/// How many bytes to read from the end of the file. A line has one change, and a finding has a few
/// kilobytes.
const TAIL_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("failed to open the sink `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    /// The file is not empty, and no line at its end was written by a sink.
    #[error("`{}` is not a sink file: it was left unchanged", path.display())]
    Foreign { path: PathBuf },
    #[error("failed to write to the sink `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
}

/// Cursor: a record, and how many of its changes are already written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct SinkCursor {
    seq: u64,
    n: usize,
}

#[derive(Serialize)]
struct SinkLine<'c> {
    v: u32,
    seq: u64,
    n: usize,
    of: usize,
    at: Timestamp,
    change: &'c Change,
}

#[derive(Debug)]
pub struct Sink {
    path: PathBuf,
    file: File,
    bytes: u64,
    cursor: SinkCursor,
    dirty: bool,
}

impl Sink {
    /// Opens the file. `last` is the last record of the journal. If the file is new or belongs to
    /// another journal, it starts after record `from`.
    pub fn open(path: &Path, from: u64, last: u64) -> Result<Self, SinkError> {
        let failed = |err| SinkError::Open { path: path.to_owned(), err };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let Tail { bytes, cursor, is_sink } = tail(&mut file).map_err(failed)?;
        if !is_sink {
            return Err(SinkError::Foreign { path: path.to_owned() });
        }
        file.set_len(bytes).map_err(failed)?;
        if let Some(SinkCursor { seq, .. }) = cursor.filter(|cursor| cursor.seq > last) {
            tracing::warn!(seq, last, "the sink is ahead of the journal; writing a new start line");
        }
        let cursor = cursor.filter(|cursor| cursor.seq <= last);
        let mut sink = Self {
            path: path.to_owned(),
            file,
            bytes,
            cursor: cursor.unwrap_or(SinkCursor { seq: from, n: usize::MAX }),
            dirty: false,
        };
        if cursor.is_none() {
            sink.write(format!("{START}{from}}}\n").as_bytes())?;
        }
        Ok(sink)
    }

    /// `true` if the path now refers to another file. This happens after log rotation.
    pub fn was_moved(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let id = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
        let open = self.file.metadata().as_ref().map(id).ok();
        open != std::fs::metadata(&self.path).as_ref().map(id).ok()
    }

    /// For tests: makes writes fail.
    #[cfg(test)]
    pub(crate) fn break_file(&mut self) {
        self.file = File::open(&self.path).expect("the file exists");
    }

    /// The last record of which at least one change was written.
    pub fn seq(&self) -> u64 {
        self.cursor.seq
    }

    /// Writes those changes of a record that were not written yet.
    pub fn write_record(&mut self, record: &JournalRecord) -> Result<(), SinkError> {
        let mut bytes = Vec::new();
        let mut cursor = self.cursor;
        for (at, change) in record.changes.iter().enumerate() {
            let next = SinkCursor { seq: record.seq, n: at + 1 };
            if next <= self.cursor {
                continue;
            }
            let line = SinkLine {
                v: VERSION,
                seq: record.seq,
                n: at + 1,
                of: record.changes.len(),
                at: record.at,
                change,
            };
            serde_json::to_writer(&mut bytes, &line)
                .map_err(|err| SinkError::Write { path: self.path.clone(), err: err.into() })?;
            bytes.push(b'\n');
            cursor = next;
        }
        if !bytes.is_empty() {
            self.write(&bytes)?;
            self.cursor = cursor;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let failed = |err| SinkError::Write { path: self.path.clone(), err };
        if self.dirty {
            self.file.set_len(self.bytes).map_err(failed)?;
        }
        self.dirty = true;
        self.file.write_all(bytes).map_err(failed)?;
        self.dirty = false;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// The end of a file.
struct Tail {
    /// Bytes up to the end of the last complete line.
    bytes: u64,
    /// The cursor in the last line that has one.
    cursor: Option<SinkCursor>,
    /// `true` if the file was written by a sink, even if its first line is torn.
    is_sink: bool,
}

fn tail(file: &mut File) -> io::Result<Tail> {
    #[derive(Deserialize)]
    struct LinePosition {
        seq: Option<u64>,
        n: Option<usize>,
        start: Option<u64>,
    }
    let length = file.seek(SeekFrom::End(0))?;
    let from = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let first = &bytes[..bytes.len().min(START.len())];
    let is_torn_start = end == 0 && from == 0 && START.as_bytes().starts_with(first);
    bytes.truncate(end);
    let cursor = bytes.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let position: LinePosition = serde_json::from_slice(line).ok()?;
        match position {
            LinePosition { seq: Some(seq), n: Some(n), .. } => Some(SinkCursor { seq, n }),
            LinePosition { start: Some(seq), .. } => Some(SinkCursor { seq, n: usize::MAX }),
            LinePosition { .. } => None,
        }
    });
    let is_sink = cursor.is_some() || is_torn_start;
    Ok(Tail { bytes: from + end as u64, cursor, is_sink })
}
