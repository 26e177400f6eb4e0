//! How often something is read, by what it costs and how fast it must be known.

use std::fmt;
use std::time::Duration;

/// A group of signals that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Every second.
    Fast,
    /// Every ten seconds.
    Medium,
    /// Every minute.
    Slow,
    /// Every hour.
    Rare,
}

impl Tier {
    /// All of them, the most frequent first.
    pub const ALL: [Self; 4] = [Self::Fast, Self::Medium, Self::Slow, Self::Rare];

    /// How often, where nobody configured it otherwise.
    pub const fn period(self) -> Duration {
        match self {
            Self::Fast => Duration::from_secs(1),
            Self::Medium => Duration::from_secs(10),
            Self::Slow => Duration::from_secs(60),
            Self::Rare => Duration::from_secs(3600),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Fast => "fast",
            Self::Medium => "medium",
            Self::Slow => "slow",
            Self::Rare => "rare",
        })
    }
}
