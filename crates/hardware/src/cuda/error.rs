//! CUDA errors, and whether they implicate the GPU.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// Why an operation on the GPU failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver is installed, or the container lacks it.
    #[error("failed to load CUDA's driver library `libcuda.so.1`: {why}")]
    NoLibrary {
        /// The loader's message.
        why: String,
    },
    /// The library lacks a required function.
    #[error("CUDA's driver library has no `{call}`: it is older than CUDA 11.4")]
    OldLibrary { call: &'static str },
    #[error("CUDA finds no GPU: {detail}")]
    NoGpu {
        /// CUDA's message.
        detail: String,
    },
    #[error("no GPU {index}: CUDA finds {count}")]
    NoSuchGpu { index: usize, count: usize },
    /// Other processes use the memory, or the request is larger than the GPU's memory.
    #[error("not enough free GPU memory")]
    OutOfMemory,
    /// The machine, its software or another process prevents the operation.
    #[error("failed to {what}: {detail}")]
    Unavailable {
        /// The attempted operation.
        what: &'static str,
        detail: String,
    },
    #[error("failed to {what}: {detail}")]
    CallFailed {
        /// The attempted operation.
        what: &'static str,
        /// CUDA's message.
        detail: String,
    },
    /// The GPU did not run every launch.
    #[error(
        "the kernel ran {ran} times but was launched {launched} times: the measurement is invalid"
    )]
    LaunchCountMismatch {
        /// The kernel's own count.
        ran: u32,
        launched: u32,
    },
}

impl CudaError {
    /// Whether the error implicates the GPU. Missing, outdated or exhausted resources do not.
    pub fn implicates_gpu(&self) -> bool {
        match self {
            Self::NoLibrary { .. }
            | Self::OldLibrary { .. }
            | Self::NoGpu { .. }
            | Self::NoSuchGpu { .. }
            | Self::OutOfMemory
            | Self::Unavailable { .. } => false,
            Self::CallFailed { .. } | Self::LaunchCountMismatch { .. } => true,
        }
    }

    /// A failed CUDA call.
    pub(super) fn from_driver(what: &'static str, err: DriverError) -> Self {
        match err.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::OutOfMemory,
            code if is_caused_by_machine(code) => {
                Self::Unavailable { what, detail: error_text(err) }
            }
            _ => Self::CallFailed { what, detail: error_text(err) },
        }
    }

    /// A failed cuBLASLt call.
    pub(super) fn from_blas(what: &'static str, status: i32) -> Self {
        let name = match status {
            1 => "NOT_INITIALIZED",
            3 => "ALLOC_FAILED",
            7 => "INVALID_VALUE",
            8 => "ARCH_MISMATCH",
            11 => "MAPPING_ERROR",
            13 => "EXECUTION_FAILED",
            14 => "INTERNAL_ERROR",
            15 => "NOT_SUPPORTED",
            _ => "unknown status",
        };
        let detail = format!("cuBLASLt returned {status}, {name}");
        // `cublasStatus_t`: not initialised, out of memory, or no support for this GPU or driver.
        if matches!(status, 1 | 3 | 8 | 15) {
            Self::Unavailable { what, detail }
        } else {
            Self::CallFailed { what, detail }
        }
    }
}

/// CUDA codes caused by the driver, the machine or another user of the GPU.
fn is_caused_by_machine(code: CUresult) -> bool {
    matches!(
        code,
        // The library is a stub, does not match the kernel module, or does not support this GPU.
        CUresult::CUDA_ERROR_STUB_LIBRARY
            | CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
            // The fabric manager is not running, or has not finished.
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            // Another process has exclusive use, or a licence is required.
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_DEVICE_NOT_LICENSED
            // No kernel image fits the GPU, or the driver cannot compile the PTX.
            | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED
    )
}

/// CUDA's name and message for an error.
pub(super) fn error_text(err: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map(|text| text.to_string_lossy().into_owned()).ok()
    };
    match (text(err.error_name()), text(err.error_string())) {
        (Some(name), Some(detail)) => format!("{name}, {detail}"),
        (Some(name), None) => name,
        _ => format!("error {}", err.0 as u32),
    }
}

/// Adds the attempted operation to a driver error.
pub(super) trait DriverContext<T> {
    fn context(self, what: &'static str) -> Result<T, CudaError>;
}

impl<T> DriverContext<T> for Result<T, DriverError> {
    fn context(self, what: &'static str) -> Result<T, CudaError> {
        self.map_err(|err| CudaError::from_driver(what, err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages_and_unsuitable_software_do_not_implicate_the_gpu() {
        for status in [1, 3, 8, 15] {
            assert!(!CudaError::from_blas("multiply matrices", status).implicates_gpu());
        }
        let failed = CudaError::from_blas("multiply matrices", 13);
        assert!(failed.implicates_gpu());
        assert_eq!(
            failed.to_string(),
            "failed to multiply matrices: cuBLASLt returned 13, EXECUTION_FAILED"
        );
        assert!(!CudaError::OutOfMemory.implicates_gpu());
        for code in [
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        ] {
            assert!(is_caused_by_machine(code), "{code:?}");
        }
        for code in [
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(!is_caused_by_machine(code), "{code:?}");
        }
    }
}
