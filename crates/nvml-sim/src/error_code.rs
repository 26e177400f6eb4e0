//! NVML return codes.

use std::ffi::{CStr, c_int};

/// An NVML return code other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorCode(pub(crate) u32);

impl ErrorCode {
    pub(crate) const SUCCESS: c_int = 0;
    pub(crate) const UNINITIALISED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(crate) const TIMEOUT: Self = Self(10);
    pub(crate) const FUNCTION_NOT_FOUND: Self = Self(13);
    pub(crate) const CORRUPTED_INFOROM: Self = Self(14);
    pub(crate) const GPU_IS_LOST: Self = Self(15);
    pub(crate) const RESET_REQUIRED: Self = Self(16);
    pub(crate) const IN_USE: Self = Self(19);
    pub(crate) const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    pub(crate) const VERSION_MISMATCH: Self = Self(25);
    pub(crate) const NOT_READY: Self = Self(27);
    pub(crate) const UNKNOWN: Self = Self(999);

    pub(crate) fn number(self) -> c_int {
        c_int::try_from(self.0).unwrap_or(999)
    }
}

/// Result of a call's body.
pub(crate) type NvmlResult = Result<(), ErrorCode>;

/// Text of `nvmlErrorString`.
pub(crate) fn error_string(code: c_int) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"vGPU ECC not supported",
        23 => c"Insufficient Resources",
        24 => c"Invalid Frequency",
        25 => c"Argument version mismatch",
        26 => c"Requested functionality has been deprecated",
        27 => c"System is not in ready state",
        28 => c"No supported GPUs were found",
        29 => c"Resource not in correct state to perform requested operation",
        30 => c"Reset type is not supported for given device",
        _ => c"Unknown Error",
    }
}
