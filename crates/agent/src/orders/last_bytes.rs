//! The last part of a stream that may be larger than memory.

/// Keeps the last bytes of a stream. If bytes were dropped, the remaining text starts at the
/// beginning of a line, because half of a secret would not be recognised.
#[derive(Debug)]
pub(super) struct LastBytes {
    keep_bytes: usize,
    bytes: Vec<u8>,
    dropped_bytes: u64,
}

impl LastBytes {
    pub(super) fn new(keep_bytes: usize) -> Self {
        Self { keep_bytes, bytes: Vec::new(), dropped_bytes: 0 }
    }

    /// Number of bytes in memory, less than twice `keep_bytes`.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        // Do not drop bytes with every chunk, because each drop moves all remaining bytes.
        if self.bytes.len() >= 2 * self.keep_bytes {
            self.drop_first(self.keep_bytes);
        }
    }

    /// Removes and returns the bytes, and the number of bytes dropped before them.
    pub(super) fn take(&mut self) -> (Vec<u8>, u64) {
        if self.bytes.len() > self.keep_bytes || self.dropped_bytes > 0 {
            self.drop_first(self.keep_bytes);
            let line = self.bytes.iter().position(|byte| *byte == b'\n');
            self.drop_first(line.map_or(0, |at| self.bytes.len() - at - 1));
        }
        (std::mem::take(&mut self.bytes), self.dropped_bytes)
    }

    fn drop_first(&mut self, keep_bytes: usize) {
        let count = self.bytes.len().saturating_sub(keep_bytes);
        self.bytes.drain(..count);
        self.dropped_bytes += count as u64;
    }
}
