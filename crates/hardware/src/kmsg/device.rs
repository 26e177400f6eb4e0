//! `/dev/kmsg`: one read returns one record.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cursor::Cursor;
use super::wait::readable;
use super::{KernelLog, STOP_POLL};

/// Initial size of the read buffer. A record with its keys has at most 8 KiB in any kernel so far
/// (`CONSOLE_EXT_LOG_MAX`, `PRINTK_MESSAGE_MAX`).
const RECORD_BYTES: usize = 16 << 10;
/// Maximum size of the read buffer. It is larger than the ring buffer of most nodes, so no record
/// is longer.
const RECORD_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// There may be more records.
    More,
    /// There are no more records for now.
    Empty,
}

pub(super) fn follow(
    log: &File,
    cursor: &mut Cursor,
    stop: &AtomicBool,
    pulse: &dyn Fn(),
    sink: &mut dyn FnMut(KernelLog),
) -> io::Result<()> {
    // A new descriptor starts at the first record of the ring buffer.
    cursor.rewind();
    let mut buffer = vec![0; RECORD_BYTES];
    let mut caught_up = false;
    while !stop.load(Ordering::Relaxed) {
        pulse();
        match step(&mut &*log, &mut buffer, cursor, sink)? {
            Step::More => {}
            Step::Empty => {
                if !caught_up {
                    caught_up = true;
                    sink(KernelLog::CaughtUp);
                }
                readable(log.as_fd(), STOP_POLL)?;
            }
        }
    }
    Ok(())
}

/// Reads the current contents.
pub(super) fn drain(log: &File, sink: &mut dyn FnMut(KernelLog)) -> io::Result<()> {
    let mut cursor = Cursor::after(None);
    let mut buffer = vec![0; RECORD_BYTES];
    while step(&mut &*log, &mut buffer, &mut cursor, sink)? == Step::More {}
    Ok(())
}

/// Reads one record.
fn step(
    log: &mut impl Read,
    buffer: &mut Vec<u8>,
    cursor: &mut Cursor,
    sink: &mut dyn FnMut(KernelLog),
) -> io::Result<Step> {
    match log.read(buffer) {
        // The kernel log device never reports end-of-file, so this is another file.
        Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "unexpected end of the kernel log")),
        Ok(length) => {
            cursor.deliver(&buffer[..length], sink);
            Ok(Step::More)
        }
        Err(err) => match (err.kind(), err.raw_os_error()) {
            (ErrorKind::WouldBlock, _) => Ok(Step::Empty),
            // The record at the read position was overwritten. The kernel moved on to the oldest
            // remaining record, whose sequence number tells how many are missing.
            (ErrorKind::Interrupted, _) | (_, Some(libc::EPIPE)) => Ok(Step::More),
            // The record is larger than the buffer. The kernel moved on to the next record, so this
            // record counts as lost.
            (_, Some(libc::EINVAL)) if buffer.len() < RECORD_BYTES_MAX => {
                buffer.resize(buffer.len() * 2, 0);
                Ok(Step::More)
            }
            _ => Err(err),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Returns the results of reads as the device does.
    struct Script(VecDeque<Result<&'static str, i32>>);

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front() {
                None => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                Some(Err(code)) => Err(io::Error::from_raw_os_error(code)),
                Some(Ok(text)) if text.len() > buffer.len() => {
                    Err(io::Error::from_raw_os_error(libc::EINVAL))
                }
                Some(Ok(text)) => {
                    buffer[..text.len()].copy_from_slice(text.as_bytes());
                    Ok(text.len())
                }
            }
        }
    }

    fn read(
        after: Option<u64>,
        buffer: usize,
        script: &[Result<&'static str, i32>],
    ) -> Vec<KernelLog> {
        let mut script = Script(script.iter().copied().collect());
        let mut cursor = Cursor::after(after);
        cursor.rewind();
        let mut events = Vec::new();
        let mut buffer = vec![0; buffer];
        while step(&mut script, &mut buffer, &mut cursor, &mut |log| events.push(log)).unwrap()
            == Step::More
        {}
        events
    }

    fn record(seq: u64, text: &str) -> KernelLog {
        KernelLog::Record { seq, since_boot_us: 7, level: 6, text: text.as_bytes().to_vec() }
    }

    #[test]
    fn overrun_and_gap_count_as_lost() {
        let events = read(
            None,
            64,
            &[Ok("6,5,7,-;a\n"), Ok("6,6,7,-;b\n KEY=x\n"), Err(libc::EPIPE), Ok("6,106,7,-;c\n")],
        );
        assert_eq!(
            events,
            [record(5, "a"), record(6, "b"), KernelLog::Lost { lines: 99 }, record(106, "c")]
        );
    }

    #[test]
    fn oversized_record_is_lost_and_the_next_is_read() {
        let long = "6,2,7,-;more than the buffer of this test can hold\n";
        let events = read(None, 32, &[Ok("6,1,7,-;a\n"), Ok(long), Ok("6,3,7,-;b\n")]);
        assert_eq!(events, [record(1, "a"), KernelLog::Lost { lines: 1 }, record(3, "b")]);
    }

    #[test]
    fn records_from_before_a_restart_are_skipped() {
        let lines = [Ok("6,4,7,-;a\n"), Ok("6,5,7,-;b\n"), Ok("6,6,7,-;c\n")];
        assert_eq!(read(Some(5), 64, &lines), [record(6, "c")]);
        assert_eq!(read(Some(1), 64, &lines[2..]), [KernelLog::Lost { lines: 4 }, record(6, "c")]);
    }

    #[test]
    fn device_failure_is_an_error() {
        let mut buffer = vec![0; 64];
        let mut cursor = Cursor::after(None);
        for answer in [Err(libc::EIO), Ok("")] {
            let mut script = Script([answer].into());
            assert!(step(&mut script, &mut buffer, &mut cursor, &mut |_| ()).is_err());
        }
    }
}
