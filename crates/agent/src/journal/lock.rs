//! One agent per directory: the lock, its holder, and the wait for it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::JournalError;

/// A killed agent holds its lock until the kernel has ended its last thread, which takes moments.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Retry interval.
const AGAIN: Duration = Duration::from_millis(20);

/// The kernel's list of locks and their holders (`proc_locks(5)`).
const LOCKS: &str = "/proc/locks";

/// Takes the lock, or reports its holder after `patience`.
pub(super) fn hold(lock: &File, dir: &Path, patience: Duration) -> Result<(), JournalError> {
    let start = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::WouldBlock) if start.elapsed() < patience => thread::sleep(AGAIN),
            Err(fs::TryLockError::WouldBlock) => {
                return Err(JournalError::InUse { dir: dir.to_owned(), pid: holder(lock) });
            }
            Err(fs::TryLockError::Error(err)) => {
                return Err(JournalError::Folder { dir: dir.to_owned(), err });
            }
        }
    }
}

/// The process that holds the lock. `None` if it is not visible from here.
fn holder(lock: &File) -> Option<u32> {
    let inode = lock.metadata().ok()?.ino();
    holder_of(inode, &fs::read_to_string(LOCKS).ok()?)
}

/// Finds the only line of this inode, such as
/// `1: FLOCK  ADVISORY  WRITE 22477 fe:00:6480019 0 EOF`. Does not compare the device: btrfs
/// reports different ones for files and locks.
fn holder_of(inode: u64, locks: &str) -> Option<u32> {
    let mut holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, place, ..] = words[..] else { return None };
        let ours = place.rsplit(':').next()?.parse() == Ok(inode);
        ours.then(|| pid.parse::<u32>().ok()).flatten()
    });
    let holder = holders.next()?;
    holders.next().is_none().then_some(holder)
}

/// ` (pid 4711)`, or empty if unknown.
pub(super) fn named(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> File {
        fs::OpenOptions::new().create(true).append(true).open(dir.join("lock")).unwrap()
    }

    #[test]
    fn who_holds_the_lock_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path());
        hold(&first, folder.path(), Duration::ZERO).unwrap();
        let second = hold(&open(folder.path()), folder.path(), Duration::ZERO).unwrap_err();
        let said = second.to_string();
        let whom = format!("another agent (pid {}) uses the state folder", std::process::id());
        assert!(said.starts_with(&whom), "{said}");
    }

    #[test]
    fn an_agent_that_is_going_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path());
        hold(&first, folder.path(), Duration::ZERO).unwrap();
        let going = thread::spawn(move || {
            thread::sleep(3 * AGAIN);
            drop(first);
        });
        hold(&open(folder.path()), folder.path(), Duration::from_secs(300)).unwrap();
        going.join().unwrap();
    }

    #[test]
    fn of_other_locks_and_of_two_that_may_be_it_nobody_is_named() {
        let locks = "1: FLOCK  ADVISORY  WRITE 7 fe:00:40 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 8 fe:00:41 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 9 fe:00:41 0 EOF\n4: FLOCK  ADVISORY  WRITE 10 fe:00:42 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE 11 fe:01:42 0 EOF\nnonsense\n";
        assert_eq!(holder_of(40, locks), Some(7));
        assert_eq!(holder_of(41, locks), None);
        assert_eq!(holder_of(42, locks), None);
    }
}
