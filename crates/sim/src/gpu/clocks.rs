//! Frequencies, and what keeps a GPU from them.

use serde::{Deserialize, Serialize};

/// Frequencies by domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockRates {
    /// Graphics.
    pub graphics: u32,
    /// Multiprocessors.
    pub sm: u32,
    /// Memory.
    pub memory: u32,
    /// Video engines.
    pub video: u32,
}

/// Lowest and highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockRange {
    /// Lowest.
    pub min: u32,
    /// Highest.
    pub max: u32,
}

/// Frequencies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// Now.
    pub current_mhz: ClockRates,
    /// The most that the part does.
    pub max_mhz: ClockRates,
    /// Graphics clock that applications asked for.
    pub application_graphics_mhz: u32,
    /// Memory clock that applications asked for.
    pub application_memory_mhz: u32,
    /// What applications get without asking.
    pub default_graphics_mhz: u32,
    /// What applications get without asking.
    pub default_memory_mhz: u32,
    /// Memory clocks that can be chosen, highest first.
    pub supported_memory_mhz: Vec<u32>,
    /// The lowest graphics clock.
    pub graphics_floor_mhz: u32,
    /// Between two graphics clocks.
    pub graphics_step_mhz: u32,
    /// Graphics clocks are held within.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_graphics_mhz: Option<ClockRange>,
    /// Memory clocks are held within.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_memory_mhz: Option<ClockRange>,
    /// Performance state: 0 is the fastest.
    pub performance_state: u32,
}

impl Clocks {
    /// Graphics clocks that can be chosen, highest first.
    pub fn supported_graphics_mhz(&self) -> Vec<u32> {
        let step = self.graphics_step_mhz.max(1);
        let (floor, top) = (self.graphics_floor_mhz, self.max_mhz.graphics);
        // At most a thousand: a mistyped step must not fill the memory.
        (0..1000_u32)
            .map(|count| top.saturating_sub(count.saturating_mul(step)))
            .take_while(|rate| *rate >= floor && *rate > 0)
            .collect()
    }
}

/// What keeps it from its clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockEvents {
    /// Reasons that hold now.
    pub reasons: Vec<ThrottleReason>,
    /// Since when they hold, milliseconds of the Unix clock.
    pub since_unix_ms: u64,
    /// Time up to then.
    #[serde(rename = "held_us")]
    pub throttled_us: ThrottledTime,
}

/// Time that each reason has held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottledTime {
    /// Software power cap.
    pub sw_power_cap: u64,
    /// Sync boost.
    pub sync_boost: u64,
    /// Software thermal slowdown.
    pub sw_thermal: u64,
    /// Hardware thermal slowdown.
    pub hw_thermal: u64,
    /// Hardware power brake.
    pub hw_power_brake: u64,
}

/// A clock event reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThrottleReason {
    /// Nothing runs.
    GpuIdle,
    /// Application clocks.
    ApplicationClocks,
    /// The power limit.
    SwPowerCap,
    /// Any of the hardware's.
    HwSlowdown,
    /// A sync boost group.
    SyncBoost,
    /// The driver's own thermal limit.
    SwThermal,
    /// The hardware's thermal limit.
    HwThermal,
    /// The power supply asks for it.
    HwPowerBrake,
    /// A display.
    DisplayClocks,
}

impl ThrottleReason {
    /// Its name, as `inject throttle` takes it.
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

    /// NVML's bit.
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
    /// NVML's mask. The hardware's own reasons set the common bit too, as on a card.
    pub fn mask(&self) -> u64 {
        let mask = self.reasons.iter().fold(0, |mask, reason| mask | reason.bit());
        let hardware = ThrottleReason::HwThermal.bit() | ThrottleReason::HwPowerBrake.bit();
        if mask & hardware == 0 { mask } else { mask | ThrottleReason::HwSlowdown.bit() }
    }

    /// Time that each reason has held, at `now`.
    pub fn throttled_at(&self, now_unix_ms: u64) -> ThrottledTime {
        let more_us = now_unix_ms.saturating_sub(self.since_unix_ms).saturating_mul(1000);
        let mut held = self.throttled_us;
        for reason in &self.reasons {
            let counter = match reason {
                ThrottleReason::SwPowerCap => &mut held.sw_power_cap,
                ThrottleReason::SyncBoost => &mut held.sync_boost,
                ThrottleReason::SwThermal => &mut held.sw_thermal,
                ThrottleReason::HwThermal => &mut held.hw_thermal,
                ThrottleReason::HwPowerBrake => &mut held.hw_power_brake,
                _ => continue,
            };
            *counter = counter.saturating_add(more_us);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_time_counts_from_the_moment_on() {
        let events = ClockEvents {
            reasons: vec![ThrottleReason::HwThermal],
            since_unix_ms: 1000,
            throttled_us: ThrottledTime { hw_thermal: 5, ..ThrottledTime::default() },
        };
        assert_eq!(events.throttled_at(3000).hw_thermal, 2_000_005);
        assert_eq!(events.throttled_at(3000).sw_thermal, 0);
        assert_eq!(events.throttled_at(0).hw_thermal, 5, "a clock that was set back adds nothing");
        assert_eq!(events.mask(), 0x48);
    }
}
