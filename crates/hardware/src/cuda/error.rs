//! Why nothing was measured, and whether that says something of the GPU.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

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
    /// The machine, its software or somebody else stands in the way.
    #[error("failed to {what}: {said}")]
    Withheld {
        /// What was wanted.
        what: &'static str,
        /// Why it was not given.
        said: String,
    },
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

impl CudaError {
    /// Whether a GPU that cannot do the work is to blame. What is missing, too old, full or taken by somebody else says
    /// nothing of it.
    pub fn says_something_of_the_gpu(&self) -> bool {
        match self {
            Self::NoLibrary { .. }
            | Self::OldLibrary { .. }
            | Self::NoGpu { .. }
            | Self::NoSuchGpu { .. }
            | Self::OutOfMemory
            | Self::Withheld { .. } => false,
            Self::Refused { .. } | Self::Lost { .. } => true,
        }
    }

    /// A call of CUDA that failed.
    pub(super) fn of_driver(what: &'static str, err: DriverError) -> Self {
        match err.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::OutOfMemory,
            code if is_of_machine(code) => Self::Withheld { what, said: words(err) },
            _ => Self::Refused { what, said: words(err) },
        }
    }

    /// A call of cuBLASLt that failed.
    pub(super) fn of_blas(what: &'static str, status: i32) -> Self {
        let name = match status {
            1 => "NOT_INITIALIZED",
            3 => "ALLOC_FAILED",
            7 => "INVALID_VALUE",
            8 => "ARCH_MISMATCH",
            11 => "MAPPING_ERROR",
            13 => "EXECUTION_FAILED",
            14 => "INTERNAL_ERROR",
            15 => "NOT_SUPPORTED",
            _ => "a status that is not known",
        };
        let said = format!("cuBLASLt says {status}, {name}");
        // `cublasStatus_t`: the library has no start, no memory, nothing for this GPU or this driver.
        if matches!(status, 1 | 3 | 8 | 15) {
            Self::Withheld { what, said }
        } else {
            Self::Refused { what, said }
        }
    }
}

/// Codes of CUDA by which the driver, the machine or whoever else uses the GPU stands in the way.
fn is_of_machine(code: CUresult) -> bool {
    matches!(
        code,
        // A library that is none, of another version than the kernel's part, or not for this GPU.
        CUresult::CUDA_ERROR_STUB_LIBRARY
            | CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
            // The fabric manager does not run, or has not ended its work.
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            // Somebody has it for himself, or a licence is asked for.
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_DEVICE_NOT_LICENSED
            // Our kernels are not for it, or the driver cannot translate them.
            | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED
    )
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
        self.map_err(|err| CudaError::of_driver(what, err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages_and_unfit_software_say_nothing_of_the_gpu() {
        for status in [1, 3, 8, 15] {
            assert!(!CudaError::of_blas("multiply matrices", status).says_something_of_the_gpu());
        }
        let failed = CudaError::of_blas("multiply matrices", 13);
        assert!(failed.says_something_of_the_gpu());
        assert_eq!(
            failed.to_string(),
            "failed to multiply matrices: cuBLASLt says 13, EXECUTION_FAILED"
        );
        assert!(!CudaError::OutOfMemory.says_something_of_the_gpu());
        for code in [
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        ] {
            assert!(is_of_machine(code), "{code:?}");
        }
        for code in [
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(!is_of_machine(code), "{code:?}");
        }
    }
}
