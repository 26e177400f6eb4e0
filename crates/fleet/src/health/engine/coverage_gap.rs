//! Coverage gaps: why a rule cannot run now.

use std::fmt;

use farrier_facts::node::ReadError;

use super::super::signal::Signal;

/// Why the condition of a rule cannot be evaluated now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoverageGap {
    NeverRead(Signal),
    Unreadable(Signal, ReadError),
    /// The condition compares peers, but they were not read.
    PeersNotRead,
}

impl CoverageGap {
    /// The cause without the signal. Several rules often have the same cause for different signals.
    pub fn cause(&self) -> String {
        match self {
            Self::NeverRead(_) => "never read".to_owned(),
            Self::Unreadable(_, err) => err.to_string(),
            Self::PeersNotRead => "its peers were not read".to_owned(),
        }
    }
}

impl fmt::Display for CoverageGap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverRead(signal) | Self::Unreadable(signal, _) => {
                write!(out, "{signal}: {}", self.cause())
            }
            Self::PeersNotRead => out.write_str(&self.cause()),
        }
    }
}
