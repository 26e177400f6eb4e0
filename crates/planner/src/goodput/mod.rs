//! Goodput: effective training time ratio (ETTR) under failures, checkpoint interval, spares and
//! cost.
//!
//! ```text
//! Conditions ─> RunTiming ─┬─> interval (best or requested) ─> TimeBreakdown ─> Goodput
//!                          └─> spares (Erlang B)        └─> GoodputReport (hours, dollars, values)
//! ```
//!
//! [`Goodput::best`] and [`Goodput::at`] are closed forms and take well below 20 µs, so that a
//! search can call them for every config; [`GoodputReport::new`] adds hours, cost, spares and
//! marginal values. Failures are assumed to be independent of each other and of the age of the run.
mod checkpoint;
mod closed_form;
mod conditions;
mod error;
mod for_run;
mod hazard;
mod interval;
mod marginal_value;
mod no_progress;
mod report;
#[cfg(test)]
mod simulation;
mod spares;
#[cfg(test)]
mod tests;
mod timing;

use serde::Serialize;

pub use checkpoint::{BYTES_PER_PARAMETER, Checkpoint, CheckpointKind};
pub use closed_form::TimeBreakdown;
pub use conditions::{Conditions, DETECTION_S, MAX_REPAIR_H, MAX_SPARES, RecoveryTimes, Spares};
pub use error::GoodputError;
pub use for_run::checkpoint_bytes;
pub use hazard::Hazard;
pub use interval::{daly_s, young_s};
pub use marginal_value::{MarginalValue, MarginalValues};
pub use no_progress::{NoProgress, TooManyStops, WrongInterval};
pub use report::{GoodputReport, LostTime, RunCost, Training};
pub use spares::{SpareChoice, SpareSizing};

use timing::RunTiming;

/// A run with a lower ETTR makes no progress: it would take more than ten times as long.
pub const MIN_PROGRESS_SHARE: f64 = 0.1;

/// ETTR of a run at a checkpoint interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Goodput {
    /// Training time between two checkpoints; infinite (`null`) if nothing fails or the run ends
    /// before a checkpoint pays off.
    pub interval_s: f64,
    pub interval_steps: f64,
    /// ETTR: share of time spent on training that is kept.
    pub share: f64,
    /// Whether `share` is at least [`MIN_PROGRESS_SHARE`].
    #[serde(rename = "makes_headway")]
    pub makes_progress: bool,
    /// Mean uptime between failures; infinite (`null`) if nothing fails.
    pub mtbf_s: f64,
    pub failures_per_day: f64,
    /// Stall of training per checkpoint.
    pub stall_s: f64,
    /// Time from the end of the stall until the checkpoint can be restored.
    pub settle_s: f64,
    /// Time from a failure until the run trains again, if nothing else fails and a node is
    /// available.
    pub down_s: f64,
    /// Mean wait for a node, over all failures.
    pub wait_s: f64,
    #[serde(rename = "split")]
    pub breakdown: TimeBreakdown,
}

impl Goodput {
    /// Goodput at the best interval.
    pub fn best(conditions: &Conditions) -> Result<Self, GoodputError> {
        conditions.check()?;
        let timing = RunTiming::new(conditions);
        Ok(Self::new(&timing, interval::best_s(&timing)))
    }

    /// Goodput at an interval, in seconds of training between two checkpoints.
    pub fn at(conditions: &Conditions, interval_s: f64) -> Result<Self, GoodputError> {
        conditions.check()?;
        let timing = RunTiming::new(conditions);
        interval::check(&timing, interval_s)?;
        Ok(Self::new(&timing, interval_s))
    }

    /// A run of `productive_s` without checkpoints, reported with `interval_s`.
    fn for_run_without_checkpoints(timing: &RunTiming, productive_s: f64, interval_s: f64) -> Self {
        Self {
            interval_s,
            interval_steps: interval_s / timing.step_s,
            stall_s: timing.stall_s,
            settle_s: timing.settle_s,
            ..Self::new(&timing.without_checkpoints(), productive_s)
        }
    }

    fn new(timing: &RunTiming, interval_s: f64) -> Self {
        let steady_state = closed_form::steady_state(timing, interval_s);
        let share = steady_state.breakdown.useful_share;
        Self {
            interval_s,
            interval_steps: interval_s / timing.step_s,
            share,
            makes_progress: share >= MIN_PROGRESS_SHARE,
            mtbf_s: 1.0 / timing.failures_per_s,
            failures_per_day: steady_state.failures_per_s * 86_400.0,
            stall_s: timing.stall_s,
            settle_s: timing.settle_s,
            down_s: timing.down_s(),
            wait_s: timing.wait_s,
            breakdown: steady_state.breakdown,
        }
    }
}
