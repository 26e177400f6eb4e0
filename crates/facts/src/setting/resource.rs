//! Rules on the resources of a Kubernetes container.

use serde::{Deserialize, Serialize};

use super::variable::ValueTest;
use super::verdict::LintVerdict;

/// A rule on a key below `limits` or `requests`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceRule {
    /// Resource names.
    pub names: Vec<String>,
    /// Matching values; `None` if the name alone is the finding.
    pub value: Option<ValueTest>,
    pub verdict: LintVerdict,
}
