//! Reads a log ahead of its decoder: a thread reads the next chunks while one is decoded. When the
//! decoder falls behind, the thread also scans chunks, which is most of the decoder's work.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};

use farrier_facts::decode::{ScannedChunk, Scanner};

/// Large enough to amortise system calls and channel hand-overs, small enough for the CPU cache.
pub(crate) const CHUNK: usize = 128 << 10;

/// Chunks buffered ahead of the consumer.
const AHEAD: usize = 4;

pub(crate) enum Chunk {
    Raw(Vec<u8>),
    Scanned(ScannedChunk),
}

impl Chunk {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Raw(bytes) => bytes,
            Self::Scanned(chunk) => chunk.bytes(),
        }
    }
}

/// The chunks of a stream.
pub(crate) enum ReadAhead {
    /// Another thread reads the chunks.
    Thread { full: Receiver<io::Result<Chunk>>, empty: Sender<Vec<u8>> },
    /// The consumer's thread reads each chunk on demand.
    Inline { stream: Box<dyn Read>, buffer: Vec<u8> },
}

impl ReadAhead {
    /// Starts reading. A thread ends with the stream, or when the consumer drops its receiver. It
    /// is never joined, because a read from a pipe may never return.
    pub(crate) fn spawn(stream: Box<dyn Read + Send>, scanner: Scanner) -> Self {
        if has_idle_cpu() {
            Self::thread(stream, scanner)
        } else {
            Self::Inline { stream, buffer: Vec::new() }
        }
    }

    fn thread(mut stream: Box<dyn Read + Send>, scanner: Scanner) -> Self {
        let (sender, full) = sync_channel(AHEAD);
        let (empty, recycled) = channel();
        std::thread::spawn(move || {
            loop {
                let buffer = recycled.try_recv().unwrap_or_default();
                let Some(read) = read_one(&mut stream, buffer).transpose() else { return };
                let failed = read.is_err();
                let left = offer(&sender, read, &scanner);
                if left.is_some_and(|left| sender.send(left).is_err()) || failed {
                    return;
                }
            }
        });
        Self::Thread { full, empty }
    }

    /// The next chunk; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> io::Result<Option<Chunk>> {
        match self {
            Self::Thread { full, .. } => full.recv().ok().transpose(),
            Self::Inline { stream, buffer } => {
                Ok(read_one(stream, std::mem::take(buffer))?.map(Chunk::Raw))
            }
        }
    }

    /// Returns a used buffer for reuse.
    pub(crate) fn recycle(&mut self, used: Chunk) {
        let used = match used {
            Chunk::Raw(bytes) => bytes,
            Chunk::Scanned(chunk) => chunk.into_bytes(),
        };
        match self {
            // The reader thread may have ended; then the buffer is dropped.
            Self::Thread { empty, .. } => drop(empty.send(used)),
            Self::Inline { buffer, .. } => *buffer = used,
        }
    }
}

/// Queues a chunk. If the queue is full, scans the chunk and returns it: scanning takes about as
/// long as the consumer needs to make room.
fn offer(
    sender: &SyncSender<io::Result<Chunk>>,
    read: io::Result<Vec<u8>>,
    scanner: &Scanner,
) -> Option<io::Result<Chunk>> {
    match sender.try_send(read.map(Chunk::Raw)) {
        Ok(()) => None,
        Err(TrySendError::Full(Ok(Chunk::Raw(bytes)))) => {
            Some(Ok(Chunk::Scanned(scanner.scan(bytes))))
        }
        // The caller notices a disconnected consumer when it sends again.
        Err(TrySendError::Full(other) | TrySendError::Disconnected(other)) => Some(other),
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
fn read_one(stream: &mut impl Read, mut buffer: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    buffer.resize(CHUNK, 0);
    loop {
        match stream.read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok((length > 0).then_some(buffer));
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => (),
            Err(err) => return Err(err),
        }
    }
}

#[cfg(test)]
mod tests {
    use farrier_facts::decode::Decoder;

    use super::*;
    use crate::fact_sets;

    fn both(stream: impl Fn() -> Box<dyn Read + Send>) -> [ReadAhead; 2] {
        let inline = ReadAhead::Inline { stream: stream(), buffer: Vec::new() };
        let scanner = Decoder::new(&fact_sets::active().xids).scanner();
        [ReadAhead::thread(stream(), scanner), inline]
    }

    #[test]
    fn a_chunk_is_scanned_if_the_queue_is_full() {
        let scanner = Decoder::new(&fact_sets::active().xids).scanner();
        let (sender, full) = sync_channel(1);
        assert!(offer(&sender, Ok(b"one\n".to_vec()), &scanner).is_none());
        let left = offer(&sender, Ok(b"two\n".to_vec()), &scanner).unwrap().unwrap();
        assert!(matches!(&left, Chunk::Scanned(chunk) if chunk.bytes() == b"two\n"));
        assert!(matches!(full.recv().unwrap(), Ok(Chunk::Raw(bytes)) if bytes == b"one\n"));
    }

    #[test]
    fn every_byte_arrives_once_and_in_order() {
        for length in [0, 1, CHUNK, CHUNK * 9 + 7] {
            let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            for mut ahead in both(|| Box::new(io::Cursor::new(bytes.clone()))) {
                let mut arrived = Vec::new();
                while let Some(chunk) = ahead.next().unwrap() {
                    arrived.extend_from_slice(chunk.bytes());
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
            assert_eq!(ahead.next().unwrap().unwrap().bytes(), b"x");
            assert!(ahead.next().is_err());
        }
    }
}
