//! Why a rule is not watched now.

use std::fmt;

use farrier_facts::node::ReadError;

use super::super::signal::Signal;

/// Why nobody knows now whether a rule's condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoverageGap {
    /// A signal has never been read.
    NeverRead(Signal),
    /// A signal cannot be read now.
    Unreadable(Signal, ReadError),
    /// The condition compares peers, and they were not asked.
    PeersNotAsked,
}

impl CoverageGap {
    /// The cause without the signal, which differs from rule to rule.
    pub fn cause(&self) -> String {
        match self {
            Self::NeverRead(_) => "never read".to_owned(),
            Self::Unreadable(_, err) => err.to_string(),
            Self::PeersNotAsked => "its peers were not asked".to_owned(),
        }
    }
}

impl fmt::Display for CoverageGap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverRead(signal) | Self::Unreadable(signal, _) => {
                write!(out, "{signal}: {}", self.cause())
            }
            Self::PeersNotAsked => out.write_str(&self.cause()),
        }
    }
}
