//! The journal's files: `findings-000001.jsonl` and so on.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::record::{JournalRecord, VERSION, is_readable};

/// Maximum length of a line, which contains one record. A record changes at most some hundred
/// findings, and a finding has a few kilobytes.
pub(crate) const LINE_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// Time of the first record.
    pub(super) first: Option<Timestamp>,
    /// Time of the last record.
    pub(super) last: Option<Timestamp>,
    /// Size of the snapshot at the beginning of the segment. If the segment has no snapshot, the
    /// value is `None`, and earlier segments are still needed.
    pub(super) snapshot_bytes: Option<u64>,
}

impl Segment {
    /// A segment without records.
    pub(super) fn empty(number: u64) -> Self {
        Self { number, bytes: 0, first: None, last: None, snapshot_bytes: None }
    }
}

/// The result of reading a segment.
#[derive(Debug, Default)]
pub(crate) struct ReadSegment {
    /// Bytes up to the end of the last complete line.
    pub(super) whole_bytes: u64,
    /// Bytes after the last complete line. They belong to a line that was being written when the
    /// process ended.
    pub(super) torn_bytes: u64,
    /// Lines that did not parse.
    pub(super) damaged: u64,
    /// Version of a record that this agent is too old to read, if there was one.
    pub(super) newer: Option<u32>,
    pub(super) first: Option<Timestamp>,
    pub(super) last: Option<Timestamp>,
    pub(super) snapshot_bytes: Option<u64>,
}

pub(crate) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("findings-{number:06}.jsonl"))
}

/// Segment numbers in order.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number: Option<u64> = name
            .to_str()
            .and_then(|name| name.strip_prefix("findings-")?.strip_suffix(".jsonl")?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads a segment record by record.
pub(crate) fn read(path: &Path, mut visit: impl FnMut(JournalRecord)) -> io::Result<ReadSegment> {
    #[derive(serde::Deserialize)]
    struct OnlyVersion {
        v: u32,
    }
    let mut reader = BufReader::with_capacity(64 << 10, File::open(path)?);
    let mut segment = ReadSegment::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = read_line(&mut reader, &mut line)?;
        if length == 0 {
            return Ok(segment);
        }
        if line.last() != Some(&b'\n') && length <= LINE_BYTES_MAX as u64 {
            segment.torn_bytes = length;
            return Ok(segment);
        }
        let first = segment.whole_bytes == 0;
        segment.whole_bytes += length;
        match serde_json::from_slice::<JournalRecord>(&line) {
            Ok(record) if is_readable(record.v) => {
                if first {
                    segment.snapshot_bytes = record.snapshot.is_some().then_some(length);
                }
                segment.first = segment.first.or(Some(record.at));
                segment.last = Some(record.at);
                visit(record);
            }
            Ok(record) => segment.newer = Some(record.v),
            Err(_) => match serde_json::from_slice::<OnlyVersion>(&line) {
                Ok(OnlyVersion { v }) if v > VERSION => segment.newer = Some(v),
                _ => segment.damaged += 1,
            },
        }
    }
}

/// Reads a line and returns its full length. Of a line longer than `LINE_BYTES_MAX`, only about
/// this many bytes are kept.
pub(crate) fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    let mut length = 0_u64;
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(length);
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let used = end.unwrap_or(bytes.len());
        if line.len() < LINE_BYTES_MAX {
            line.extend_from_slice(&bytes[..used]);
        }
        reader.consume(used);
        length += used as u64;
        if end.is_some() {
            return Ok(length);
        }
    }
}

/// Opens a segment for appending, creating it if needed.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Syncs the directory. A new directory entry is durable only after this.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
