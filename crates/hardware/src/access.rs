//! Permission checks without side effects.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether this process may write to a file, or create files in a directory.
pub fn may_write(path: &Path) -> bool {
    let enter = if path.is_dir() { libc::X_OK } else { 0 };
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` is NUL-terminated and outlives the call.
    let result = unsafe {
        libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | enter, libc::AT_EACCESS)
    };
    result == 0
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    // SAFETY: the call takes no arguments, has no side effects and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_path_is_not_writable() {
        assert!(may_write(&std::env::temp_dir()));
        assert!(!may_write(Path::new("/nonexistent/file")));
    }
}
