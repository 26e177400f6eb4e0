//! Who may have written what revert goes by: a journal that somebody else can plant is a way to root.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Others may make entries there, and none of them may take away another's.
const STICKY: u32 = 0o1000;

/// A folder and those on the way to it, as far as they are there: each is ours or root's, and nobody else can change what
/// is in it.
pub(super) fn folder(folder: &Path) -> io::Result<()> {
    let given = std::path::absolute(folder)?;
    let mut ways: Vec<PathBuf> = given.ancestors().map(Path::to_owned).collect();
    // A link on the way is whose it is, and leads to folders that count as well.
    if let Some(there) = given.ancestors().find(|it| it.exists()) {
        ways.extend(there.canonicalize()?.ancestors().map(Path::to_owned));
    }
    for way in ways {
        match fs::symlink_metadata(&way) {
            Ok(meta) if meta.is_symlink() => owner(&way, &meta)?,
            Ok(meta) => closed(&way, &meta, STICKY)?,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Opens a file that is no link, ours or root's, and that nobody else can write.
pub(super) fn open(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    let file = how.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(refused(path, "is no file"));
    }
    closed(path, &meta, 0)?;
    Ok(file)
}

fn closed(path: &Path, meta: &Metadata, unless: u32) -> io::Result<()> {
    owner(path, meta)?;
    // SAFETY: it has no arguments, changes nothing and cannot fail.
    let own_group = unsafe { libc::getegid() };
    let others = if meta.gid() == own_group { 0o002 } else { 0o022 };
    if meta.mode() & others != 0 && (unless == 0 || meta.mode() & unless == 0) {
        return Err(refused(path, "can be written by others"));
    }
    Ok(())
}

fn owner(path: &Path, meta: &Metadata) -> io::Result<()> {
    // SAFETY: it has no arguments, changes nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    if meta.uid() == own || meta.uid() == 0 {
        return Ok(());
    }
    Err(refused(path, &format!("belongs to user {}", meta.uid())))
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::other(Untrusted(format!("`{}` {why}: it is not trusted", path.display())))
}

/// Why something is not gone by.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Untrusted(String);

/// Whether an error is that somebody else may have written it.
pub(super) fn is_untrusted(err: &io::Error) -> bool {
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
    fn what_others_can_write_is_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let way = place.path().join("way");
        let state = way.join("state");
        folder(&state).unwrap();
        fs::create_dir_all(&state).unwrap();
        folder(&state).unwrap();
        mode(&way, 0o777);
        assert!(is_untrusted(&folder(&state).unwrap_err()));
        // As /tmp is.
        mode(&way, 0o1777);
        folder(&state).unwrap();
        mode(&state, 0o757);
        assert!(folder(&state).unwrap_err().to_string().contains("can be written by others"));
        mode(&state, 0o755);
        let path = state.join("file");
        fs::write(&path, "x").unwrap();
        mode(&path, 0o600);
        read(&path).unwrap();
        mode(&path, 0o602);
        assert!(is_untrusted(&read(&path).unwrap_err()));
        symlink(&path, state.join("link")).unwrap();
        assert!(is_untrusted(&read(&state.join("link")).unwrap_err()));
        assert!(read(&state).unwrap_err().to_string().contains("is no file"));
        assert_eq!(read(&state.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_link_on_the_way_leads_to_a_folder_that_counts() {
        let place = tempfile::tempdir().unwrap();
        let open = place.path().join("open");
        fs::create_dir_all(open.join("tune")).unwrap();
        symlink(&open, place.path().join("link")).unwrap();
        folder(&place.path().join("link/tune")).unwrap();
        mode(&open, 0o777);
        assert!(is_untrusted(&folder(&place.path().join("link/tune")).unwrap_err()));
    }

    #[test]
    fn what_belongs_to_another_is_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, "x").unwrap();
        // Only root can give a file away.
        if chown(&path, Some(65_534), None).is_ok() {
            assert!(read(&path).unwrap_err().to_string().contains("belongs to user 65534"));
            chown(place.path(), Some(65_534), None).unwrap();
            assert!(is_untrusted(&folder(place.path()).unwrap_err()));
        }
    }
}
