//! Where this library lies.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory of the node that this library answers for.
pub(crate) fn node_directory() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("FARRIER_SIM_NODE").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(given));
    }
    let library = own_path()?;
    // The name may be a link from elsewhere; the folder that counts is the file's own.
    let library = library.canonicalize().unwrap_or(library);
    library.parent().and_then(Path::parent).map(Path::to_owned)
}

/// The path that the loader has for us.
fn own_path() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let address = own_path as *const std::ffi::c_void;
    // SAFETY: `address` is of this library's code and `info` is valid for a write.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: it was zeroed, which is a valid `Dl_info`, and the loader filled it in.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own name of a loaded object: ended, and valid while we are loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Whether the process is root's.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing, touches nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}
