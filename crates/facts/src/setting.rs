//! Settings that exist, and settings that do not.

use serde::{Deserialize, Serialize};

/// What `data/settings/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingFacts {}
