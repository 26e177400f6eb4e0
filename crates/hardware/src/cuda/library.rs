//! Whether CUDA's driver library is there. `cudarc` panics where it or one of its calls is missing, so it is asked
//! for nothing before this has said yes.

use std::ffi::c_void;

use cudarc::driver::sys;
use libloading::Library;

use super::error::CudaError;

/// The newest of the calls that are made: `cuGraphUpload` came with CUDA 11.1, the other with 11.4.
const NEEDED: [&str; 3] = ["cuInit", "cuGraphUpload", "cuGraphInstantiateWithFlags"];

/// Loads the library, as every later call does.
pub(super) fn present() -> Result<(), CudaError> {
    // SAFETY: the driver's library has initialisers that every CUDA program runs.
    if !unsafe { sys::is_culib_present() } {
        // SAFETY: as above; it is opened once more for the loader's words.
        let why = unsafe { Library::new("libcuda.so.1") }
            .map_or_else(|err| reason(&err), |_| "it is not where it is looked for".to_owned());
        return Err(CudaError::NoLibrary { why });
    }
    // SAFETY: it was found a moment ago; what is loaded stays so until the end.
    let library = unsafe { sys::culib() };
    for call in NEEDED {
        // SAFETY: the address is not called, only asked for.
        if unsafe { library.get::<*const c_void>(call) }.is_err() {
            return Err(CudaError::OldLibrary { call });
        }
    }
    Ok(())
}

/// The loader's own words stand behind those of the crate.
fn reason(err: &libloading::Error) -> String {
    std::error::Error::source(err).map_or_else(|| err.to_string(), ToString::to_string)
}
