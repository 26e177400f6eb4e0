//! Exact time breakdown for exponentially distributed times between failures.
//!
//! After a restart a run trains for `interval`, stalls for `stall`, and repeats. A checkpoint can
//! be restored `settle` seconds after its stall. With λ failures per second, the work up to the
//! first checkpoint after a restart is kept if nothing fails for `interval + stall + settle`, and
//! each further interval is kept if nothing fails for another `interval + stall`. A run trains for
//! 1/λ seconds between two failures on average. The part of this work that is kept is
//!
//! ```text
//! interval · e^(-λ·settle) / (e^(λ·(interval + stall)) - 1)
//! ```
//!
//! A failure costs detection and the wait for a node, during which nothing else can fail, and a
//! recovery R that another failure can interrupt: (e^(λR) - 1)/λ on average. With settle = 0, the
//! expected time per kept interval is that of Daly (2006) and of Bougeret et al. (2011), which is
//! `e^(λR) (1/λ + D) (e^(λ(τ+δ)) - 1)` with downtime D, interval τ and stall δ.
//!
//! With in-memory checkpoints, a share of failures falls back to storage. Between two fallbacks,
//! the run progresses at the pace that the in-memory checkpoints allow. Fallbacks roll this work
//! back as failures do above, so the same formula holds, with the interval of storage writes in
//! place of the in-memory interval.

use serde::Serialize;

use super::timing::{RunTiming, StorageTier};

/// Where the time of a run goes, as shares.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TimeBreakdown {
    /// Training that is kept: goodput, ETTR.
    pub useful_share: f64,
    /// Stalls of checkpoints that are kept.
    pub checkpoint_stalls_share: f64,
    /// Training rolled back and repeated, including its checkpoints.
    pub lost_work_share: f64,
    /// Time from a failure to its detection.
    pub detection_share: f64,
    pub recovery_share: f64,
    /// Waiting for a spare or repaired node.
    pub waiting_share: f64,
    pub planned_share: f64,
}

/// Time breakdown and failure rate in steady state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SteadyState {
    pub(super) breakdown: TimeBreakdown,
    pub(super) failures_per_s: f64,
}

/// x / (e^x - 1), which is 1 at 0.
fn damping(x: f64) -> f64 {
    if x < 1e-9 { 1.0 - x / 2.0 } else { x / x.exp_m1() }
}

/// Kept share of training time, if all failures restore the latest checkpoint.
pub(super) fn kept_share(timing: &RunTiming, interval_s: f64) -> f64 {
    // Without failures the interval may be infinite.
    let trained = 1.0 / (1.0 + timing.stall_s / interval_s);
    if timing.failures_per_s <= 0.0 {
        return trained;
    }
    let period_s = interval_s + timing.stall_s;
    trained
        * damping(timing.failures_per_s * period_s)
        * (-timing.failures_per_s * timing.settle_s).exp()
}

/// Recovery time per second of training, and the share of failures that are restored from storage.
fn recovery(timing: &RunTiming) -> (f64, f64) {
    let memory = (timing.failures_per_s * timing.recovery_s).exp_m1();
    let Some(storage_tier) = timing.storage_tier else { return (memory, 0.0) };
    let storage = (timing.failures_per_s * storage_tier.recovery_s).exp_m1();
    // Probability that a recovery from memory is interrupted and may then need storage.
    let cut = -(-timing.failures_per_s * timing.recovery_s).exp_m1();
    let completed = 1.0 - cut * (1.0 - storage_tier.share);
    let from_memory = cut * (1.0 + storage_tier.share * storage) / completed;
    let to_storage = cut * storage_tier.share / completed;
    let memory_share = 1.0 - storage_tier.share;
    (
        memory_share * from_memory + storage_tier.share * storage,
        storage_tier.share + memory_share * to_storage,
    )
}

/// Of the work that in-memory checkpoints keep, the share that storage keeps too.
fn kept_by_storage(
    timing: &RunTiming,
    storage_tier: &StorageTier,
    interval_s: f64,
    kept: f64,
    fallback: f64,
) -> f64 {
    if kept <= 0.0 {
        return 0.0;
    }
    // Without fallbacks the interval may be infinite.
    if fallback <= 0.0 || timing.failures_per_s <= 0.0 {
        return 1.0;
    }
    let per_work_s = fallback * timing.failures_per_s / kept;
    // In-memory checkpoints keep work in whole intervals. The probability that no fallback occurs
    // before the next interval is kept is the same for every interval.
    let every = storage_every(timing, storage_tier, interval_s);
    let log_chance = (per_work_s * interval_s).ln_1p();
    let kept_intervals = per_work_s * interval_s * every / (log_chance * every).exp_m1();
    // A write continues only while the run trains, and a fallback during the write loses it.
    kept_intervals * (-fallback * timing.failures_per_s * storage_tier.write_s).exp()
}

/// Intervals between two writes to storage: a write starts when the previous one is done.
pub(super) fn storage_every(
    timing: &RunTiming,
    storage_tier: &StorageTier,
    interval_s: f64,
) -> f64 {
    let busy = storage_tier.write_s / (interval_s + timing.stall_s);
    busy.max(storage_tier.interval_s / interval_s).ceil().max(1.0)
}

/// Time breakdown with a checkpoint interval.
pub(super) fn steady_state(timing: &RunTiming, interval_s: f64) -> SteadyState {
    // All times are in seconds per second of training, whether or not the training is kept.
    let (recovering, fallback) = recovery(timing);
    let exposed = 1.0 + recovering;
    let detection = timing.failures_per_s * exposed * timing.detection_s;
    let waiting = timing.failures_per_s * exposed * timing.wait_s;
    let unplanned = exposed + detection + waiting;
    let stopped = timing.stopped_share().min(1.0);
    let total = unplanned / (1.0 - stopped);
    if !total.is_finite() {
        let breakdown = TimeBreakdown { recovery_share: 1.0, ..TimeBreakdown::default() };
        return SteadyState { breakdown, failures_per_s: timing.failures_per_s };
    }
    let memory = kept_share(timing, interval_s);
    let useful = timing.storage_tier.as_ref().map_or(memory, |storage_tier| {
        memory * kept_by_storage(timing, storage_tier, interval_s, memory, fallback)
    });
    let stalls = useful * timing.stall_s / interval_s;
    let breakdown = TimeBreakdown {
        useful_share: useful / total,
        checkpoint_stalls_share: stalls / total,
        lost_work_share: (1.0 - useful - stalls).max(0.0) / total,
        detection_share: detection / total,
        recovery_share: recovering / total,
        waiting_share: waiting / total,
        planned_share: stopped,
    };
    SteadyState { breakdown, failures_per_s: timing.failures_per_s * exposed / total }
}
