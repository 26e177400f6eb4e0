//! Ensures that only one agent uses a directory: takes the lock, waits for it, and finds its
//! holder.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::JournalError;

/// How long to wait for the lock. A killed agent holds its lock until the kernel has ended the
/// agent's last thread, which takes moments.
pub(super) const WAIT: Duration = Duration::from_secs(2);

/// Retry interval.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The kernel's list of locks and their holders (`proc_locks(5)`).
const LOCKS: &str = "/proc/locks";

/// Takes the lock. If this is impossible within `wait`, reports the holder.
pub(super) fn acquire(lock: &File, dir: &Path, wait: Duration) -> Result<(), JournalError> {
    let start = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::WouldBlock) if start.elapsed() < wait => {
                thread::sleep(RETRY_INTERVAL);
            }
            Err(fs::TryLockError::WouldBlock) => {
                return Err(JournalError::InUse { dir: dir.to_owned(), pid: holder(lock) });
            }
            Err(fs::TryLockError::Error(err)) => {
                return Err(JournalError::StateDir { dir: dir.to_owned(), err });
            }
        }
    }
}

/// The process that holds the lock. `None` if the kernel's list of locks does not show the process.
fn holder(lock: &File) -> Option<u32> {
    let inode = lock.metadata().ok()?.ino();
    find_holder(inode, &fs::read_to_string(LOCKS).ok()?)
}

/// Finds the process in the only line about this inode, such as `1: FLOCK  ADVISORY  WRITE 22477
/// fe:00:6480019 0 EOF`. The device number is not compared, because btrfs reports different numbers
/// for a file and for its lock.
fn find_holder(inode: u64, locks: &str) -> Option<u32> {
    let mut holders = locks.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields[..] else { return None };
        let matches = file.rsplit(':').next()?.parse() == Ok(inode);
        matches.then(|| pid.parse::<u32>().ok()).flatten()
    });
    let holder = holders.next()?;
    holders.next().is_none().then_some(holder)
}

/// The text ` (pid 4711)`. Empty if the process is unknown.
pub(super) fn pid_suffix(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> File {
        fs::OpenOptions::new().create(true).append(true).open(dir.join("lock")).unwrap()
    }

    #[test]
    fn the_error_names_the_holder_of_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path());
        acquire(&first, folder.path(), Duration::ZERO).unwrap();
        let second = acquire(&open(folder.path()), folder.path(), Duration::ZERO).unwrap_err();
        let message = second.to_string();
        let expected =
            format!("another agent (pid {}) uses the state directory", std::process::id());
        assert!(message.starts_with(&expected), "{message}");
    }

    #[test]
    fn a_lock_is_awaited_while_its_holder_exits() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path());
        acquire(&first, folder.path(), Duration::ZERO).unwrap();
        let holder = thread::spawn(move || {
            thread::sleep(3 * RETRY_INTERVAL);
            drop(first);
        });
        acquire(&open(folder.path()), folder.path(), Duration::from_secs(300)).unwrap();
        holder.join().unwrap();
    }

    #[test]
    fn an_ambiguous_or_foreign_lock_has_no_holder() {
        let locks = "1: FLOCK  ADVISORY  WRITE 7 fe:00:40 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 8 fe:00:41 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 9 fe:00:41 0 EOF\n4: FLOCK  ADVISORY  WRITE 10 fe:00:42 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 11 fe:01:42 0 EOF\nnonsense\n";
        assert_eq!(find_holder(40, locks), Some(7));
        assert_eq!(find_holder(41, locks), None);
        assert_eq!(find_holder(42, locks), None);
    }
}
