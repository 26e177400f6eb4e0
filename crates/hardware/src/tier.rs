//! How often something is read, by what it costs and how fast it must be known.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often something is asked: what is dear to ask is asked seldom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Every second: what moves with the work.
    Fast,
    /// Every ten seconds: counters, links, processes.
    Medium,
    /// Every minute: what changes seldom or takes milliseconds to ask.
    Slow,
    /// Every hour: what takes tens of milliseconds, and what the part does not have, anew.
    Rare,
}

impl Tier {
    /// All of them, in the order in which a new child is asked.
    pub const ALL: [Self; 4] = [Self::Fast, Self::Medium, Self::Slow, Self::Rare];

    /// The time between two requests.
    pub const fn period(self) -> Duration {
        Duration::from_secs(match self {
            Self::Fast => 1,
            Self::Medium => 10,
            Self::Slow => 60,
            Self::Rare => 3600,
        })
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
