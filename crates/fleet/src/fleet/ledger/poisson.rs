//! The confidence interval of a rate, from a number of independent events.

/// The probability above the 95 % confidence interval, which is also the probability below it.
const TAIL: f64 = 0.025;
/// Number of bisection steps. It is enough to determine every bit of a double.
const STEPS: u32 = 80;

/// Returns the 95 % confidence interval of the mean of a Poisson distribution, after one draw of
/// `events` (Garwood, Biometrika 28, 1936).
pub(super) fn interval(events: u64) -> (f64, f64) {
    let count = as_f64(events);
    // The mean plus ten standard deviations is above the interval for every count.
    let most = count + 10.0 * (count + 1.0).sqrt() + 10.0;
    let low = if events == 0 {
        0.0
    } else {
        // The mean for which the probability of `events` or more is `TAIL`.
        bisect(0.0, count, |mean| 1.0 - at_most(events - 1, mean) < TAIL)
    };
    // The mean for which the probability of `events` or fewer is `TAIL`.
    let high = bisect(count, most, |mean| at_most(events, mean) > TAIL);
    (low, high)
}

/// The point at which `is_below` changes from true to false.
fn bisect(mut low: f64, mut high: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..STEPS {
        let middle = low.midpoint(high);
        if is_below(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low.midpoint(high)
}

/// Probability of at most `events` for this mean. The terms are summed from `events` down to 0.
/// They are computed as logarithms, so that no term overflows.
fn at_most(events: u64, mean: f64) -> f64 {
    if mean <= 0.0 {
        return 1.0;
    }
    let ln_mean = mean.ln();
    let mut ln_term = as_f64(events) * ln_mean - mean - ln_factorial(events);
    let mut sum = 0.0;
    for event in (0..=events).rev() {
        let term = ln_term.exp();
        sum += term;
        // Below the mean, the terms only shrink.
        if as_f64(event) < mean && term < sum * f64::EPSILON {
            break;
        }
        ln_term += as_f64(event).max(1.0).ln() - ln_mean;
    }
    sum.min(1.0)
}

/// Logarithm of the factorial. From 16 on, it is computed with Stirling's series, whose error is
/// below 1e-9 there.
fn ln_factorial(number: u64) -> f64 {
    if number < 16 {
        return (2..=number).map(|factor| as_f64(factor).ln()).sum();
    }
    let n = as_f64(number);
    n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + 1.0 / (12.0 * n)
        - 1.0 / (360.0 * n.powi(3))
}

#[expect(clippy::cast_precision_loss, reason = "counts of faults are far below 2^53")]
pub(super) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Garwood's table, as printed in textbooks.
    #[test]
    fn intervals_match_the_published_table() {
        let published = [
            (0, 0.0, 3.6889),
            (1, 0.0253, 5.5716),
            (2, 0.2422, 7.2247),
            (5, 1.6235, 11.6683),
            (10, 4.7954, 18.3904),
            (50, 37.1110, 65.9188),
            (100, 81.3635, 121.6275),
        ];
        for (events, low, high) in published {
            let found = interval(events);
            let is_close = (found.0 - low).abs() < 2e-3 && (found.1 - high).abs() < 2e-3;
            assert!(is_close, "{events}: {found:?}, published {low} to {high}");
        }
    }

    #[test]
    fn large_counts_approach_the_normal_distribution() {
        let (low, high) = interval(100_000);
        assert!((low - 99_381.0).abs() < 2.0 && (high - 100_622.0).abs() < 2.0, "{low} {high}");
    }
}
