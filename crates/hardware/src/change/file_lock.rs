//! Record locks of files, with which package managers keep each other away.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A lock on a whole file, which programs that are started with it keep until the last of them ends
/// ([`super::programs::Programs::holding`]). It conflicts with the POSIX locks of rpm.
#[derive(Debug)]
pub(super) struct FileLock(File);

impl FileLock {
    /// Takes the lock. `None` if another program has it.
    pub(super) fn acquire(path: &Path) -> io::Result<Option<Self>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let lock = whole_file();
        // SAFETY: the descriptor is open, and `lock` is valid for the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
            return Ok(Some(Self(file)));
        }
        let err = io::Error::last_os_error();
        match err.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(None),
            _ => Err(err),
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.0
    }
}

/// Whether no process holds a lock on a file. A file that does not exist is not locked.
#[expect(
    clippy::cast_possible_truncation,
    reason = "libc has the small constants of `flock` as `int`"
)]
pub(super) fn is_unlocked(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(err) => return Err(err),
    };
    let mut lock = whole_file();
    // SAFETY: the descriptor is open, and `lock` is valid for the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type == libc::F_UNLCK as libc::c_short)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "libc has the small constants of `flock` as `int`"
)]
fn whole_file() -> libc::flock {
    // SAFETY: `flock` is plain data, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_and_excludes_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert!(is_unlocked(&path).unwrap(), "no file");
        let lock = FileLock::acquire(&path).unwrap().unwrap();
        assert!(!is_unlocked(&path).unwrap());
        assert!(FileLock::acquire(&path).unwrap().is_none());
        drop(lock);
        assert!(is_unlocked(&path).unwrap());
        assert!(FileLock::acquire(&path).unwrap().is_some());
    }
}
