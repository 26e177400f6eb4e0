//! What came of it, as `farrier tune --output json` tells programs: who reads it uses these types.

use serde::{Deserialize, Serialize};

use super::plan::{Need, Step};

/// The version of the forms.
pub const REPORT_VERSION: u32 = 1;

/// What came of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is as wanted now.
    Done,
    /// It was as wanted already when it was looked at again.
    Already,
    /// It was taken, and the card made this of it, in words. It can be given back.
    Otherwise(String),
    /// It was not changed, and why.
    Failed {
        /// In words.
        why: String,
        /// Whether another user may do it.
        permission: bool,
    },
    /// It was not tried, and why.
    NotDone(String),
    /// It may have been changed: what is there could not be read. It can be given back.
    Unknown(String),
}

impl Outcome {
    /// Whether it is as wanted.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Done | Self::Already)
    }

    /// Its name and why, in words.
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Done => ("done", ""),
            Self::Already => ("already", ""),
            Self::Otherwise(now) => ("otherwise", now),
            Self::Failed { why, .. } => ("failed", why),
            Self::NotDone(why) => ("not done", why),
            Self::Unknown(why) => ("unknown", why),
        }
    }
}

/// One step and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The step.
    pub step: Step,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of applying a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// [`REPORT_VERSION`]
    pub v: u32,
    /// The profile.
    pub profile: String,
    /// The profile that drift is told from afterwards, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// The plan.
    pub steps: Vec<Step>,
    /// What came of its changes.
    pub applied: Vec<Applied>,
}

impl ApplyReport {
    /// Steps that are not as wanted and that nothing was or could be done about.
    pub fn open(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.standing.is_open())
    }

    /// Changes that are not made.
    pub fn failed(&self) -> impl Iterator<Item = &Applied> {
        self.applied.iter().filter(|result| !result.outcome.is_made())
    }

    /// Whether all of it is set. What waits for a reset or a reboot is done as far as this goes; what is unknown or refused
    /// is not.
    pub fn is_done(&self) -> bool {
        self.open().next().is_none() && self.failed().next().is_none()
    }
}

/// What came of giving one change back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Given {
    /// What was there before is there again.
    Back,
    /// What was there before was there still: the change was never made, or is undone already.
    Already,
    /// It is set as it was before, and counts only after this.
    Waits(Vec<Need>),
    /// Somebody else has changed it since; what is there now, in words.
    Foreign(String),
    /// What was changed is no longer there, such as a GPU that was replaced: the change is forgotten, as somebody asked for.
    Forgotten,
    /// It could not be, and why.
    Failed {
        /// In words.
        why: String,
        /// Whether another user may do it.
        permission: bool,
    },
    /// It was not tried, and why.
    NotDone(String),
}

impl Given {
    /// Whether nothing is left to give back.
    pub fn is_back(&self) -> bool {
        matches!(self, Self::Back | Self::Already | Self::Waits(_) | Self::Forgotten)
    }
}
