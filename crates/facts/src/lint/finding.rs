//! Lint findings.

use serde::Serialize;

use crate::setting::{LintClass, LintLevel};

/// A setting that has no effect or does harm, with its replacement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LintFinding {
    /// The code cell of a notebook, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u32>,
    /// Line from 1; `None` for a process environment.
    pub line: Option<u32>,
    /// Stable code.
    pub code: String,
    pub class: LintClass,
    pub level: LintLevel,
    /// What is true about the setting.
    pub text: String,
    pub replacement: Option<String>,
    pub source: String,
    /// A claim in the text that no source confirms.
    pub unverified: Option<String>,
}
