//! Reads a stream ahead of its consumer: a thread reads the next chunks while one is processed.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

/// Large enough to amortise system calls and channel hand-overs, small enough for the CPU cache.
pub(crate) const CHUNK: usize = 128 << 10;

/// Chunks buffered ahead of the consumer.
const AHEAD: usize = 4;

/// The chunks of a stream.
pub(crate) enum ReadAhead {
    /// Another thread reads the chunks.
    Thread { full: Receiver<io::Result<Vec<u8>>>, empty: Sender<Vec<u8>> },
    /// The consumer's thread reads each chunk on demand.
    Inline { stream: Box<dyn Read>, chunk: Vec<u8> },
}

impl ReadAhead {
    /// Starts reading. A thread ends with the stream, or when the consumer drops its receiver. It
    /// is never joined, because a read from a pipe may never return.
    pub(crate) fn spawn(stream: Box<dyn Read + Send>) -> Self {
        if has_idle_cpu() {
            Self::thread(stream)
        } else {
            Self::Inline { stream, chunk: Vec::new() }
        }
    }

    fn thread(mut stream: Box<dyn Read + Send>) -> Self {
        let (sender, full) = sync_channel(AHEAD);
        let (empty, recycled) = channel();
        std::thread::spawn(move || {
            loop {
                let chunk = recycled.try_recv().unwrap_or_default();
                let Some(read) = read_one(&mut stream, chunk).transpose() else { return };
                let failed = read.is_err();
                if sender.send(read).is_err() || failed {
                    return;
                }
            }
        });
        Self::Thread { full, empty }
    }

    /// The next chunk; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Thread { full, .. } => full.recv().ok().transpose(),
            Self::Inline { stream, chunk } => read_one(stream, std::mem::take(chunk)),
        }
    }

    /// Returns a used buffer for reuse.
    pub(crate) fn recycle(&mut self, used: Vec<u8>) {
        match self {
            // The reader thread may have ended; then the buffer is dropped.
            Self::Thread { empty, .. } => drop(empty.send(used)),
            Self::Inline { chunk, .. } => *chunk = used,
        }
    }
}

/// Whether a second thread would have a CPU to itself. Otherwise handing chunks over takes longer
/// than reading them.
fn has_idle_cpu() -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // The fourth field of loadavg is `running/total` tasks; this process is one that runs.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let running = load.split_whitespace().nth(3).and_then(|word| word.split('/').next());
    let running: usize = running.and_then(|count| count.parse().ok()).unwrap_or(1);
    running < cpus
}

/// Fills a chunk with one read; `None` at the end of the stream.
fn read_one(stream: &mut impl Read, mut chunk: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    chunk.resize(CHUNK, 0);
    loop {
        match stream.read(&mut chunk) {
            Ok(length) => {
                chunk.truncate(length);
                return Ok((length > 0).then_some(chunk));
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => (),
            Err(err) => return Err(err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(stream: impl Fn() -> Box<dyn Read + Send>) -> [ReadAhead; 2] {
        let inline = ReadAhead::Inline { stream: stream(), chunk: Vec::new() };
        [ReadAhead::thread(stream()), inline]
    }

    #[test]
    fn every_byte_arrives_once_and_in_order() {
        for length in [0, 1, CHUNK, CHUNK * 9 + 7] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            for mut ahead in both(|| Box::new(io::Cursor::new(bytes.clone()))) {
                let mut arrived = Vec::new();
                while let Some(chunk) = ahead.next().unwrap() {
                    arrived.extend_from_slice(&chunk);
                    ahead.recycle(chunk);
                }
                assert!(arrived == bytes, "{length}");
            }
        }
    }

    #[test]
    fn an_error_arrives_after_the_data_before_it() {
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
        for mut ahead in both(|| Box::new(Breaks(false))) {
            assert_eq!(ahead.next().unwrap(), Some(vec![b'x']));
            assert!(ahead.next().is_err());
        }
    }
}
