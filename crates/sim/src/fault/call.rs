//! NVML calls that fail or hang.

use serde::{Deserialize, Serialize};

use super::FaultError;

/// Prefix of a field number in [`CallFault::call`]. Such a fault makes the field fail, while the
/// call that reads it succeeds.
pub const FIELD_PREFIX: &str = "field:";

/// `NVML_ERROR_RESET_REQUIRED`.
const RESET_REQUIRED: u32 = 16;

/// An injected failure of an NVML call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFault {
    /// NVML function name. A name without `_v2` or similar matches every version, `*` matches all
    /// functions, and [`FIELD_PREFIX`] plus a number matches one field.
    pub call: String,
    pub effect: CallEffect,
}

/// Effect of an injected failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallEffect {
    /// The call returns this NVML code.
    Error(u32),
    /// The call blocks for this many milliseconds and then succeeds.
    HangMs(u64),
    HangForever,
}

impl CallFault {
    /// Whether the call hangs. A reboot of the node removes such faults.
    pub fn hangs(&self) -> bool {
        matches!(self.effect, CallEffect::HangMs(_) | CallEffect::HangForever)
    }

    /// Whether the call reports that a reset is required.
    pub(super) fn requires_reset(&self) -> bool {
        self.effect == CallEffect::Error(RESET_REQUIRED)
    }

    /// Whether the fault applies to `call`.
    pub fn matches_call(&self, call: &str) -> bool {
        self.call == "*" || self.call == call || self.call == without_version(call)
    }
}

impl std::fmt::Display for CallFault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.effect {
            CallEffect::Error(code) => write!(out, "{} returns {code}", self.call),
            CallEffect::HangMs(milliseconds) => {
                write!(out, "{} hangs for {milliseconds} ms", self.call)
            }
            CallEffect::HangForever => write!(out, "{} hangs forever", self.call),
        }
    }
}

/// Removes a version suffix such as `_v2`.
fn without_version(call: &str) -> &str {
    match call.rsplit_once("_v") {
        Some((name, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => call,
    }
}

/// Checks that `call` has the form of a function name or a field, or is `*`.
pub fn validate_call(call: &str) -> Result<(), FaultError> {
    let is_nvml_name = call
        .strip_prefix("nvml")
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()));
    let has_valid_chars = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_field =
        call.strip_prefix(FIELD_PREFIX).is_some_and(|number| number.parse::<u32>().is_ok());
    if call == "*" || is_field || (is_nvml_name && has_valid_chars) {
        Ok(())
    } else {
        Err(FaultError::Call { call: call.to_owned() })
    }
}

/// Whether a call concerns the node rather than one GPU. Faults of these calls are stored with the
/// node.
pub fn is_node_scoped(call: &str) -> bool {
    let gpu_prefixes = ["nvmlDevice", "nvmlGpm", FIELD_PREFIX];
    !gpu_prefixes.iter().any(|prefix| call.starts_with(prefix)) && call != "*"
        || without_version(call) == "nvmlDeviceGetCount"
        || matches!(call, "nvmlGpmSampleAlloc" | "nvmlGpmSampleFree" | "nvmlGpmMetricsGet")
}

/// Parses an NVML return code: a number, or a name with or without `NVML_ERROR_`.
pub fn error_code(name: &str) -> Option<u32> {
    let normalized = name.to_ascii_uppercase().replace('-', "_");
    let normalized = normalized.strip_prefix("NVML_ERROR_").unwrap_or(&normalized);
    match normalized.parse() {
        Ok(number) => NVML_ERRORS.iter().any(|(code, _)| *code == number).then_some(number),
        Err(_) => {
            NVML_ERRORS.iter().find(|(_, name)| *name == normalized).map(|(number, _)| *number)
        }
    }
}

/// NVML's return codes.
pub const NVML_ERRORS: [(u32, &str); 31] = [
    (1, "UNINITIALIZED"),
    (2, "INVALID_ARGUMENT"),
    (3, "NOT_SUPPORTED"),
    (4, "NO_PERMISSION"),
    (5, "ALREADY_INITIALIZED"),
    (6, "NOT_FOUND"),
    (7, "INSUFFICIENT_SIZE"),
    (8, "INSUFFICIENT_POWER"),
    (9, "DRIVER_NOT_LOADED"),
    (10, "TIMEOUT"),
    (11, "IRQ_ISSUE"),
    (12, "LIBRARY_NOT_FOUND"),
    (13, "FUNCTION_NOT_FOUND"),
    (14, "CORRUPTED_INFOROM"),
    (15, "GPU_IS_LOST"),
    (16, "RESET_REQUIRED"),
    (17, "OPERATING_SYSTEM"),
    (18, "LIB_RM_VERSION_MISMATCH"),
    (19, "IN_USE"),
    (20, "MEMORY"),
    (21, "NO_DATA"),
    (22, "VGPU_ECC_NOT_SUPPORTED"),
    (23, "INSUFFICIENT_RESOURCES"),
    (24, "FREQ_NOT_SUPPORTED"),
    (25, "ARGUMENT_VERSION_MISMATCH"),
    (26, "DEPRECATED"),
    (27, "NOT_READY"),
    (28, "GPU_NOT_FOUND"),
    (29, "INVALID_STATE"),
    (30, "RESET_TYPE_NOT_SUPPORTED"),
    (999, "UNKNOWN"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_and_call_scopes() {
        assert_eq!(error_code("gpu-is-lost"), Some(15));
        assert_eq!(error_code("NVML_ERROR_UNKNOWN"), Some(999));
        assert_eq!(error_code("18"), Some(18));
        assert_eq!(error_code("1000"), None);
        assert!(is_node_scoped("nvmlInit_v2") && is_node_scoped("nvmlDeviceGetCount_v2"));
        assert!(
            !is_node_scoped("nvmlDeviceGetName")
                && !is_node_scoped("*")
                && !is_node_scoped("nvmlGpmSampleGet")
        );
    }

    #[test]
    fn name_without_version_matches_all_versions() {
        let fault =
            |call: &str| CallFault { call: call.to_owned(), effect: CallEffect::HangForever };
        assert!(fault("nvmlDeviceGetCount").matches_call("nvmlDeviceGetCount_v2"));
        assert!(!fault("nvmlDeviceGetCount_v2").matches_call("nvmlDeviceGetCount"));
        assert!(fault("*").matches_call("nvmlInit_v2"));
        assert!(!fault("nvmlDeviceGetGpuFabricInfo").matches_call("nvmlDeviceGetGpuFabricInfoV"));
    }
}
