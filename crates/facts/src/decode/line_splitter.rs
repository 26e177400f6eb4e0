//! Splits chunks into numbered lines, and keeps the candidates that the prefilter finds. Memory use
//! is constant.

use std::ops::Range;
use std::sync::Arc;

use memchr::{memchr, memchr_iter, memrchr};

use super::prefilter::Prefilter;

/// Longer lines are processed in overlapping pieces. Kernel messages are much shorter
/// (`LOG_LINE_MAX` is 1 KiB), but after a crash a megabyte of NUL bytes may precede a message.
const PIECE: usize = 64 << 10;
const OVERLAP: usize = 4 << 10;

/// Scans chunks for candidate lines. The scan of a chunk does not depend on the chunks before it,
/// so another thread can scan ahead of the decoder.
#[derive(Debug, Clone)]
pub struct Scanner(Arc<Prefilter>);

/// A chunk and its candidate lines.
#[derive(Debug)]
pub struct ScannedChunk {
    bytes: Vec<u8>,
    scan: Scan,
}

impl ScannedChunk {
    /// The chunk, for reuse of its buffer.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Scanner {
    pub fn scan(&self, bytes: Vec<u8>) -> ScannedChunk {
        let scan = self.find_candidates(&bytes);
        ScannedChunk { bytes, scan }
    }

    fn find_candidates(&self, chunk: &[u8]) -> Scan {
        let (Some(first), Some(last)) = (memchr(b'\n', chunk), memrchr(b'\n', chunk)) else {
            return Scan::default();
        };
        let whole = first + 1..last + 1;
        let (mut candidates, mut lines, mut from) = (Vec::new(), 0, whole.start);
        while let Some((found, end)) = self.0.find(&chunk[..whole.end], from) {
            let start = memrchr(b'\n', &chunk[from..found]).map_or(from, |at| from + at + 1);
            let end = memchr(b'\n', &chunk[end..]).map_or(whole.end, |at| end + at);
            lines += newlines(&chunk[from..start]);
            candidates.push(Candidate { lines_before: lines, bytes: start..end });
            lines += 1;
            from = (end + 1).min(whole.end);
        }
        lines += newlines(&chunk[from..whole.end]);
        Scan { whole: Some(whole), lines, candidates }
    }
}

/// The lines of a chunk.
#[derive(Debug, Default)]
struct Scan {
    /// Range of the lines that begin and end in the chunk: from the byte after its first newline to
    /// the byte after its last newline. `None` if the chunk has no newline.
    whole: Option<Range<usize>>,
    /// Number of lines in `whole`.
    lines: u64,
    candidates: Vec<Candidate>,
}

/// A candidate: a line with a needle of the prefilter.
#[derive(Debug)]
struct Candidate {
    /// Number of lines that begin and end in the chunk before this line.
    lines_before: u64,
    bytes: Range<usize>,
}

/// Splits a stream into lines, independent of chunk boundaries.
#[derive(Debug)]
pub(super) struct LineSplitter {
    scanner: Scanner,
    /// Start of an incomplete line, or of its current piece.
    tail: Vec<u8>,
    lines_ended: u64,
}

impl LineSplitter {
    pub(super) fn new() -> Self {
        let scanner = Scanner(Arc::new(Prefilter::new()));
        Self { scanner, tail: Vec::new(), lines_ended: 0 }
    }

    pub(super) fn scanner(&self) -> Scanner {
        self.scanner.clone()
    }

    /// Number of complete lines.
    pub(super) fn line_count(&self) -> u64 {
        self.lines_ended
    }

    /// Processes a chunk; calls `read` with the number and bytes of every candidate line.
    pub(super) fn feed(&mut self, chunk: &[u8], read: impl FnMut(u64, &[u8])) {
        let scan = self.scanner.find_candidates(chunk);
        self.feed_scan(chunk, &scan, read);
    }

    pub(super) fn feed_scanned(&mut self, chunk: &ScannedChunk, read: impl FnMut(u64, &[u8])) {
        self.feed_scan(&chunk.bytes, &chunk.scan, read);
    }

