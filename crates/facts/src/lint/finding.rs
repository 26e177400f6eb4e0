//! What the lint says.

use serde::Serialize;

use crate::setting::{LintClass, LintLevel};

/// A setting that does nothing or harms, and what to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The code cell of a notebook, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u32>,
    /// The line, from 1; none for the environment of a process.
    pub line: Option<u32>,
    /// The stable name of the kind of finding.
    pub code: String,
    /// What it does to the person who wrote it.
    pub class: LintClass,
    /// Whether it makes the file bad.
    pub level: LintLevel,
    /// What is true.
    pub text: String,
    /// What to write instead.
    pub replacement: Option<String>,
    /// Who says so.
    pub source: String,
    /// What part of it nobody has confirmed.
    pub unverified: Option<String>,
}
