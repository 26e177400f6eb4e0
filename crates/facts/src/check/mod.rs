//! Will this GPU, driver, CUDA and framework work together?

use serde::{Deserialize, Serialize};

/// Which kernel modules are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Module {
    /// `nvidia-open`.
    Open,
    /// The proprietary ones.
    Proprietary,
}
