//! Splits chunks into numbered lines, and keeps the candidates that the prefilter finds. Memory use
//! is constant.

use memchr::{memchr, memchr_iter, memrchr};

use super::prefilter::Prefilter;

/// Longer lines are processed in overlapping pieces. Kernel messages are much shorter
/// (`LOG_LINE_MAX` is 1 KiB), but after a crash a megabyte of NUL bytes may precede one.
const PIECE: usize = 64 << 10;
const OVERLAP: usize = 4 << 10;

/// Splits a stream into lines, independent of chunk boundaries.
#[derive(Debug)]
pub(super) struct LineSplitter {
    prefilter: Prefilter,
    /// Start of an incomplete line, or of its current piece.
    tail: Vec<u8>,
    lines_ended: u64,
}

impl LineSplitter {
    pub(super) fn new() -> Self {
        Self { prefilter: Prefilter::new(), tail: Vec::new(), lines_ended: 0 }
    }

    /// Number of complete lines.
    pub(super) fn line_count(&self) -> u64 {
        self.lines_ended
    }

    /// Processes a chunk; calls `read` with the number and bytes of every candidate line.
    pub(super) fn feed(&mut self, chunk: &[u8], mut read: impl FnMut(u64, &[u8])) {
        let mut rest = chunk;
        if !self.tail.is_empty() {
            let Some(end) = memchr(b'\n', rest) else {
                return self.buffer(rest, &mut read);
            };
            self.buffer(&rest[..end], &mut read);
            self.end_line(&mut read);
            rest = &rest[end + 1..];
        }
        if let Some(last) = memrchr(b'\n', rest) {
            self.whole_lines(&rest[..=last], &mut read);
            rest = &rest[last + 1..];
        }
        self.buffer(rest, &mut read);
    }

    /// Ends an unterminated last line.
    pub(super) fn finish(&mut self, mut read: impl FnMut(u64, &[u8])) {
        if !self.tail.is_empty() {
            self.end_line(&mut read);
        }
    }

    /// Processes complete lines of one chunk; the last byte is a newline.
    fn whole_lines(&mut self, lines: &[u8], read: &mut impl FnMut(u64, &[u8])) {
        let mut from = 0;
        while let Some((found, end)) = self.prefilter.find(lines, from) {
            let start = memrchr(b'\n', &lines[from..found]).map_or(from, |at| from + at + 1);
            let end = memchr(b'\n', &lines[end..]).map_or(lines.len(), |at| end + at);
            self.lines_ended += newlines(&lines[from..start]);
            let mut line = &lines[start..end];
            while line.len() > PIECE + OVERLAP {
                self.read_piece(&line[..PIECE + OVERLAP], read);
                line = &line[PIECE..];
            }
            self.read_piece(line, read);
            self.lines_ended += 1;
            from = (end + 1).min(lines.len());
        }
        self.lines_ended += newlines(&lines[from..]);
    }

    /// Buffers the start of a line until its end arrives; processes pieces of a line that grows too
    /// long.
    fn buffer(&mut self, bytes: &[u8], read: &mut impl FnMut(u64, &[u8])) {
        for part in bytes.chunks(PIECE) {
            self.tail.extend_from_slice(part);
            while self.tail.len() > PIECE + OVERLAP {
                self.read_piece(&self.tail[..PIECE + OVERLAP], read);
                self.tail.drain(..PIECE);
            }
        }
    }

    fn end_line(&mut self, read: &mut impl FnMut(u64, &[u8])) {
        self.read_piece(&self.tail, read);
        self.tail.clear();
        self.lines_ended += 1;
    }

    fn read_piece(&self, piece: &[u8], read: &mut impl FnMut(u64, &[u8])) {
        if self.prefilter.find(piece, 0).is_some() {
            read(self.lines_ended + 1, piece);
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
        for chunk in chunks {
            splitter.feed(chunk, |line, bytes| found.push((line, bytes.to_vec())));
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
