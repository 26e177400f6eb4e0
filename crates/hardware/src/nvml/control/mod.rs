//! Settings of GPUs, read and changed in a child: a call into a wedged driver never returns.
//!
//! ```text
//! farrier tune ─ Controls ─ a line for a line ─> farrier probe control ─ calls ─> libnvidia-ml.so.1
//! ```

mod calls;
mod child;
mod serve;

pub use child::{ControlError, Controls, Patience, ProbeError};
pub use serve::serve as serve_control;

use farrier_facts::node::{NvmlStatus, ReadError, Reading};
use farrier_facts::tune::{GpuControl, GpusSeen, Value};
use serde::{Deserialize, Serialize};

/// What the child is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// All settings of all GPUs.
    List,
    /// One setting.
    Get {
        /// The GPU.
        uuid: String,
        /// Which.
        control: GpuControl,
    },
    /// What counts now of a setting that waits for a reset.
    InForce {
        /// The GPU.
        uuid: String,
        /// Which.
        control: GpuControl,
    },
    /// Changes one setting.
    Set {
        /// The GPU.
        uuid: String,
        /// Which.
        control: GpuControl,
        /// To what.
        value: Value,
    },
}

/// Why the driver did not change a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetError {
    /// A call failed.
    #[error("{0}")]
    Call(ReadError),
    /// NVML has no GPU of this UUID.
    #[error("there is no such GPU")]
    NoSuchGpu,
    /// The value is of another kind than the setting.
    #[error("the value is none of this setting")]
    Value,
}

impl SetError {
    /// Whether it is a matter of who asks.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Call(ReadError::Nvml { status: NvmlStatus::NO_PERMISSION }))
    }
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// To a list.
    Gpus(GpusSeen),
    /// To a get.
    Value(Reading<Value>),
    /// It was set.
    Done,
    /// It was not.
    Refused(SetError),
    /// There is no NVML to ask.
    Silent(String),
}
