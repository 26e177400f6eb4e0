//! Temperature and power.

use serde::{Deserialize, Serialize};

/// Temperatures in °C, and margins to the thermal limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Temperature {
    /// Hottest GPU sensor.
    pub gpu_c: i32,
    /// Hottest memory sensor. `None` if there is no sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_c: Option<i32>,
    /// Thermal limit, at which the margin is 0.
    pub gpu_limit_c: i32,
    /// Margin at which the GPU throttles.
    pub slowdown_margin_c: i32,
    /// Margin at which the GPU shuts down.
    pub shutdown_margin_c: i32,
    /// Highest recommended memory temperature.
    pub memory_max_c: i32,
}

/// Power draw, limits and energy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Average power draw over the last second.
    pub average_mw: u32,
    pub instant_mw: u32,
    /// Memory power draw. `None` if it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_average_mw: Option<u32>,
    /// Current power limit.
    pub limit_mw: u32,
    pub default_limit_mw: u32,
    pub min_limit_mw: u32,
    pub max_limit_mw: u32,
    /// Energy used up to `energy_at_unix_ms`. From then on, the GPU draws `average_mw`.
    pub energy_mj: u64,
    /// Time of `energy_mj`, Unix milliseconds.
    pub energy_at_unix_ms: u64,
}

impl Power {
    /// Energy used up to `now_unix_ms`, in millijoules.
    pub fn energy_at(&self, now_unix_ms: u64) -> u64 {
        let elapsed_ms = now_unix_ms.saturating_sub(self.energy_at_unix_ms);
        self.energy_mj.saturating_add(elapsed_ms.saturating_mul(u64::from(self.average_mw)) / 1000)
    }
}