    fn feed_scan(&mut self, chunk: &[u8], scan: &Scan, mut read: impl FnMut(u64, &[u8])) {
        let Some(whole) = &scan.whole else { return self.buffer(chunk, &mut read) };
        self.buffer(&chunk[..whole.start - 1], &mut read);
        self.end_line(&mut read);
        for candidate in &scan.candidates {
            let number = self.lines_ended + candidate.lines_before + 1;
            self.read_line(number, &chunk[candidate.bytes.clone()], &mut read);
        }
        self.lines_ended += scan.lines;
        self.buffer(&chunk[whole.end..], &mut read);
    }

    /// Ends an unterminated last line.
    pub(super) fn finish(&mut self, mut read: impl FnMut(u64, &[u8])) {
        if !self.tail.is_empty() {
            self.end_line(&mut read);
        }
    }

    fn read_line(&self, number: u64, mut line: &[u8], read: &mut impl FnMut(u64, &[u8])) {
        while line.len() > PIECE + OVERLAP {
            self.read_piece(number, &line[..PIECE + OVERLAP], read);
            line = &line[PIECE..];
        }
        self.read_piece(number, line, read);
    }

    /// Buffers the start of a line until its end arrives; processes pieces of a line that grows too
    /// long.
    fn buffer(&mut self, bytes: &[u8], read: &mut impl FnMut(u64, &[u8])) {
        for part in bytes.chunks(PIECE) {
            self.tail.extend_from_slice(part);
            while self.tail.len() > PIECE + OVERLAP {
                self.read_piece(self.lines_ended + 1, &self.tail[..PIECE + OVERLAP], read);
                self.tail.drain(..PIECE);
            }
        }
    }

    fn end_line(&mut self, read: &mut impl FnMut(u64, &[u8])) {
        self.read_piece(self.lines_ended + 1, &self.tail, read);
        self.tail.clear();
        self.lines_ended += 1;
    }

    fn read_piece(&self, number: u64, piece: &[u8], read: &mut impl FnMut(u64, &[u8])) {
        if self.scanner.0.find(piece, 0).is_some() {
            read(number, piece);
        }
    }

    /// Capacity of the buffer, to test that it is bounded.
    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.tail.capacity()
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> (Vec<(u64, Vec<u8>)>, u64) {
        let mut splitter = LineSplitter::new();
        let mut found = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let keep = |line, bytes: &[u8]| found.push((line, bytes.to_vec()));
            if index % 2 == 0 {
                splitter.feed(chunk, keep);
            } else {
                let chunk = splitter.scanner().scan(chunk.to_vec());
                splitter.feed_scanned(&chunk, keep);
            }
        }
        splitter.finish(|line, bytes| found.push((line, bytes.to_vec())));
        (found, splitter.line_count())
    }

    #[test]
    fn numbers_lines_from_one_and_accepts_unterminated_last_line() {
        let (found, ended) = lines(&[b"a\nNVRM: b\n\nc NVRM: d\ne\nNVRM"]);
        assert_eq!(
            found,
            [(2, b"NVRM: b".to_vec()), (4, b"c NVRM: d".to_vec()), (6, b"NVRM".to_vec())]
        );
        assert_eq!(ended, 6);
    }

    #[test]
    fn chunk_boundaries_do_not_matter() {
        let text = b"a\nNVRM: b\n\nc NVRM: d SXid\ne\r\nNVRM: f\n";
        let whole = lines(&[text]);
        for cut in 0..=text.len() {
            for second in cut..=text.len() {
                let parts = [&text[..cut], &text[cut..second], &text[second..]];
                assert_eq!(lines(&parts), whole, "cut at {cut} and {second}");
            }
        }
    }

    #[test]
    fn processes_huge_lines_in_bounded_memory() {
        let mut text = vec![0_u8; 3 << 20];
        text.extend_from_slice(b"NVRM: Xid\nNVRM\n");
        let whole = lines(&[&text]);
        assert_eq!(whole.0.len(), 2);
        assert_eq!(whole.1, 2);
        let mut splitter = LineSplitter::new();
        let mut found = Vec::new();
        for chunk in text.chunks(1000) {
            splitter.feed(chunk, |line, bytes| found.push((line, bytes.to_vec())));
        }
        assert_eq!(found, whole.0);
        assert!(splitter.buffered_capacity() <= 4 * PIECE, "{}", splitter.buffered_capacity());
    }
}
