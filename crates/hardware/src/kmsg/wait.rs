//! Waiting for data without busy polling.

use std::ffi::CString;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Waits up to a limit until there is something to read.
pub(super) fn readable(from: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let most_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one valid pollfd that outlives the call, and the count is 1; the
    // descriptor is open while borrowed.
    let result = unsafe { libc::poll(&raw mut poll, 1, most_ms) };
    if result < 0 {
        let err = io::Error::last_os_error();
        if err.kind() != ErrorKind::Interrupted {
            return Err(err);
        }
    }
    Ok(())
}

/// Watches a file for being written, truncated, replaced or removed (Linux `inotify(7)`).
pub(super) struct FileWatch {
    queue: std::fs::File,
}

impl FileWatch {
    /// Watches the file that is now at a path. A replaced file is unlinked, which inotify reports
    /// as an attribute change.
    pub(super) fn watch(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the call takes no pointer.
        let descriptor = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let queue = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let kinds = libc::IN_MODIFY | libc::IN_ATTRIB | libc::IN_MOVE_SELF | libc::IN_DELETE_SELF;
        // SAFETY: the descriptor is open, and the path is a NUL-terminated string that outlives the
        // call.
        if unsafe { libc::inotify_add_watch(queue.as_raw_fd(), path.as_ptr(), kinds) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { queue: queue.into() })
    }

    /// Waits up to a limit for a change since the last call. Returns whether there was a change.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<bool> {
        readable(self.queue.as_fd(), limit)?;
        // The kind of change does not matter. A watch on a file delivers no names, so events are
        // small.
        let mut events = [0; 4096];
        let mut any = false;
        loop {
            match (&self.queue).read(&mut events) {
                Ok(0) => return Ok(any),
                Ok(_) => any = true,
                Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    #[test]
    fn every_change_of_a_file_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        fs::write(&path, "one\n").unwrap();
        // Keep the file open like the reader does, so that it still exists after it is replaced.
        let _log = fs::File::open(&path).unwrap();
        let changes = FileWatch::watch(&path).unwrap();
        assert!(!changes.wait(Duration::ZERO).unwrap());
        let long = Duration::from_secs(60);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"two\n").unwrap();
        assert!(changes.wait(long).unwrap());
        assert!(!changes.wait(Duration::ZERO).unwrap(), "each change is reported once");
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert!(changes.wait(long).unwrap());
        fs::write(dir.path().join("next"), "three\n").unwrap();
        assert!(!changes.wait(Duration::ZERO).unwrap(), "other files are not watched");
        fs::rename(dir.path().join("next"), &path).unwrap();
        assert!(changes.wait(long).unwrap());
        assert!(FileWatch::watch(&dir.path().join("nothing")).is_err());
    }
}
