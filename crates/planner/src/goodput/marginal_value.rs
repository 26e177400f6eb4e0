//! Value of a minute less of detection, recovery or checkpoint stall.

use serde::Serialize;

use super::closed_form::steady_state;
use super::interval;
use super::timing::RunTiming;

/// Savings over the run if detection, recovery or a checkpoint stall takes a minute less, or no
/// time at all if it takes less than a minute now.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MarginalValue {
    /// The reduction, at most a minute.
    pub less_s: f64,
    /// Reduction of the run's duration.
    pub hours: f64,
    pub usd: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MarginalValues {
    pub detection: MarginalValue,
    pub recovery: MarginalValue,
    pub checkpoint_stall: MarginalValue,
}

const MINUTE_S: f64 = 60.0;

impl MarginalValues {
    /// Values over a run that takes `productive_h` without losses, at `interval_s`. If
    /// `interval_s` is `None`, each case uses its best interval.
    pub(super) fn new(
        timing: &RunTiming,
        interval_s: Option<f64>,
        productive_h: f64,
        usd_per_hour: Option<f64>,
    ) -> Self {
        let hours = |timing: &RunTiming| {
            let interval_s = interval_s.unwrap_or_else(|| interval::best_s(timing));
            productive_h / steady_state(timing, interval_s).breakdown.useful_share
        };
        let now_h = hours(timing);
        let marginal_value = |less_s: f64, faster: &RunTiming| {
            let saved_h = (now_h - hours(faster)).max(0.0);
            MarginalValue { less_s, hours: saved_h, usd: usd_per_hour.map(|usd| usd * saved_h) }
        };

        let less_s = timing.detection_s.min(MINUTE_S);
        let mut faster = *timing;
        faster.detection_s -= less_s;
        let detection = marginal_value(less_s, &faster);

        let less_s = timing.recovery_s.min(MINUTE_S);
        let mut faster = *timing;
        faster.recovery_s -= less_s;
        if let Some(storage_tier) = &mut faster.storage_tier {
            storage_tier.recovery_s = (storage_tier.recovery_s - less_s).max(0.0);
        }
        let recovery = marginal_value(less_s, &faster);

        let less_s = timing.stall_s.min(MINUTE_S);
        let mut faster = *timing;
        faster.stall_s -= less_s;
        Self { detection, recovery, checkpoint_stall: marginal_value(less_s, &faster) }
    }
}
