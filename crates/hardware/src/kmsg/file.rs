//! An appended file in kmsg format: the kernel log of a simulated node.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::KernelLog;
use super::cursor::Cursor;
use super::wait::Changes;

/// Polling interval if inotify is unavailable. A line must reach a finding within 50 ms, and this
/// is the largest part.
const LOOK: Duration = Duration::from_millis(20);
/// Polling interval with inotify: some file systems do not report every change.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);
const CHUNK_BYTES: usize = 64 << 10;
/// The kernel's own records have at most 8 KiB; a longer line is not a record.
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
    let mut place = 0;
    let mut caught_up = false;
    let mut changes: Option<io::Result<Changes>> = None;
    cursor.rewind();
    while !stop.load(Ordering::Relaxed) {
        pulse();
        let length = match (&mut &*log).read(&mut chunk) {
            Ok(length) => length,
            Err(err) if err.kind() == ErrorKind::Interrupted => continue,
            Err(err) => return Err(err),
        };
        if length > 0 {
            place += length as u64;
            lines.take(&chunk[..length], |line| match line {
                Some(line) => cursor.give(line, sink),
                None => sink(KernelLog::Lost { lines: 1 }),
            });
            continue;
        }
        if !caught_up {
            caught_up = true;
            sink(KernelLog::CaughtUp);
        }
        let now = fs::metadata(path)?;
        if now.len() < place {
            // Truncated and perhaps rewritten: a different log.
            cursor.forget();
            return Ok(());
        }
        if (now.dev(), now.ino()) != (opened.dev(), opened.ino()) {
            // Replaced by a file at least as long: the same log with more records.
            return Ok(());
        }
        if now.len() == place {
            match &changes {
                // Changes from before the watch show up in the next iteration.
                None => changes = Some(Changes::of(path)),
                Some(Ok(changes)) => drop(changes.wait(LOOK_ANYWAY)?),
                Some(Err(_)) => std::thread::sleep(LOOK),
            }
        }
    }
    Ok(())
}

/// Reads the current contents; an unterminated last line is incomplete and skipped.
pub(super) fn drain(log: &File, sink: &mut dyn FnMut(KernelLog)) -> io::Result<()> {
    let mut cursor = Cursor::after(None);
    let mut lines = Lines::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match (&mut &*log).read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => lines.take(&chunk[..length], |line| {
                if let Some(line) = line {
                    cursor.give(line, sink);
                }
            }),
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

/// Splits chunks into complete lines. The last one waits for its newline.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    /// The current line is too long and is dropped up to its end.
    too_long: bool,
}

impl Lines {
    /// Emits each line completed by the chunk; `None` for one that was too long.
    fn take(&mut self, chunk: &[u8], mut give: impl FnMut(Option<&[u8]>)) {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if self.too_long || self.begun.len() + line.len() > LINE_BYTES_MAX {
                give(None);
            } else if self.begun.is_empty() {
                give(Some(line));
            } else {
                self.begun.extend_from_slice(line);
                give(Some(&self.begun));
            }
            self.begun.clear();
            self.too_long = false;
        }
        if self.too_long || self.begun.len() + rest.len() > LINE_BYTES_MAX {
            self.too_long = true;
            self.begun.clear();
        } else {
            self.begun.extend_from_slice(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::default();
        let mut given = Vec::new();
        for chunk in chunks {
            lines.take(chunk, |line| given.push(line.map(<[u8]>::to_vec)));
            assert!(lines.begun.len() <= LINE_BYTES_MAX);
        }
        given
    }

    #[test]
    fn overlong_line_is_dropped() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        let given = lines(&[b"a\n", &long, &long, b"x\nb\n", b"half"]);
        assert_eq!(given, [Some(b"a".to_vec()), None, Some(b"b".to_vec())]);
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
