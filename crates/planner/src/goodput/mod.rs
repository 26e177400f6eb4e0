//! Goodput: how much of a run's time is training that is kept, how often to save, and what the
//! rest costs.
//!
//! ```text
//! Conditions ─> Timing ─┬─> interval (best, or as given) ─> Split ─> Goodput
//!                       └─> spares (Erlang)                    └─> Report (hours, dollars, worth)
//! ```
//!
//! [`Goodput::best`] and [`Goodput::at`] are closed forms and take well below 20 µs, so that a
//! search can ask for each layout; [`Report::of`] adds what a reader wants to know.
//! Failures are taken to be independent of each other and of the age of the run.

mod checkpoint;
mod closed_form;
mod conditions;
mod error;
mod hazard;
mod interval;
mod no_headway;
mod of_run;
mod report;
#[cfg(test)]
mod simulation;
mod spares;
mod timing;
#[cfg(test)]
mod witnesses;
mod worth;

use serde::Serialize;

pub use checkpoint::{BYTES_PER_PARAMETER, Checkpoint, CheckpointKind};
pub use closed_form::Split;
pub use conditions::{Conditions, DETECTION_S, MOST_REPAIR_H, MOST_SPARES, Recovery, Spares};
pub use error::GoodputError;
pub use hazard::Hazard;
pub use interval::{daly_s, young_s};
pub use no_headway::{NoHeadway, TooManyStops, WrongInterval};
pub use of_run::saved_bytes;
pub use report::{LostTime, Report, RunCost, Training};
pub use spares::{SpareChoice, SparesThatPay};
pub use worth::{Worth, Worths};

use timing::Timing;

/// A run of which less than this is kept makes no headway: it would take more than ten times as long.
pub const HEADWAY_SHARE: f64 = 0.1;

/// How much of a run's time is kept, at an interval between checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// Training between two checkpoints; without end (`null`) where nothing fails, and where the run
    /// ends before a checkpoint pays.
    pub interval_s: f64,
    /// The same in steps.
    pub interval_steps: f64,
    /// Share of time that is training which is kept: goodput, or the effective training time
    /// ratio.
    pub share: f64,
    /// Whether the run gets anywhere: at least [`HEADWAY_SHARE`] is kept.
    pub makes_headway: bool,
    /// Between two failures while nothing is down; without end (`null`) where nothing fails.
    pub mtbf_s: f64,
    /// Failures in a day of the run.
    pub failures_per_day: f64,
    /// What training waits for at a checkpoint.
    pub stall_s: f64,
    /// From the stall's end until the checkpoint can be restored.
    pub settle_s: f64,
    /// From a failure to training again, where nothing else fails and a node is at hand.
    pub down_s: f64,
    /// Mean wait for a node, over all failures.
    pub wait_s: f64,
    /// Where the time goes.
    pub split: Split,
}

impl Goodput {
    /// At the best interval.
    pub fn best(conditions: &Conditions) -> Result<Self, GoodputError> {
        conditions.check()?;
        let timing = Timing::of(conditions);
        Ok(Self::with(&timing, interval::best_s(&timing)))
    }

    /// At an interval: seconds of training between two checkpoints.
    pub fn at(conditions: &Conditions, interval_s: f64) -> Result<Self, GoodputError> {
        conditions.check()?;
        let timing = Timing::of(conditions);
        interval::check(&timing, interval_s)?;
        Ok(Self::with(&timing, interval_s))
    }

    /// Without a checkpoint, where all of it is so much training; said to be of an interval.
    fn of_whole_run(timing: &Timing, productive_s: f64, interval_s: f64) -> Self {
        Self {
            interval_s,
            interval_steps: interval_s / timing.step_s,
            stall_s: timing.stall_s,
            settle_s: timing.settle_s,
            ..Self::with(&timing.without_checkpoints(), productive_s)
        }
    }

    fn with(timing: &Timing, interval_s: f64) -> Self {
        let balance = closed_form::balance(timing, interval_s);
        let share = balance.split.useful_share;
        Self {
            interval_s,
            interval_steps: interval_s / timing.step_s,
            share,
            makes_headway: share >= HEADWAY_SHARE,
            mtbf_s: 1.0 / timing.per_s,
            failures_per_day: balance.failures_per_s * 86_400.0,
            stall_s: timing.stall_s,
            settle_s: timing.settle_s,
            down_s: timing.down_s(),
            wait_s: timing.wait_s,
            split: balance.split,
        }
    }
}
