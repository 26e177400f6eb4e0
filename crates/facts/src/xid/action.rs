//! How bad, and what to do: the two words that every answer ends in.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How bad it is, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth a line in a log.
    Info,
    /// Look at it; work goes on, or one application has to start again.
    Warning,
    /// The GPU needs care before it takes new work.
    Critical,
    /// The GPU or node does no work until somebody acts.
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

/// What to do, least intrusive first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Nothing.
    Ignore,
    /// Start the application again; the GPU is fine.
    RestartApp,
    /// Somebody has to look; the text says at what.
    Investigate,
    /// Drain the GPU and reset it.
    ResetGpu,
    /// Drain the node and reboot it.
    RebootNode,
    /// Neither a reset nor a reboot mends it.
    DrainAndReplace,
}

impl Action {
    /// The action in words.
    pub fn instruction(self) -> &'static str {
        match self {
            Self::Ignore => "nothing to do",
            Self::RestartApp => "restart the application",
            Self::Investigate => "have somebody look at it",
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
