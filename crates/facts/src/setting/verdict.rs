//! Verdicts on settings.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::origin::Origin;

/// What is wrong with a setting, what is true instead, and the replacement.
///
/// `truth` and `replacement` are templates: `{name}` is the name as written, `{value}` its value
/// and `{near}` the nearest real name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LintVerdict {
    /// Stable code of the finding, such as `env-unknown`.
    pub code: String,
    /// Effect of the setting.
    pub class: LintClass,
    /// Defaults to a finding, or to a note for a redundant setting.
    #[serde(default)]
    pub level: Option<LintLevel>,
    /// What is true about the setting.
    pub truth: String,
    /// `None` only for [`LintClass::Redundant`] settings, which should be deleted.
    pub replacement: Option<String>,
    /// A claim in `truth` that no source confirms.
    pub unverified: Option<String>,
    pub origin: Origin,
}

impl LintVerdict {
    /// The level, with the class's default applied.
    pub fn level(&self) -> LintLevel {
        let default =
            if self.class == LintClass::Redundant { LintLevel::Note } else { LintLevel::Finding };
        self.level.unwrap_or(default)
    }
}

/// Whether a verdict fails the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LintLevel {
    /// Shown, but does not fail the file: harmless, or often intentional.
    Note,
    /// Fails the file.
    Finding,
}

/// What a setting does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LintClass {
    /// Does not exist.
    Fake,
    /// Real, or formerly real, and silently ignored here.
    Ignored,
    /// Raises an error.
    Raises,
    /// Works, but costs speed, memory or correctness.
    Harm,
    /// Repeats the default.
    Redundant,
}

impl fmt::Display for LintClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Fake => "fake",
            Self::Ignored => "ignored",
            Self::Raises => "raises",
            Self::Harm => "harm",
            Self::Redundant => "redundant",
        })
    }
}
