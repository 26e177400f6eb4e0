//! A file in kmsg format that grows: the kernel log of a simulated node.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::KernelLog;
use super::cursor::Cursor;
use super::wait::FileWatch;

/// Polling interval if inotify is unavailable. A line must become a finding within 50 ms, and
/// polling may use 20 ms of that time.
const FILE_POLL: Duration = Duration::from_millis(20);
/// Polling interval with inotify. Polling is needed because some file systems do not report every
/// change.
const INOTIFY_POLL: Duration = Duration::from_secs(1);
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum length of a line. The kernel's own records have at most 8 KiB, so a longer line is not a
/// record.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Follows the file until `stop` is set or the file is replaced.
pub(super) fn follow(
    path: &Path,
    log: &File,
    cursor: &mut Cursor,
    stop: &AtomicBool,
    pulse: &dyn Fn(),
    sink: &mut dyn FnMut(KernelLog),
) -> io::Result<()> {
    let opened = log.metadata()?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut lines = Lines::default();
    let mut position = 0;
    let mut caught_up = false;
    let mut changes: Option<io::Result<FileWatch>> = None;
    cursor.rewind();
    while !stop.load(Ordering::Relaxed) {
        pulse();
        let length = match (&mut &*log).read(&mut chunk) {
            Ok(length) => length,
            Err(err) if err.kind() == ErrorKind::Interrupted => continue,
            Err(err) => return Err(err),
        };
        if length > 0 {
            position += length as u64;
            lines.push(&chunk[..length], |line| match line {
                Some(line) => cursor.deliver(line, sink),
                None => sink(KernelLog::Lost { lines: 1 }),
            });
            continue;
        }
        if !caught_up {
            caught_up = true;
            sink(KernelLog::CaughtUp);
        }
        let now = fs::metadata(path)?;
        if now.len() < position {
            // The file was truncated, and perhaps rewritten, so this is another log.
            cursor.reset();
            return Ok(());
        }
        if (now.dev(), now.ino()) != (opened.dev(), opened.ino()) {
            // The file was replaced by a file that is at least as long, so the new file is the same
            // log with more records.
            return Ok(());
        }
        if now.len() == position {
            match &changes {
                // The next iteration finds changes that were made before the watch started.
                None => changes = Some(FileWatch::watch(path)),
                Some(Ok(changes)) => drop(changes.wait(INOTIFY_POLL)?),
                Some(Err(_)) => std::thread::sleep(FILE_POLL),
            }
        }
    }
    Ok(())
}

/// Reads the current contents. Skips a last line without a newline, because it is incomplete.
pub(super) fn drain(log: &File, sink: &mut dyn FnMut(KernelLog)) -> io::Result<()> {
    let mut cursor = Cursor::after(None);
    let mut lines = Lines::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match (&mut &*log).read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => lines.push(&chunk[..length], |line| {
                if let Some(line) = line {
                    cursor.deliver(line, sink);
                }
            }),
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

/// Splits chunks into complete lines. A line without a newline waits for the next chunk.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    /// The current line is too long, and the rest of it is dropped.
    too_long: bool,
}

impl Lines {
    /// Emits each line that the chunk completes. `None` stands for a line that was too long.
    fn push(&mut self, chunk: &[u8], mut emit: impl FnMut(Option<&[u8]>)) {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if self.too_long || self.partial.len() + line.len() > LINE_BYTES_MAX {
                emit(None);
            } else if self.partial.is_empty() {
                emit(Some(line));
            } else {
                self.partial.extend_from_slice(line);
                emit(Some(&self.partial));
            }
            self.partial.clear();
            self.too_long = false;
        }
        if self.too_long || self.partial.len() + rest.len() > LINE_BYTES_MAX {
            self.too_long = true;
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::default();
        let mut emitted = Vec::new();
        for chunk in chunks {
            lines.push(chunk, |line| emitted.push(line.map(<[u8]>::to_vec)));
            assert!(lines.partial.len() <= LINE_BYTES_MAX);
        }
        emitted
    }

    #[test]
    fn overlong_line_is_dropped() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        let emitted = lines(&[b"a\n", &long, &long, b"x\nb\n", b"half"]);
        assert_eq!(emitted, [Some(b"a".to_vec()), None, Some(b"b".to_vec())]);
    }

    proptest! {
        #[test]
        fn lines_are_independent_of_chunking(text in "[ab\n]{0,60}", cut in 1..9_usize) {
            let whole = lines(&[text.as_bytes()]);
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            prop_assert_eq!(lines(&chunks), whole);
        }
    }
}
