//! What is said about a setting.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::origin::Origin;

/// What is wrong with a setting, what is true, and what to use.
///
/// In `truth` and `replacement`, `{name}` stands for what was written, `{value}` for its value and
/// `{near}` for the nearest real name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LintVerdict {
    /// A stable name for the kind of finding, such as `env-unknown`.
    pub code: String,
    /// What the setting does to the person who wrote it.
    pub class: LintClass,
    /// How much it weighs; absent: a finding, and a note where the setting is redundant.
    #[serde(default)]
    pub level: Option<LintLevel>,
    /// What is true.
    pub truth: String,
    /// What to write instead. Only a [`LintClass::Redundant`] setting may have none: it is deleted.
    pub replacement: Option<String>,
    /// What part of this nobody has confirmed.
    pub unverified: Option<String>,
    /// Who says so.
    pub origin: Origin,
}

impl LintVerdict {
    /// How much it weighs.
    pub fn level(&self) -> LintLevel {
        let usual =
            if self.class == LintClass::Redundant { LintLevel::Note } else { LintLevel::Finding };
        self.level.unwrap_or(usual)
    }
}

/// How much a verdict weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LintLevel {
    /// It is shown and does not make a file bad: nothing is lost, or many do it on purpose.
    Note,
    /// It makes a file bad.
    Finding,
}

/// What a setting does to the person who wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LintClass {
    /// There is no such thing.
    Fake,
    /// It is real or was once, and silently does nothing here.
    Ignored,
    /// The program stops with an error.
    Raises,
    /// It works, and costs speed, memory or correctness.
    Harm,
    /// It says what is so anyway.
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
