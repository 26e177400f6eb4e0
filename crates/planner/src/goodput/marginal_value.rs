//! What a minute less is worth.

use serde::Serialize;

use super::closed_form::balance;
use super::interval;
use super::timing::Timing;

/// What a minute less of something saves over the run; less than a minute where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Worth {
    /// How much less, at most a minute.
    pub less_s: f64,
    /// Hours that the run is shorter.
    pub hours: f64,
    /// What these would have cost.
    pub usd: Option<f64>,
}

/// What a minute less is worth, for each thing that can be made shorter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Worths {
    /// Of detection.
    pub detection: Worth,
    /// Of recovery (restart, load or warm-up).
    pub recovery: Worth,
    /// Of the stall at each checkpoint.
    pub checkpoint_stall: Worth,
}

const MINUTE_S: f64 = 60.0;

impl Worths {
    /// Over a run of so many hours without loss; at an interval, or at the best of each.
    pub(super) fn of(
        timing: &Timing,
        interval_s: Option<f64>,
        productive_h: f64,
        usd_per_hour: Option<f64>,
    ) -> Self {
        let hours = |timing: &Timing| {
            let interval_s = interval_s.unwrap_or_else(|| interval::best_s(timing));
            productive_h / balance(timing, interval_s).split.useful_share
        };
        let now_h = hours(timing);
        let worth = |less_s: f64, faster: &Timing| {
            let saved_h = (now_h - hours(faster)).max(0.0);
            Worth { less_s, hours: saved_h, usd: usd_per_hour.map(|usd| usd * saved_h) }
        };

        let less_s = timing.detection_s.min(MINUTE_S);
        let mut faster = *timing;
        faster.detection_s -= less_s;
        let detection = worth(less_s, &faster);

        let less_s = timing.recovery_s.min(MINUTE_S);
        let mut faster = *timing;
        faster.recovery_s -= less_s;
        if let Some(behind) = &mut faster.behind {
            behind.recovery_s = (behind.recovery_s - less_s).max(0.0);
        }
        let recovery = worth(less_s, &faster);

        let less_s = timing.stall_s.min(MINUTE_S);
        let mut faster = *timing;
        faster.stall_s -= less_s;
        Self { detection, recovery, checkpoint_stall: worth(less_s, &faster) }
    }
}
