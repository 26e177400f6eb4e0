//! Reads a stream on a thread of its own, so that the next chunk comes in while one is looked at.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Large enough that calls and hand-overs do not count, small enough for the processor's cache.
pub(crate) const CHUNK: usize = 256 << 10;

/// Chunks that are read and not yet looked at.
const AHEAD: usize = 4;

/// The chunks of a stream.
pub(crate) struct ReadAhead {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: Sender<Vec<u8>>,
}

impl ReadAhead {
    /// Starts to read. The thread ends with the stream, or when nobody takes its chunks any more; it
    /// is not waited for, because a read of a pipe may never return.
    pub(crate) fn spawn(mut stream: impl Read + Send + 'static) -> Self {
        let (full_sender, full) = sync_channel(AHEAD);
        let (empty, empty_receiver) = channel();
        std::thread::spawn(move || while read_one(&mut stream, &full_sender, &empty_receiver) {});
        Self { full, empty }
    }

    /// The next chunk; none at the end of the stream.
    pub(crate) fn next(&self) -> io::Result<Option<Vec<u8>>> {
        self.full.recv().ok().transpose()
    }

    /// Hands a chunk back to be filled again.
    pub(crate) fn give_back(&self, chunk: Vec<u8>) {
        // The reader may have ended; then nobody needs it.
        let _ = self.empty.send(chunk);
    }
}

/// Reads one chunk; whether there may be another.
fn read_one(
    stream: &mut impl Read,
    full: &SyncSender<io::Result<Vec<u8>>>,
    empty: &Receiver<Vec<u8>>,
) -> bool {
    let mut chunk = empty.try_recv().unwrap_or_default();
    chunk.resize(CHUNK, 0);
    match stream.read(&mut chunk) {
        Ok(0) => false,
        Ok(length) => {
            chunk.truncate(length);
            full.send(Ok(chunk)).is_ok()
        }
        Err(err) if err.kind() == ErrorKind::Interrupted => true,
        Err(err) => {
            let _ = full.send(Err(err));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(stream: impl Read + Send + 'static) -> io::Result<Vec<u8>> {
        let ahead = ReadAhead::spawn(stream);
        let mut bytes = Vec::new();
        while let Some(chunk) = ahead.next()? {
            bytes.extend_from_slice(&chunk);
            ahead.give_back(chunk);
        }
        Ok(bytes)
    }

    #[test]
    fn every_byte_arrives_once_and_in_order() {
        let bytes: Vec<u8> = (0..=250).cycle().take(CHUNK * 5 + 7).collect();
        assert_eq!(all(io::Cursor::new(bytes.clone())).unwrap(), bytes);
        assert_eq!(all(io::empty()).unwrap(), Vec::<u8>::new());
    }

    #[test]
    fn an_error_arrives_after_what_was_read() {
        struct Breaks(bool);
        impl Read for Breaks {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if std::mem::replace(&mut self.0, true) {
                    return Err(ErrorKind::BrokenPipe.into());
                }
                buffer[0] = b'x';
                Ok(1)
            }
        }
        let ahead = ReadAhead::spawn(Breaks(false));
        assert_eq!(ahead.next().unwrap(), Some(vec![b'x']));
        assert!(ahead.next().is_err());
    }
}
