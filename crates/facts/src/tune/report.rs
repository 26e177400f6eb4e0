//! Reports of `farrier tune --output json`.

use serde::{Deserialize, Serialize};

use super::plan::{Need, Step};

/// Schema version.
pub const REPORT_VERSION: u32 = 1;

/// Outcome of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepOutcome {
    /// Applied.
    Done,
    /// Already had the desired value when re-read.
    Already,
    /// Accepted, but the GPU set another value, which is described here. Can be reverted.
    Otherwise(String),
    /// Not changed.
    Failed {
        why: String,
        /// Whether missing permission is the cause.
        permission: bool,
    },
    /// Not attempted, with the reason.
    NotDone(String),
    /// Possibly changed: the new value could not be read. Can be reverted.
    Unknown(String),
}

impl StepOutcome {
    /// Whether the desired value is in effect.
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Done | Self::Already)
    }

    /// Name and reason for display.
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

/// One step and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    pub step: Step,
    pub outcome: StepOutcome,
}

/// Result of applying a profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// Always [`REPORT_VERSION`].
    pub v: u32,
    pub profile: String,
    /// The reference profile for drift detection, if different from `profile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    pub steps: Vec<Step>,
    /// Outcomes of the changes.
    pub applied: Vec<Applied>,
}

impl ApplyReport {
    /// Steps that need a person: unknown, refused or manual.
    pub fn open(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.standing.is_open())
    }

    /// Changes that were not applied.
    pub fn failed(&self) -> impl Iterator<Item = &Applied> {
        self.applied.iter().filter(|result| !result.outcome.is_made())
    }

    /// Whether everything is set. Changes pending a reset or reboot count as done; unknown or
    /// refused ones do not.
    pub fn is_done(&self) -> bool {
        self.open().next().is_none() && self.failed().next().is_none()
    }
}

/// Outcome of reverting one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RevertOutcome {
    /// The previous value was restored.
    Back,
    /// The previous value was already there: the change was never applied, or was already reverted.
    Already,
    /// The previous value is restored, but does not take effect before these needs are met.
    Waits(Vec<Need>),
    /// Someone else has changed the value since; the text is the current value.
    Foreign(String),
    /// The target no longer exists, such as a replaced GPU; the change was dropped on request.
    Forgotten,
    /// Could not be reverted.
    Failed {
        why: String,
        /// Whether missing permission is the cause.
        permission: bool,
    },
    /// Not attempted, with the reason.
    NotDone(String),
}

impl RevertOutcome {
    /// Whether nothing is left to revert.
    pub fn is_back(&self) -> bool {
        matches!(self, Self::Back | Self::Already | Self::Waits(_) | Self::Forgotten)
    }
}
