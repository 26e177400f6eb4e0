//! Messages of the NVIDIA kernel driver and of `NVSwitch`.

use serde::{Deserialize, Serialize};

/// What `data/xids/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidFacts {}
