//! Where time goes, exactly, when failures come at random (exponential times between them).
//!
//! After a restart a run trains `interval`, stalls for `stall`, and so on; a checkpoint can be
//! restored once it has settled. With λ failures a second, the first checkpoint after a restart
//! counts if nothing fails for `interval + stall + settle`, each further one if nothing fails for
//! another `interval + stall`. Between two failures λ⁻¹ of training goes by, and the work kept is
//!
//! ```text
//! interval · e^(-λ·settle) / (e^(λ·(interval + stall)) - 1)
//! ```
//!
//! A failure costs detection and the wait for a node, when nothing more can fail, and a recovery R
//! that a failure can end too: (e^(λR) - 1)/λ on average. With settle = 0 this is the expected
//! time of Daly (2006) and of Bougeret et al. (2011), `e^(λR) (1/λ + D) (e^(λ(τ+δ)) - 1)`.
//!
//! With copies in memory, a share of failures falls back to storage. Seen from storage, work goes
//! on at the pace of the copies and is thrown back at a rate for each second of work; the same
//! formula holds for it, with the interval of storage in place of theirs.

use serde::Serialize;

use super::timing::{Behind, Timing};

/// Where the time of a run goes, as shares of it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Split {
    /// Training that is kept.
    pub useful_share: f64,
    /// Waiting for checkpoints that are kept.
    pub checkpoint_stalls_share: f64,
    /// Training that is done again, its checkpoints with it.
    pub lost_work_share: f64,
    /// Until failures are known.
    pub detection_share: f64,
    /// Restart, load, warm-up.
    pub recovery_share: f64,
    /// Waiting for a node.
    pub waiting_share: f64,
    /// Planned stops.
    pub planned_share: f64,
}

/// The split, and how often something fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Balance {
    pub(super) split: Split,
    pub(super) failures_per_s: f64,
}

/// x / (e^x - 1), which is 1 at 0.
fn damping(x: f64) -> f64 {
    if x < 1e-9 { 1.0 - x / 2.0 } else { x / x.exp_m1() }
}

/// Work that is kept, of each second of training, where all failures restore the nearest copy.
pub(super) fn kept(timing: &Timing, interval_s: f64) -> f64 {
    // Nothing fails: the interval may be without end.
    let trained = 1.0 / (1.0 + timing.stall_s / interval_s);
    if timing.per_s <= 0.0 {
        return trained;
    }
    let period_s = interval_s + timing.stall_s;
    trained * damping(timing.per_s * period_s) * (-timing.per_s * timing.settle_s).exp()
}

/// Time in recovery for each second of training, and the share of failures that end in storage.
fn recovery(timing: &Timing) -> (f64, f64) {
    let near = (timing.per_s * timing.recovery_s).exp_m1();
    let Some(behind) = timing.behind else { return (near, 0.0) };
    let far = (timing.per_s * behind.recovery_s).exp_m1();
    // A recovery from memory is cut off with this chance, and may then need storage.
    let cut = -(-timing.per_s * timing.recovery_s).exp_m1();
    let whole = 1.0 - cut * (1.0 - behind.share);
    let from_near = cut * (1.0 + behind.share * far) / whole;
    let to_far = cut * behind.share / whole;
    let near_share = 1.0 - behind.share;
    (near_share * from_near + behind.share * far, behind.share + near_share * to_far)
}

/// Share of the work kept by copies in memory that storage keeps too.
fn kept_by_storage(
    timing: &Timing,
    behind: &Behind,
    interval_s: f64,
    kept: f64,
    fallback: f64,
) -> f64 {
    if kept <= 0.0 {
        return 0.0;
    }
    // Nothing falls back: the interval may be without end.
    if fallback <= 0.0 || timing.per_s <= 0.0 {
        return 1.0;
    }
    let per_work_s = fallback * timing.per_s / kept;
    // Work comes in whole intervals, each kept until the next fallback with the same chance.
    let every = storage_every(timing, behind, interval_s);
    let log_chance = (per_work_s * interval_s).ln_1p();
    let held = per_work_s * interval_s * every / (log_chance * every).exp_m1();
    // Storage is written while the run trains.
    held * (-fallback * timing.per_s * behind.write_s).exp()
}

/// Intervals between two writes to storage: the next begins when the last is done.
pub(super) fn storage_every(timing: &Timing, behind: &Behind, interval_s: f64) -> f64 {
    let busy = behind.write_s / (interval_s + timing.stall_s);
    busy.max(behind.interval_s / interval_s).ceil().max(1.0)
}

/// Where time goes with checkpoints at an interval.
pub(super) fn balance(timing: &Timing, interval_s: f64) -> Balance {
    // All in seconds for each second of training, kept or not.
    let (recovering, fallback) = recovery(timing);
    let exposed = 1.0 + recovering;
    let detection = timing.per_s * exposed * timing.detection_s;
    let waiting = timing.per_s * exposed * timing.wait_s;
    let unplanned = exposed + detection + waiting;
    let stopped = timing.stopped_share().min(1.0);
    let total = unplanned / (1.0 - stopped);
    if !total.is_finite() {
        let split = Split { recovery_share: 1.0, ..Split::default() };
        return Balance { split, failures_per_s: timing.per_s };
    }
    let near = kept(timing, interval_s);
    let useful = timing
        .behind
        .as_ref()
        .map_or(near, |behind| near * kept_by_storage(timing, behind, interval_s, near, fallback));
    let stalls = useful * timing.stall_s / interval_s;
    let split = Split {
        useful_share: useful / total,
        checkpoint_stalls_share: stalls / total,
        lost_work_share: (1.0 - useful - stalls).max(0.0) / total,
        detection_share: detection / total,
        recovery_share: recovering / total,
        waiting_share: waiting / total,
        planned_share: stopped,
    };
    Balance { split, failures_per_s: timing.per_s * exposed / total }
}
