//! Names of flags. A program that reads these flags aborts if it does not know a flag.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// All flags of a program with a common prefix.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagList {
    /// Such as `xla_gpu_`. The flag is written with `--` in front.
    pub prefix: String,
    /// Flags of the newest source that was read.
    pub names: Vec<String>,
    /// Flags that only older sources have.
    pub removed: Vec<String>,
    /// Flags of other programs with the same prefix.
    #[serde(default)]
    pub others: Vec<String>,
    /// Verdict on a flag that no source ever had; `{near}` is the nearest name in `names`.
    pub unknown: LintVerdict,
    /// Verdict on a flag of `removed`.
    pub removed_verdict: LintVerdict,
}
