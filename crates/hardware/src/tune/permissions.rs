//! Ownership and permission checks for files that revert acts on. Without these checks, another
//! user could write a journal, and a revert by root would change files as that journal says.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The sticky bit. With it, users may create entries but not replace those of other users.
const STICKY: u32 = 0o1000;

/// Checks a directory and its existing ancestors. Each must belong to this user or root, and no one
/// else may write to it.
pub(crate) fn check_directory(dir: &Path) -> io::Result<()> {
    let absolute = std::path::absolute(dir)?;
    let mut paths: Vec<PathBuf> = absolute.ancestors().map(Path::to_owned).collect();
    // Check the owners of symlinks on the path, and also the directories that they lead to.
    if let Some(there) = absolute.ancestors().find(|ancestor| ancestor.exists()) {
        paths.extend(there.canonicalize()?.ancestors().map(Path::to_owned));
    }
    for path in paths {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() => check_owner(&path, &meta)?,
            Ok(meta) => check_not_writable(&path, &meta, STICKY)?,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Opens a regular file, not a symlink, that belongs to this user or root and that no one else can
/// write.
pub(crate) fn open(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    let file = how.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(untrusted(path, "is not a regular file"));
    }
    check_not_writable(path, &meta, 0)?;
    Ok(file)
}

fn check_not_writable(path: &Path, meta: &Metadata, unless: u32) -> io::Result<()> {
    check_owner(path, meta)?;
    // SAFETY: the call takes no arguments, has no side effects and cannot fail.
    let own_group = unsafe { libc::getegid() };
    let others = if meta.gid() == own_group { 0o002 } else { 0o022 };
    if meta.mode() & others != 0 && (unless == 0 || meta.mode() & unless == 0) {
        return Err(untrusted(path, "is writable by other users"));
    }
    Ok(())
}

fn check_owner(path: &Path, meta: &Metadata) -> io::Result<()> {
    // SAFETY: the call takes no arguments, has no side effects and cannot fail.
    let own = unsafe { libc::geteuid() };
    if meta.uid() == own || meta.uid() == 0 {
        return Ok(());
    }
    Err(untrusted(path, &format!("belongs to user {}", meta.uid())))
}

fn untrusted(path: &Path, why: &str) -> io::Error {
    io::Error::other(Untrusted(format!("`{}` {why} and is not trusted", path.display())))
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Untrusted(String);

/// Whether the error means that another user may have written the file.
pub(crate) fn is_untrusted(err: &io::Error) -> bool {
    matches!(err.get_ref(), Some(err) if err.is::<Untrusted>())
        || err.raw_os_error() == Some(libc::ELOOP)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn read(path: &Path) -> io::Result<File> {
        open(path, OpenOptions::new().read(true))
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_writable_by_others_are_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let parent = place.path().join("way");
        let state = parent.join("state");
        check_directory(&state).unwrap();
        fs::create_dir_all(&state).unwrap();
        check_directory(&state).unwrap();
        mode(&parent, 0o777);
        assert!(is_untrusted(&check_directory(&state).unwrap_err()));
        // This mode is the mode of `/tmp`.
        mode(&parent, 0o1777);
        check_directory(&state).unwrap();
        mode(&state, 0o757);
        assert!(
            check_directory(&state).unwrap_err().to_string().contains("is writable by other users")
        );
        mode(&state, 0o755);
        let path = state.join("file");
        fs::write(&path, "x").unwrap();
        mode(&path, 0o600);
        read(&path).unwrap();
        mode(&path, 0o602);
        assert!(is_untrusted(&read(&path).unwrap_err()));
        symlink(&path, state.join("link")).unwrap();
        assert!(is_untrusted(&read(&state.join("link")).unwrap_err()));
        assert!(read(&state).unwrap_err().to_string().contains("is not a regular file"));
        assert_eq!(read(&state.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn symlink_targets_on_the_path_are_checked() {
        let place = tempfile::tempdir().unwrap();
        let open = place.path().join("open");
        fs::create_dir_all(open.join("tune")).unwrap();
        symlink(&open, place.path().join("link")).unwrap();
        check_directory(&place.path().join("link/tune")).unwrap();
        mode(&open, 0o777);
        assert!(is_untrusted(&check_directory(&place.path().join("link/tune")).unwrap_err()));
    }

    #[test]
    fn files_of_other_users_are_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, "x").unwrap();
        // Only root can change a file's owner.
        if chown(&path, Some(65_534), None).is_ok() {
            assert!(read(&path).unwrap_err().to_string().contains("belongs to user 65534"));
            chown(place.path(), Some(65_534), None).unwrap();
            assert!(is_untrusted(&check_directory(place.path()).unwrap_err()));
        }
    }
}
