//! What this process may do with a file, without doing it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether this process may write to a file, or make files in a folder.
pub fn may_write(path: &Path) -> bool {
    let enter = if path.is_dir() { libc::X_OK } else { 0 };
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` ends in a nought and lives until the call returns, which keeps nothing of it.
    let answer = unsafe {
        libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | enter, libc::AT_EACCESS)
    };
    answer == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_cannot_be_written() {
        assert!(may_write(&std::env::temp_dir()));
        assert!(!may_write(Path::new("/nonexistent/file")));
    }
}
