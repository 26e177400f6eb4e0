//! The end of a stream that may be longer than memory.

/// The last bytes of a stream, from the beginning of a line where some were dropped: half of a line
/// may have half of a secret.
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

    /// Bytes in memory: up to twice as many as are kept.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        // Not with each piece: all that is kept is moved.
        if self.bytes.len() >= 2 * self.keep_bytes {
            self.drop_first(self.keep_bytes);
        }
    }

    /// Takes what is kept, and how many bytes before it were dropped.
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
