//! Reads the files of the journal, starting after the last record that the server has acknowledged.
//! Only records that are on disk are returned. Gaps are reported.

use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use farrier_fleet::health::Finding;

use crate::journal::{DurableState, JournalRecord, is_readable, segment};

/// Size of the read buffer. It holds several records, or the snapshot of most healthy nodes.
const BUFFER_BYTES: usize = 64 << 10;

/// Read position.
#[derive(Debug, Clone, Copy)]
struct ReadPosition {
    segment: u64,
    offset: u64,
    /// Sequence number of the last record that was returned.
    last: u64,
}

#[derive(Debug)]
pub(crate) enum JournalRead {
    /// Records in order. Empty if there is nothing new.
    Records(Vec<JournalRecord>),
    /// The journal does not continue at the read position. Either a line is damaged, or a segment
    /// was deleted before it was read.
    Gap,
}

#[derive(Debug)]
pub(crate) struct JournalReader {
    dir: PathBuf,
    position: Option<ReadPosition>,
    /// The segment at `position`, kept open between reads. `None` before the first read.
    open: Option<OpenSegment>,
}

/// The segment that is being read. The file is open, so it stays readable after it is deleted.
#[derive(Debug)]
struct OpenSegment {
    number: u64,
    reader: BufReader<File>,
    /// The last durable record at the time when the buffer was filled. Later lines in the buffer
    /// may come from a failed write, which the journal truncates and repeats.
    durable: u64,
}

impl OpenSegment {
    fn open(dir: &Path, number: u64, durable: u64) -> io::Result<Self> {
        let file = File::open(segment::path(dir, number))?;
        Ok(Self { number, reader: BufReader::with_capacity(BUFFER_BYTES, file), durable })
    }

    /// Seeks to an offset. Discards the buffer if the last durable record has changed.
    fn seek(&mut self, offset: u64, durable: u64) -> io::Result<()> {
        if self.durable != durable || self.reader.stream_position()? != offset {
            self.reader.seek(SeekFrom::Start(offset))?;
            self.durable = durable;
        }
        Ok(())
    }
}

