//! Clock frequencies and throttling.

use serde::{Deserialize, Serialize};

/// Frequencies by clock domain, in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockRates {
    pub graphics: u32,
    pub sm: u32,
    pub memory: u32,
    pub video: u32,
}

/// A frequency range in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockRange {
    pub min: u32,
    pub max: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    pub current_mhz: ClockRates,
    /// Maximum clocks of the GPU model.
    pub max_mhz: ClockRates,
    /// Requested application clock.
    pub application_graphics_mhz: u32,
    /// Requested application clock.
    pub application_memory_mhz: u32,
    /// Default application clock.
    pub default_graphics_mhz: u32,
    /// Default application clock.
    pub default_memory_mhz: u32,
    /// Selectable memory clocks, highest first.
    pub supported_memory_mhz: Vec<u32>,
    /// Lowest selectable graphics clock.
    pub graphics_floor_mhz: u32,
    /// Step between selectable graphics clocks.
    pub graphics_step_mhz: u32,
    /// Locked graphics clock range. `None` if unlocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_graphics_mhz: Option<ClockRange>,
    /// Locked memory clock range. `None` if unlocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_memory_mhz: Option<ClockRange>,
    /// P-state. 0 is the fastest.
    pub performance_state: u32,
}

impl Clocks {
    /// Selectable graphics clocks, highest first.
    pub fn supported_graphics_mhz(&self) -> Vec<u32> {
        let step = self.graphics_step_mhz.max(1);
        let (floor, top) = (self.graphics_floor_mhz, self.max_mhz.graphics);
        // The number of steps is limited, so that a mistyped step size cannot exhaust the memory.
        (0..1000_u32)
            .map(|count| top.saturating_sub(count.saturating_mul(step)))
            .take_while(|rate| *rate >= floor && *rate > 0)
            .collect()
    }
}

/// Active throttle reasons and the time spent throttled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockEvents {
    pub reasons: Vec<ThrottleReason>,
    /// When the active reasons last changed, Unix milliseconds.
    pub since_unix_ms: u64,
    /// Throttled time up to `since_unix_ms`.
    #[serde(rename = "held_us")]
    pub throttled_us: ThrottledTime,
}

/// Accumulated time per throttle reason, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottledTime {
    pub sw_power_cap: u64,
    pub sync_boost: u64,
    pub sw_thermal: u64,
    pub hw_thermal: u64,
    pub hw_power_brake: u64,
}

/// NVML clock event reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThrottleReason {
    GpuIdle,
    ApplicationClocks,
    /// The power limit throttles the clocks.
    SwPowerCap,
    /// NVML sets this reason whenever `HwThermal` or `HwPowerBrake` is set.
    HwSlowdown,
    SyncBoost,
    /// The driver throttles the clocks at its thermal limit.
    SwThermal,
    /// The hardware throttles the clocks at its thermal limit.
    HwThermal,
    /// The power supply asserts a signal that throttles the clocks.
    HwPowerBrake,
    DisplayClocks,
}

impl ThrottleReason {
    /// The name that `inject throttle` accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::GpuIdle => "gpu-idle",
            Self::ApplicationClocks => "application-clocks",
            Self::SwPowerCap => "sw-power-cap",
            Self::HwSlowdown => "hw-slowdown",
            Self::SyncBoost => "sync-boost",
            Self::SwThermal => "sw-thermal",
            Self::HwThermal => "hw-thermal",
            Self::HwPowerBrake => "hw-power-brake",
            Self::DisplayClocks => "display-clocks",
        }
    }

    /// NVML's bit for the reason.
    pub fn bit(self) -> u64 {
        match self {
            Self::GpuIdle => 0x1,
            Self::ApplicationClocks => 0x2,
            Self::SwPowerCap => 0x4,
            Self::HwSlowdown => 0x8,
            Self::SyncBoost => 0x10,
            Self::SwThermal => 0x20,
            Self::HwThermal => 0x40,
            Self::HwPowerBrake => 0x80,
            Self::DisplayClocks => 0x100,
        }
    }
}

impl ClockEvents {
    /// NVML's reason bit mask. A hardware reason also sets `HwSlowdown`, as on a real GPU.
    pub fn mask(&self) -> u64 {
        let mask = self.reasons.iter().fold(0, |mask, reason| mask | reason.bit());
        let hardware = ThrottleReason::HwThermal.bit() | ThrottleReason::HwPowerBrake.bit();
        if mask & hardware == 0 { mask } else { mask | ThrottleReason::HwSlowdown.bit() }
    }

    /// Accumulated time per reason at `now_unix_ms`.
    pub fn throttled_at(&self, now_unix_ms: u64) -> ThrottledTime {
        let more_us = now_unix_ms.saturating_sub(self.since_unix_ms).saturating_mul(1000);
        let mut throttled = self.throttled_us;
        for reason in &self.reasons {
            let counter = match reason {
                ThrottleReason::SwPowerCap => &mut throttled.sw_power_cap,
                ThrottleReason::SyncBoost => &mut throttled.sync_boost,
                ThrottleReason::SwThermal => &mut throttled.sw_thermal,
                ThrottleReason::HwThermal => &mut throttled.hw_thermal,
                ThrottleReason::HwPowerBrake => &mut throttled.hw_power_brake,
                _ => continue,
            };
            *counter = counter.saturating_add(more_us);
        }
        throttled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_time_accumulates_from_the_last_change() {
        let events = ClockEvents {
            reasons: vec![ThrottleReason::HwThermal],
            since_unix_ms: 1000,
            throttled_us: ThrottledTime { hw_thermal: 5, ..ThrottledTime::default() },
        };
        assert_eq!(events.throttled_at(3000).hw_thermal, 2_000_005);
        assert_eq!(events.throttled_at(3000).sw_thermal, 0);
        assert_eq!(
            events.throttled_at(0).hw_thermal,
            5,
            "a clock that moves backwards adds nothing"
        );
        assert_eq!(events.mask(), 0x48);
    }
}
