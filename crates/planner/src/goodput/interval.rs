//! Checkpoint interval.

use super::closed_form::steady_state;
use super::error::GoodputError;
use super::timing::RunTiming;

/// Young's interval (1974): √(2·stall·MTBF).
pub fn young_s(stall_s: f64, mtbf_s: f64) -> f64 {
    (2.0 * stall_s * mtbf_s).sqrt()
}

/// Daly's higher-order interval (2006); the MTBF if the stall is two MTBF or longer.
pub fn daly_s(stall_s: f64, mtbf_s: f64) -> f64 {
    if stall_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let ratio = stall_s / (2.0 * mtbf_s);
    young_s(stall_s, mtbf_s) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - stall_s
}

/// The optimal interval, without rounding to whole steps and without a lower bound.
///
/// With interval τ, stall δ and failure rate λ, the kept work is proportional to
/// τ/(e^(λ(τ+δ)) - 1), which is largest where ln(1 - λτ) + λτ + λδ = 0. Recovery and settling only
/// scale the kept work and do not move the optimum.
fn unbounded_s(failures_per_s: f64, stall_s: f64) -> f64 {
    if stall_s <= 0.0 {
        return 0.0;
    }
    if failures_per_s <= 0.0 {
        return f64::INFINITY;
    }
    let stall = failures_per_s * stall_s;
    if stall > 30.0 {
        // At the optimum, 1 - λτ is below e^-31, so τ is 1/λ.
        return 1.0 / failures_per_s;
    }
    // Both arguments of `min` are above the root, and Newton's method converges monotonically from
    // there.
    let mut share = (2.0 * stall).sqrt().min(1.0 - (-1.0 - stall).exp());
    for _ in 0..32 {
        let step = ((-share).ln_1p() + share + stall) * (1.0 - share) / share;
        share += step;
        if step.abs() <= 1e-12 * share {
            break;
        }
    }
    share / failures_per_s
}

/// The shortest possible interval: at least a step, and long enough for a checkpoint to settle.
pub(super) fn min_s(timing: &RunTiming) -> f64 {
    (timing.settle_s / timing.step_s).ceil().max(1.0) * timing.step_s
}

/// The best interval in whole steps; infinite if nothing fails.
pub(super) fn best_s(timing: &RunTiming) -> f64 {
    let min_s = min_s(timing);
    let all_s = unbounded_s(timing.failures_per_s, timing.stall_s);
    // If the interval is shorter than the time of a write to storage, storage writes at its own
    // pace. The interval then does not change how much work is lost when the run restores from
    // storage. Therefore only failures after which the run restores from memory determine the
    // optimum.
    let unconstrained_s = timing.storage_tier.map_or(all_s, |storage_tier| {
        let memory_s =
            unbounded_s(timing.failures_per_s * (1.0 - storage_tier.share), timing.stall_s);
        memory_s.min(all_s.max(storage_tier.write_s))
    });
    if !unconstrained_s.is_finite() {
        return f64::INFINITY;
    }
    let below_s = (unconstrained_s / timing.step_s).floor() * timing.step_s;
    let mut best = (min_s, steady_state(timing, min_s).breakdown.useful_share);
    let mut consider = |interval_s: f64| {
        if interval_s > min_s {
            let useful = steady_state(timing, interval_s).breakdown.useful_share;
            if useful > best.1 {
                best = (interval_s, useful);
            }
        }
    };
    consider(below_s);
    consider(below_s + timing.step_s);
    if let Some(storage_tier) = timing.storage_tier {
        // While storage writes one checkpoint, several in-memory checkpoints pass. The loss is
        // smallest if a checkpoint is taken exactly when storage becomes ready.
        let per_write =
            (storage_tier.write_s / (unconstrained_s.max(min_s) + timing.stall_s)).floor();
        for per_write in [per_write, per_write + 1.0, per_write + 2.0] {
            if per_write >= 1.0 {
                let ready_s = storage_tier.write_s / per_write - timing.stall_s;
                consider((ready_s / timing.step_s).ceil() * timing.step_s);
            }
        }
    }
    best.0
}

/// Checks that an interval is possible.
pub(super) fn check(timing: &RunTiming, interval_s: f64) -> Result<(), GoodputError> {
    super::error::positive("interval_s", interval_s)?;
    if interval_s < timing.step_s {
        return Err(GoodputError::BelowStep { interval_s, step_s: timing.step_s });
    }
    if interval_s < timing.settle_s {
        return Err(GoodputError::BelowWrite {
            interval_s,
            write_s: timing.settle_s,
            min_s: min_s(timing),
            faster: timing.settle_s / interval_s,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kept work, up to a constant factor.
    fn scaled(failures_per_s: f64, stall_s: f64, interval_s: f64) -> f64 {
        interval_s / (failures_per_s * (interval_s + stall_s)).exp_m1()
    }

    #[test]
    fn optimum_beats_its_neighbourhood() {
        for mtbf_s in [60.0, 1e3, 1e5, 1e7] {
            for stall_s in [1e-3, 1.0, 60.0, 600.0] {
                let failures_per_s = 1.0 / mtbf_s;
                let best = unbounded_s(failures_per_s, stall_s);
                for factor in [0.9, 0.99, 1.01, 1.1] {
                    let (optimum, other) = (
                        scaled(failures_per_s, stall_s, best),
                        scaled(failures_per_s, stall_s, best * factor),
                    );
                    assert!(optimum >= other * (1.0 - 1e-12), "{mtbf_s} {stall_s} {factor}");
                }
            }
        }
    }

    #[test]
    fn young_and_daly_are_close_to_the_optimum() {
        let (stall_s, mtbf_s) = (30.0, 11_136.0);
        let exact_s = unbounded_s(1.0 / mtbf_s, stall_s);
        assert!((young_s(stall_s, mtbf_s) - 817.4).abs() < 0.1);
        assert!((daly_s(stall_s, mtbf_s) / exact_s - 1.0).abs() < 1e-3);
        assert!((young_s(stall_s, mtbf_s) / exact_s - 1.0).abs() < 0.05);
        assert!((daly_s(300.0, 100.0) - 100.0).abs() < 1e-12);
    }

    #[test]
    fn interval_is_finite_for_a_long_stall() {
        // The interval is never longer than the MTBF, which is 1 s here.
        let interval_s = unbounded_s(1.0, 500.0);
        assert!(interval_s > 0.99 && interval_s <= 1.0, "{interval_s}");
    }
}