impl JournalReader {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), position: None, open: None }
    }

    /// Closes the file while the reader is idle, because a deleted file uses disk space as long as
    /// it is open.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// Resumes after the record `acked`. Returns false if the journal does not reach back that far.
    pub(crate) fn resume(&mut self, acked: u64) -> io::Result<bool> {
        (self.position, self.open) = (None, None);
        for number in segment::list(&self.dir)?.into_iter().rev() {
            let reaches_back = match first_record(&self.dir, number)? {
                Some(first) if first.snapshot.is_some() => first.seq <= acked,
                // Segment 1 starts with the first record ever written.
                _ => number == 1,
            };
            if reaches_back {
                self.position = Some(ReadPosition { segment: number, offset: 0, last: acked });
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// All open findings as of the last record up to `durable`, and its number. Reading resumes
    /// after that record.
    pub(crate) fn resync(&mut self, durable: u64) -> io::Result<(u64, Vec<Finding>)> {
        let numbers = segment::list(&self.dir)?;
        let mut from = 0;
        for (at, number) in numbers.iter().enumerate().rev() {
            let first = first_record(&self.dir, *number)?;
            if first.is_some_and(|record| record.snapshot.is_some() && record.seq <= durable) {
                from = at;
                break;
            }
        }
        let mut state = DurableState::default();
        for number in &numbers[from..] {
            let read = segment::read(&segment::path(&self.dir, *number), |record| {
                if record.seq <= durable {
                    state.apply(&record);
                }
            });
            ignore_not_found(read.map(|_| ()))?;
        }
        let segment = numbers.get(from).copied().unwrap_or(1);
        self.open = None;
        self.position = Some(ReadPosition { segment, offset: 0, last: state.seq });
        Ok((state.seq, state.open.into_values().collect()))
    }

    /// The next records with changes, up to the record `durable`. Stops after `bytes_max` bytes of
    /// lines, but returns at least one record if there is any.
    pub(crate) fn read(&mut self, durable: u64, bytes_max: u64) -> io::Result<JournalRead> {
        let Some(mut position) = self.position else { return Ok(JournalRead::Gap) };
        let mut records = Vec::new();
        let mut bytes = 0;
        while position.last < durable && bytes < bytes_max {
            let mut open = match self.segment(position.segment, durable) {
                Ok(open) => open,
                // The segment was deleted before it was opened. If all its records were read,
                // continue with a later segment.
                Err(err) if err.kind() == io::ErrorKind::NotFound => {
                    let is_empty = segment::list(&self.dir)?.is_empty();
                    if position.last == 0 && is_empty {
                        break;
                    }
                    if is_empty || !self.resume(position.last)? {
                        return Ok(JournalRead::Gap);
                    }
                    position = self.position.unwrap_or(position);
                    continue;
                }
                Err(err) => return Err(err),
            };
            open.seek(position.offset, durable)?;
            while position.last < durable && bytes < bytes_max {
                match next(&mut open.reader, &mut position, durable)? {
                    Next::Record(record, length) => {
                        bytes += length;
                        records.push(*record);
                    }
                    Next::Skipped => (),
                    Next::End => break,
                    Next::Gap => return Ok(JournalRead::Gap),
                }
            }
            self.open = Some(open);
            self.position = Some(position);
            if position.last >= durable || bytes >= bytes_max {
                break;
            }
            let next =
                segment::list(&self.dir)?.into_iter().find(|number| *number > position.segment);
            let Some(next) = next else { break };
            position = ReadPosition { segment: next, offset: 0, ..position };
        }
        self.position = Some(position);
        Ok(JournalRead::Records(records))
    }

    /// Returns the open segment, or opens it.
    fn segment(&mut self, number: u64, durable: u64) -> io::Result<OpenSegment> {
        match self.open.take().filter(|open| open.number == number) {
            Some(open) => Ok(open),
            None => OpenSegment::open(&self.dir, number, durable),
        }
    }
}

enum Next {
    /// A record with changes, and the length of its line.
    Record(Box<JournalRecord>, u64),
    /// The record was already returned, or has no changes.
    Skipped,
    /// The line is incomplete, or its record is not durable yet.
    End,
    /// The line is damaged, or records before it are missing.
    Gap,
}

/// Reads a line. The position advances unless the line has to be read again.
fn next(
    reader: &mut BufReader<File>,
    position: &mut ReadPosition,
    durable: u64,
) -> io::Result<Next> {
    let mut line = Vec::new();
    let length = segment::read_line(reader, &mut line)?;
    if length == 0 || line.last() != Some(&b'\n') {
        return Ok(Next::End);
    }
    let Some(record) = parse(&line) else { return Ok(Next::Gap) };
    let is_snapshot = record.snapshot.is_some();
    if is_snapshot && record.seq > position.last {
        return Ok(Next::Gap);
    }
    if !is_snapshot && record.seq > durable {
        return Ok(Next::End);
    }
    position.offset += length;
    if is_snapshot || record.seq <= position.last {
        return Ok(Next::Skipped);
    }
    position.last = record.seq;
    let has_changes = !record.changes.is_empty();
    Ok(if has_changes { Next::Record(Box::new(record), length) } else { Next::Skipped })
}

fn parse(line: &[u8]) -> Option<JournalRecord> {
    serde_json::from_slice::<JournalRecord>(line).ok().filter(|record| is_readable(record.v))
}

/// The first record of a segment. `None` if the segment has no record, or the record is damaged.
fn first_record(dir: &Path, number: u64) -> io::Result<Option<JournalRecord>> {
    let file = match File::open(segment::path(dir, number)) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    };
    let mut line = Vec::new();
    segment::read_line(&mut BufReader::with_capacity(BUFFER_BYTES, file), &mut line)?;
    Ok(parse(&line))
}

/// Ignores that a segment was deleted after it was listed, because a later segment supersedes it.
fn ignore_not_found(read: io::Result<()>) -> io::Result<()> {
    match read {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use farrier_fleet::health::Change;
    use jiff::Timestamp;

    use super::*;
    use crate::config::Retention;
    use crate::failpoint::Failpoint;
    use crate::journal::Journal;
    use crate::journal::tests::finding;

    const ALL: u64 = u64::MAX;

    struct TestJournal {
        folder: tempfile::TempDir,
        journal: Journal,
    }

    impl TestJournal {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let retention = Retention { days: 90, bytes: 1 << 20 };
            let journal = Journal::open(folder.path(), retention).unwrap();
            Self { folder, journal }
        }

        fn append(&mut self, id: u64) -> u64 {
            let changes = vec![Change::Opened(finding(id, 1))];
            let at = Timestamp::UNIX_EPOCH;
            self.journal.append(at, "boot", None, changes, Vec::new(), Vec::new());
            self.journal.flush(at, &Failpoint::default()).unwrap();
            self.journal.durable().seq
        }

        fn reader(&self) -> JournalReader {
            JournalReader::new(self.folder.path())
        }
    }

    fn numbers(read: JournalRead) -> Vec<u64> {
        match read {
            JournalRead::Records(records) => records.iter().map(|record| record.seq).collect(),
            JournalRead::Gap => panic!("a gap"),
        }
    }

    #[test]
    fn reading_resumes_and_stops_at_the_last_durable_record() {
        let mut test = TestJournal::new();
        let mut reader = test.reader();
        assert_eq!(reader.resync(0).unwrap(), (0, Vec::new()));
        assert!(numbers(reader.read(0, ALL).unwrap()).is_empty());
        for id in 1..=3 {
            test.append(id);
        }
        assert_eq!(
            numbers(reader.read(2, ALL).unwrap()),
            [1, 2],
            "the third is not known to be durable"
        );
        assert_eq!(numbers(reader.read(3, ALL).unwrap()), [3]);
        assert!(numbers(reader.read(3, ALL).unwrap()).is_empty());
        let mut other = test.reader();
        assert!(other.resume(1).unwrap());
        assert_eq!(numbers(other.read(3, 1).unwrap()), [2], "at least one record");
        assert_eq!(numbers(other.read(3, 1).unwrap()), [3]);
    }

    #[test]
    fn reading_continues_into_new_segments_and_reports_gaps() {
        let mut test = TestJournal::new();
        let mut reader = test.reader();
        let mut late = test.reader();
        reader.resync(0).unwrap();
        late.resync(0).unwrap();
        let mut numbers_read = Vec::new();
        let mut last = 0;
        for id in 1..=2000 {
            last = test.append(id);
            numbers_read.extend(numbers(reader.read(last, ALL).unwrap()));
        }
        assert_eq!(numbers_read, (1..=last).collect::<Vec<_>>());
        let segments = segment::list(test.folder.path()).unwrap();
        assert!(segments[0] > 1, "{segments:?}");
        assert!(
            matches!(late.read(last, ALL).unwrap(), JournalRead::Gap),
            "the first records were deleted"
        );
        assert!(!late.resume(5).unwrap());
        let (record, open) = late.resync(last).unwrap();
        assert_eq!((record, open.len()), (last, 2000));
        let next = test.append(9999);
        assert_eq!(numbers(late.read(next, ALL).unwrap()), [next]);
        assert!(late.resume(last).unwrap());
        assert_eq!(numbers(late.read(next, ALL).unwrap()), [next]);
    }

    #[test]
    fn a_damaged_line_is_a_gap() {
        let mut test = TestJournal::new();
        for id in 1..=3 {
            test.append(id);
        }
        let path = segment::path(test.folder.path(), 1);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        std::fs::write(&path, format!("{}\n???\n{}\n", lines[0], lines[2])).unwrap();
        let mut reader = test.reader();
        assert!(reader.resume(0).unwrap());
        assert!(matches!(reader.read(3, ALL).unwrap(), JournalRead::Gap));
        assert_eq!(reader.resync(3).unwrap().0, 3);
    }

    #[test]
    fn an_open_segment_stays_readable_after_it_is_deleted() {
        let mut test = TestJournal::new();
        for id in 1..=3 {
            test.append(id);
        }
        let [mut reader, mut closed] = [test.reader(), test.reader()];
        for reader in [&mut reader, &mut closed] {
            assert!(reader.resume(0).unwrap());
            assert_eq!(numbers(reader.read(3, 1).unwrap()), [1]);
        }
        closed.close();
        std::fs::remove_file(segment::path(test.folder.path(), 1)).unwrap();
        assert_eq!(numbers(reader.read(3, 1).unwrap()), [2], "the file is open");
        assert_eq!(numbers(reader.read(3, 1).unwrap()), [3]);
        assert!(matches!(closed.read(3, 1).unwrap(), JournalRead::Gap), "the closed file is gone");
    }

    #[test]
    fn a_rewritten_line_is_not_read_from_the_buffer() {
        let mut test = TestJournal::new();
        test.append(1);
        let path = segment::path(test.folder.path(), 1);
        let complete = std::fs::read_to_string(&path).unwrap();
        // The second line is from a failed write. Its record is not durable, and the journal
        // truncates the file before it retries.
        let failed = complete.replace("\"seq\":1", "\"seq\":2").replace("Xid 1", "Xid 77");
        std::fs::write(&path, format!("{complete}{failed}")).unwrap();
        let mut reader = test.reader();
        assert!(reader.resume(0).unwrap());
        assert_eq!(numbers(reader.read(1, ALL).unwrap()), [1]);
        std::fs::write(&path, &complete).unwrap();
        assert_eq!(test.append(2), 2);
        let JournalRead::Records(records) = reader.read(2, ALL).unwrap() else { panic!("a gap") };
        let details: Vec<_> =
            records.iter().map(|record| &record.changes[0].finding().detail).collect();
        assert_eq!(details, ["Xid 2"]);
    }
}
