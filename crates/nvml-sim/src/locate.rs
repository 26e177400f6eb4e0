//! Locates the node directory.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory of the node that this library serves.
pub(crate) fn node_directory() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os("FARRIER_SIM_NODE").filter(|value| !value.is_empty())
    {
        return Some(PathBuf::from(directory));
    }
    let library = own_path()?;
    // Resolve the loader's path, because it may be a symlink in another directory.
    let library = library.canonicalize().unwrap_or(library);
    library.parent().and_then(Path::parent).map(Path::to_owned)
}

/// The path from which the loader has loaded this library.
fn own_path() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let address = own_path as *const std::ffi::c_void;
    // SAFETY: `address` points into this library's code and `info` is valid for a write.
    let status = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    if status == 0 {
        return None;
    }
    // SAFETY: `info` was zeroed, which is a valid `Dl_info`, and then filled in by the loader.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a loaded object is NUL-terminated and outlives this call.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

pub(crate) fn is_root() -> bool {
    // SAFETY: `geteuid` takes no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
