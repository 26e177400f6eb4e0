//! Takes exclusive ownership of the state directory.
//!
//! An agent may run as root, and its directory may be below `/tmp`. If a user could replace a file
//! in the directory with a symlink, this user could choose which file the agent overwrites.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use super::{JournalError, is_disk_unwritable, lock};

/// Write permission for users other than owner and group.
const OTHERS_WRITE: u32 = 0o002;

/// Creates, checks and locks the directory. Waits up to `wait` for the lock. `None` if the disk is
/// full or read-only.
pub(super) fn acquire(dir: &Path, wait: Duration) -> Result<Option<File>, JournalError> {
    let failed = |err| JournalError::StateDir { dir: dir.to_owned(), err };
    match DirBuilder::new().recursive(true).mode(0o755).create(dir) {
        Err(err) if is_disk_unwritable(&err) => return Ok(None),
        created => created.map_err(failed)?,
    }
    // Check both the symlink and its target.
    for meta in [fs::symlink_metadata(dir), fs::metadata(dir)] {
        if let Some(why) = insecure_reason(&meta.map_err(failed)?, own_uid()) {
            return Err(JournalError::NotOwn { dir: dir.to_owned(), why });
        }
    }
    // The content of the lock file does not matter. The file is not truncated, because it may be a
    // symlink to another file.
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(dir.join("lock"));
    let lock = match lock {
        Err(err) if is_disk_unwritable(&err) => return Ok(None),
        lock => lock.map_err(failed)?,
    };
    lock::acquire(&lock, dir, wait)?;
    Ok(Some(lock))
}

/// Creates a file. Never writes through a symlink of the same name.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        _ => OpenOptions::new().write(true).create_new(true).open(path),
    }
}

/// Why another user could place files in the directory. `None` if the directory is safe.
fn insecure_reason(meta: &Metadata, own: Option<u32>) -> Option<String> {
    let owner = meta.uid();
    if owner != 0 && own.is_some_and(|own| own != owner) {
        return Some(format!("user {owner} owns it"));
    }
    let writable = meta.mode() & OTHERS_WRITE != 0 && !meta.is_symlink();
    writable.then(|| format!("every user may write to it (mode {:o})", meta.mode() & 0o7777))
}

/// The user who will own new files. `None` if the kernel does not report the user.
fn own_uid() -> Option<u32> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let ids = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // The fields are the real, effective, saved and file system user IDs.
    ids.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_own_or_can_write_to_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("state");
        drop(acquire(&dir, Duration::ZERO).unwrap());
        let mode = fs::metadata(&dir).unwrap().mode();
        assert_eq!(mode & 0o022, 0, "{mode:o}");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
        let err = acquire(&dir, Duration::ZERO).unwrap_err().to_string();
        assert!(
            err.ends_with("is not the agent's own: every user may write to it (mode 1777)"),
            "{err}"
        );
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        drop(acquire(&dir, Duration::ZERO).unwrap());
        // The agent's own symlink is as safe as the directory.
        let link = folder.path().join("link");
        symlink(&dir, &link).unwrap();
        drop(acquire(&link, Duration::ZERO).unwrap());
        let meta = fs::metadata(&dir).unwrap();
        assert_eq!(own_uid(), Some(meta.uid()));
        assert_eq!(insecure_reason(&meta, Some(meta.uid())), None);
        std::os::unix::fs::chown(&dir, Some(1234), None).map_or_else(
            |err| assert_eq!(err.kind(), io::ErrorKind::PermissionDenied),
            |()| {
                let err = acquire(&dir, Duration::ZERO).unwrap_err().to_string();
                assert!(err.ends_with("user 1234 owns it"), "{err}");
            },
        );
    }

    #[test]
    fn files_are_not_written_through_a_symlink() {
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        fs::write(&precious, "content").unwrap();
        let dir = folder.path().join("state");
        fs::create_dir(&dir).unwrap();
        for name in ["lock", "findings-000002.part"] {
            symlink(&precious, dir.join(name)).unwrap();
        }
        drop(acquire(&dir, Duration::ZERO).unwrap());
        drop(create(&dir.join("findings-000002.part")).unwrap());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "content");
    }
}
