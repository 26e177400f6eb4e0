//! Checks for CUDA's driver library. `cudarc` panics if the library or one of its functions is
//! missing, so no `cudarc` call may precede this check.

use std::ffi::c_void;

use cudarc::driver::sys;
use libloading::Library;

use super::error::CudaError;

/// Functions that the library must have, including the newest in use: `cuGraphUpload` came with
/// CUDA 11.1, `cuGraphInstantiateWithFlags` with 11.4.
const NEEDED: [&str; 3] = ["cuInit", "cuGraphUpload", "cuGraphInstantiateWithFlags"];

/// Loads the library, which stays loaded for later calls.
pub(super) fn ensure_present() -> Result<(), CudaError> {
    // SAFETY: loading runs the driver library's initialisers, as in every CUDA program.
    if !unsafe { sys::is_culib_present() } {
        // SAFETY: as above; opened again only for the loader's message.
        let why = unsafe { Library::new("libcuda.so.1") }
            .map_or_else(|err| reason(&err), |_| "not found in the search path".to_owned());
        return Err(CudaError::NoLibrary { why });
    }
    // SAFETY: the library was found just now and stays loaded until the process exits.
    let library = unsafe { sys::culib() };
    for call in NEEDED {
        // SAFETY: the symbol is only looked up, not called.
        if unsafe { library.get::<*const c_void>(call) }.is_err() {
            return Err(CudaError::OldLibrary { call });
        }
    }
    Ok(())
}

/// The loader's message, which `libloading` returns as the source of its error.
fn reason(err: &libloading::Error) -> String {
    std::error::Error::source(err).map_or_else(|| err.to_string(), ToString::to_string)
}
