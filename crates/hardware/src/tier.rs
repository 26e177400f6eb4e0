//! Polling tiers: how often a value is read, by its cost and urgency.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A polling tier. Expensive values are polled less often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Every second: values that follow the workload.
    Fast,
    /// Every ten seconds: counters, links, processes.
    Medium,
    /// Every minute: values that rarely change or take milliseconds to read.
    Slow,
    /// Every hour: values that take tens of milliseconds. Unsupported values are tried again.
    Rare,
}

impl Tier {
    /// All tiers, in the order in which a new child is polled.
    pub const ALL: [Self; 4] = [Self::Fast, Self::Medium, Self::Slow, Self::Rare];

    /// Polling interval.
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
