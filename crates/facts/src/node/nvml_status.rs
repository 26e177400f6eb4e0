//! NVML's return codes.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// NVML return code (`nvmlReturn_t`). `Display` prints NVML's name.
///
/// Serialised as its name, or as its number if this table has no name for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NvmlStatus(pub u32);

/// Names indexed by code.
const NAMES: [&str; 31] = [
    "NVML_SUCCESS",
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_ALREADY_INITIALIZED",
    "NVML_ERROR_NOT_FOUND",
    "NVML_ERROR_INSUFFICIENT_SIZE",
    "NVML_ERROR_INSUFFICIENT_POWER",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_TIMEOUT",
    "NVML_ERROR_IRQ_ISSUE",
    "NVML_ERROR_LIBRARY_NOT_FOUND",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_CORRUPTED_INFOROM",
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_OPERATING_SYSTEM",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    "NVML_ERROR_IN_USE",
    "NVML_ERROR_MEMORY",
    "NVML_ERROR_NO_DATA",
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
    "NVML_ERROR_INSUFFICIENT_RESOURCES",
    "NVML_ERROR_FREQ_NOT_SUPPORTED",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_NOT_READY",
    "NVML_ERROR_GPU_NOT_FOUND",
    "NVML_ERROR_INVALID_STATE",
    "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED",
];

const UNKNOWN_NAME: &str = "NVML_ERROR_UNKNOWN";

impl NvmlStatus {
    /// `NVML_ERROR_INVALID_ARGUMENT`. An older library also returns it for a field that it does not
    /// know.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// `NVML_ERROR_NO_PERMISSION`
    pub const NO_PERMISSION: Self = Self(4);
    /// `NVML_ERROR_DRIVER_NOT_LOADED`
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    /// `NVML_ERROR_GPU_IS_LOST`
    pub const GPU_IS_LOST: Self = Self(15);
    /// `NVML_ERROR_RESET_REQUIRED`
    pub const RESET_REQUIRED: Self = Self(16);
    /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`: the library and the loaded module have different
    /// versions.
    pub const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    /// `NVML_ERROR_GPU_NOT_FOUND`
    pub const GPU_NOT_FOUND: Self = Self(28);
    /// `NVML_ERROR_UNKNOWN`
    pub const UNKNOWN: Self = Self(999);

    /// NVML's name. `None` if the table does not have it.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::UNKNOWN => Some(UNKNOWN_NAME),
            Self(number) => NAMES.get(usize::try_from(number).ok()?).copied(),
        }
    }

    /// Looks up a status by name.
    pub fn by_name(name: &str) -> Option<Self> {
        if name == UNKNOWN_NAME {
            return Some(Self::UNKNOWN);
        }
        let code = NAMES.iter().position(|known| *known == name)?;
        u32::try_from(code).ok().map(Self)
    }
}

impl fmt::Display for NvmlStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => out.write_str(name),
            None => write!(out, "NVML error {}", self.0),
        }
    }
}

impl fmt::Debug for NvmlStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Serialize for NvmlStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name() {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_u32(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for NvmlStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StatusVisitor)
    }
}

struct StatusVisitor;

impl Visitor<'_> for StatusVisitor {
    type Value = NvmlStatus;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the name or the number of an NVML status")
    }

    // A newer Farrier may write names that this table does not have. Such names become `UNKNOWN`.
    fn visit_str<E: de::Error>(self, name: &str) -> Result<NvmlStatus, E> {
        Ok(NvmlStatus::by_name(name).unwrap_or(NvmlStatus::UNKNOWN))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<NvmlStatus, E> {
        u32::try_from(number).map(NvmlStatus).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_nvml_header() {
        assert_eq!(NvmlStatus(18).to_string(), "NVML_ERROR_LIB_RM_VERSION_MISMATCH");
        assert_eq!(NvmlStatus(9).to_string(), "NVML_ERROR_DRIVER_NOT_LOADED");
        assert_eq!(NvmlStatus(15).to_string(), "NVML_ERROR_GPU_IS_LOST");
        assert_eq!(NvmlStatus(999).to_string(), "NVML_ERROR_UNKNOWN");
        assert_eq!(NvmlStatus(77).to_string(), "NVML error 77");
    }

    #[test]
    fn statuses_round_trip() {
        for status in (0..40).chain([999, u32::MAX]).map(NvmlStatus) {
            let text = serde_json::to_string(&status).unwrap();
            assert_eq!(serde_json::from_str::<NvmlStatus>(&text).unwrap(), status, "{text}");
        }
        let newer = serde_json::from_str::<NvmlStatus>("\"NVML_ERROR_FROM_THE_FUTURE\"").unwrap();
        assert_eq!(newer, NvmlStatus::UNKNOWN);
        assert_eq!(serde_json::to_string(&NvmlStatus(77)).unwrap(), "77");
    }
}
