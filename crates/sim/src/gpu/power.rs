//! Watts and degrees.

use serde::{Deserialize, Serialize};

/// Degrees and margins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Temperature {
    /// The GPU's hottest place.
    pub gpu_c: i32,
    /// The memory's hottest place; absent where there is no sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_c: Option<i32>,
    /// Where the margin is nought.
    pub gpu_limit_c: i32,
    /// The margin at which it slows down.
    pub slowdown_margin_c: i32,
    /// The margin at which it shuts down.
    pub shutdown_margin_c: i32,
    /// The hottest that the memory should be.
    pub memory_max_c: i32,
}

/// Watts and limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Over the last second.
    pub average_mw: u32,
    /// Now.
    pub instant_mw: u32,
    /// The memory's share; absent where it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_average_mw: Option<u32>,
    /// In force.
    pub limit_mw: u32,
    /// What the card starts with.
    pub default_limit_mw: u32,
    /// The lowest that it takes.
    pub min_limit_mw: u32,
    /// The highest that it takes.
    pub max_limit_mw: u32,
    /// Used up to `energy_at_unix_ms`; since then `average_mw` counts.
    pub energy_mj: u64,
    /// Milliseconds of the Unix clock.
    pub energy_at_unix_ms: u64,
}

impl Power {
    /// Energy used, at `now`.
    pub fn energy_at(&self, now_unix_ms: u64) -> u64 {
        let elapsed_ms = now_unix_ms.saturating_sub(self.energy_at_unix_ms);
        self.energy_mj.saturating_add(elapsed_ms.saturating_mul(u64::from(self.average_mw)) / 1000)
    }
}
