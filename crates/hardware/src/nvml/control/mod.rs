//! Reads and changes GPU settings in a child process, because a call into a wedged driver never
//! returns.
//!
//! ```text
//! farrier tune ─ GpuControls ─ line protocol ─> farrier probe control ─ calls ─> libnvidia-ml.so.1
//! ```

mod calls;
mod client;
mod serve;

pub(super) use calls::GRAPHICS;
pub use client::{ControlError, ControlTimeouts, GpuControls, ProbeError};
pub use serve::serve as serve_control;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_facts::tune::{GpuControl, GpusSeen, Value};
use serde::{Deserialize, Serialize};

/// A request to the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum ControlRequest {
    List,
    Get {
        uuid: String,
        control: GpuControl,
    },
    /// The value in force for a setting that takes effect at the next reset.
    InForce {
        uuid: String,
        control: GpuControl,
    },
    Set {
        uuid: String,
        control: GpuControl,
        value: Value,
    },
}

/// Why the driver did not change a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuSetError {
    #[error("{0}")]
    Call(ReadError),
    #[error("no such GPU")]
    NoSuchGpu,
    /// The value's type does not match the setting.
    #[error("the value has the wrong type for this setting")]
    Value,
}

impl GpuSetError {
    /// Whether the failure is a missing permission.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Call(ReadError::Nvml { status: NvmlStatus::NO_PERMISSION }))
    }
}

/// A response from the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ControlResponse {
    /// Response to `List`.
    Gpus(GpusSeen),
    /// Response to `Get` and `InForce`.
    Value(Reading<Value>),
    Done,
    Refused(GpuSetError),
    /// NVML is unavailable.
    #[serde(rename = "silent")]
    NoNvml(String),
}
