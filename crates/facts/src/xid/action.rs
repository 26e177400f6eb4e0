//! Severity and action, the outcome of every decoded message.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Severity, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Informational.
    Info,
    /// Work continues, or one application has to be restarted.
    Warning,
    /// The GPU must not take new work until it is repaired.
    Critical,
    /// The GPU or node cannot work until someone acts.
    Fatal,
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::Fatal => "fatal",
        })
    }
}

/// Action, least intrusive first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    Ignore,
    /// Restart the application; the GPU is fine.
    RestartApp,
    /// An operator has to investigate; the text says what.
    Investigate,
    /// Drain the GPU and reset it.
    ResetGpu,
    /// Drain the node and reboot it.
    RebootNode,
    /// Neither a reset nor a reboot repairs it.
    DrainAndReplace,
}

impl Action {
    /// The action as an instruction.
    pub fn instruction(self) -> &'static str {
        match self {
            Self::Ignore => "nothing to do",
            Self::RestartApp => "restart the application",
            Self::Investigate => "inspect it by hand",
            Self::ResetGpu => "drain the GPU and reset it",
            Self::RebootNode => "drain the node and reboot it",
            Self::DrainAndReplace => "drain the node and have the part replaced",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Ignore => "ignore",
            Self::RestartApp => "restart-app",
            Self::Investigate => "investigate",
            Self::ResetGpu => "reset-gpu",
            Self::RebootNode => "reboot-node",
            Self::DrainAndReplace => "drain-and-replace",
        })
    }
}
