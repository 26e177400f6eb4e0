//! Why nothing was measured.

use cudarc::driver::DriverError;

/// Why the GPU could not be given work.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no driver, or a container without it.
    #[error("CUDA's driver library `libcuda.so.1` cannot be loaded: {why}")]
    NoLibrary {
        /// What the loader says.
        why: String,
    },
    /// The library lacks a call that is made.
    #[error("CUDA's driver library has no `{call}`: it is older than CUDA 11.4")]
    OldLibrary {
        /// The call.
        call: &'static str,
    },
    /// CUDA says that there is nothing.
    #[error("CUDA sees no GPU: {said}")]
    NoGpu {
        /// Its words.
        said: String,
    },
    /// There are GPUs, but not that one.
    #[error("there is no GPU {index}: CUDA sees {count}")]
    NoSuchGpu {
        /// The one that was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Others hold the memory, or more was asked for than there is.
    #[error("the GPU has not that much free memory")]
    OutOfMemory,
    /// A call failed.
    #[error("failed to {what}: {said}")]
    Refused {
        /// What was wanted.
        what: &'static str,
        /// CUDA's words.
        said: String,
    },
    /// The GPU did not do what it was given.
    #[error("the kernel ran {ran} times and was launched {launched} times: the times mean nothing")]
    Lost {
        /// As the kernel counted.
        ran: u32,
        /// As we did.
        launched: u32,
    },
}

/// CUDA's own name and words for an error.
pub(super) fn words(err: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map(|text| text.to_string_lossy().into_owned()).ok()
    };
    match (text(err.error_name()), text(err.error_string())) {
        (Some(name), Some(said)) => format!("{name}, {said}"),
        (Some(name), None) => name,
        _ => format!("error {}", err.0 as u32),
    }
}

/// Says for which purpose a call was made.
pub(super) trait Purpose<T> {
    fn to(self, what: &'static str) -> Result<T, CudaError>;
}

impl<T> Purpose<T> for Result<T, DriverError> {
    fn to(self, what: &'static str) -> Result<T, CudaError> {
        self.map_err(|err| CudaError::Refused { what, said: words(err) })
    }
}
