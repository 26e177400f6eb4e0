//! How often to save.

use super::closed_form::balance;
use super::error::GoodputError;
use super::timing::Timing;

/// Young's interval (1974): √(2·stall·MTBF).
pub fn young_s(stall_s: f64, mtbf_s: f64) -> f64 {
    (2.0 * stall_s * mtbf_s).sqrt()
}

/// Daly's interval (2006), of higher order; the MTBF where a stall takes two of them or more.
pub fn daly_s(stall_s: f64, mtbf_s: f64) -> f64 {
    if stall_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let ratio = stall_s / (2.0 * mtbf_s);
    young_s(stall_s, mtbf_s) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - stall_s
}

/// The interval at which most work is kept, whole steps and lower bounds aside.
///
/// Where τ/(e^(λ(τ+δ)) - 1) is greatest, ln(1 - λτ) + λτ + λδ = 0. What comes after a failure,
/// and how long a checkpoint takes to settle, only scale what is kept: neither moves the optimum.
fn unbounded_s(per_s: f64, stall_s: f64) -> f64 {
    if stall_s <= 0.0 {
        return 0.0;
    }
    if per_s <= 0.0 {
        return f64::INFINITY;
    }
    let stall = per_s * stall_s;
    if stall > 30.0 {
        // 1 - λτ is below e^-31.
        return 1.0 / per_s;
    }
    // Both are above the root, and Newton's steps come down to it from there.
    let mut share = (2.0 * stall).sqrt().min(1.0 - (-1.0 - stall).exp());
    for _ in 0..32 {
        let step = ((-share).ln_1p() + share + stall) * (1.0 - share) / share;
        share += step;
        if step.abs() <= 1e-12 * share {
            break;
        }
    }
    share / per_s
}

/// The shortest interval that is possible: a step, and all the time until a checkpoint settled.
pub(super) fn least_s(timing: &Timing) -> f64 {
    (timing.settle_s / timing.step_s).ceil().max(1.0) * timing.step_s
}

/// The best interval of whole steps; without end where nothing fails.
pub(super) fn best_s(timing: &Timing) -> f64 {
    let least_s = least_s(timing);
    let all_s = unbounded_s(timing.per_s, timing.stall_s);
    // What falls back to storage loses the same at any interval that storage keeps up with, so it
    // does not ask for more saves.
    let free_s = timing.behind.map_or(all_s, |behind| {
        let near_s = unbounded_s(timing.per_s * (1.0 - behind.share), timing.stall_s);
        near_s.min(all_s.max(behind.write_s))
    });
    if !free_s.is_finite() {
        return f64::INFINITY;
    }
    let below_s = (free_s / timing.step_s).floor() * timing.step_s;
    let mut best = (least_s, balance(timing, least_s).split.useful_share);
    let mut consider = |interval_s: f64| {
        if interval_s > least_s {
            let useful = balance(timing, interval_s).split.useful_share;
            if useful > best.1 {
                best = (interval_s, useful);
            }
        }
    };
    consider(below_s);
    consider(below_s + timing.step_s);
    if let Some(behind) = timing.behind {
        // Storage takes one copy of several; least is lost where the next comes as it is ready.
        let copies = (behind.write_s / (free_s.max(least_s) + timing.stall_s)).floor();
        for copies in [copies, copies + 1.0, copies + 2.0] {
            if copies >= 1.0 {
                let ready_s = behind.write_s / copies - timing.stall_s;
                consider((ready_s / timing.step_s).ceil() * timing.step_s);
            }
        }
    }
    best.0
}

/// Whether an interval is possible.
pub(super) fn check(timing: &Timing, interval_s: f64) -> Result<(), GoodputError> {
    super::error::positive("interval_s", interval_s)?;
    if interval_s < timing.step_s {
        return Err(GoodputError::BelowStep { interval_s, step_s: timing.step_s });
    }
    if interval_s < timing.settle_s {
        return Err(GoodputError::BelowWrite {
            interval_s,
            write_s: timing.settle_s,
            least_s: least_s(timing),
            faster: timing.settle_s / interval_s,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept, to a factor.
    fn scaled(per_s: f64, stall_s: f64, interval_s: f64) -> f64 {
        interval_s / (per_s * (interval_s + stall_s)).exp_m1()
    }

    #[test]
    fn none_near_it_is_better() {
        for mtbf_s in [60.0, 1e3, 1e5, 1e7] {
            for stall_s in [1e-3, 1.0, 60.0, 600.0] {
                let per_s = 1.0 / mtbf_s;
                let best = unbounded_s(per_s, stall_s);
                for factor in [0.9, 0.99, 1.01, 1.1] {
                    let (here, there) =
                        (scaled(per_s, stall_s, best), scaled(per_s, stall_s, best * factor));
                    assert!(here >= there * (1.0 - 1e-12), "{mtbf_s} {stall_s} {factor}");
                }
            }
        }
    }

    #[test]
    fn young_and_daly_come_near_it() {
        let (stall_s, mtbf_s) = (30.0, 11_136.0);
        let exact_s = unbounded_s(1.0 / mtbf_s, stall_s);
        assert!((young_s(stall_s, mtbf_s) - 817.4).abs() < 0.1);
        assert!((daly_s(stall_s, mtbf_s) / exact_s - 1.0).abs() < 1e-3);
        assert!((young_s(stall_s, mtbf_s) / exact_s - 1.0).abs() < 0.05);
        assert!((daly_s(300.0, 100.0) - 100.0).abs() < 1e-12);
    }

    #[test]
    fn a_long_stall_still_has_an_interval() {
        // Never more than the MTBF, whatever the stall.
        let interval_s = unbounded_s(1.0, 500.0);
        assert!(interval_s > 0.99 && interval_s <= 1.0, "{interval_s}");
    }
}
