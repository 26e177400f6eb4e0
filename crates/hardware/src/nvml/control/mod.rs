//! Settings of GPUs, read and changed in a child: a call into a wedged driver never returns.
//!
//! ```text
//! farrier tune ─ Controls ─ a line for a line ─> farrier probe control ─ calls ─> libnvidia-ml.so.1
//! ```

mod calls;
mod child;
mod serve;

pub use child::{ControlError, Controls, Patience};
pub use serve::serve as serve_control;

use farrier_facts::node::Reading;
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
    /// It was not, with NVML's own name for why.
    Refused(String),
    /// There is no NVML to ask.
    Silent(String),
}
