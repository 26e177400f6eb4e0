//! The recent history of a signal, in a limited number of buckets.

use std::collections::VecDeque;

use super::rule::Measure;

/// Default number of buckets in a window. With this number, the length of the window is wrong by at
/// most a thirtieth.
const BUCKETS: u32 = 30;

/// Represents the growth from a rate of zero. The growth is infinite, and JSON cannot represent
/// infinity.
const GROWTH_MAX: f64 = 1e9;

/// The history of one signal for one clause of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    measure: Measure,
    bucket_ms: i64,
    buckets: VecDeque<Bucket>,
    /// The latest value, and when it arrived.
    last: Option<(i64, f64)>,
    first_ms: i64,
}

#[derive(Debug, Clone, PartialEq)]
struct Bucket {
    /// Steady time divided by the bucket length.
    number: i64,
    sum: f64,
    count: u32,
    grown: f64,
    falls: u32,
}

impl Series {
    pub(super) fn new(measure: Measure) -> Self {
        let length_s = match measure {
            Measure::Windows { window_s, .. } => window_s,
            Measure::Growth { over_s, .. } => over_s / 6,
            other => other.lookback_s() / BUCKETS,
        };
        Self {
            measure,
            bucket_ms: i64::from(length_s.max(1)) * 1000,
            buckets: VecDeque::new(),
            last: None,
            first_ms: 0,
        }
    }

    /// Adds a value. If a counter fell, it was reset, so its whole new value counts as growth.
    pub(super) fn push(&mut self, at_ms: i64, value: f64) {
        let before = self.last.replace((at_ms, value));
        if before.is_none() {
            self.first_ms = at_ms;
        }
        let share = before.map_or(1.0, |(before_ms, _)| self.counted_share(at_ms - before_ms));
        let number = at_ms.div_euclid(self.bucket_ms);
        let oldest = number - self.lookback_ms() / self.bucket_ms;
        while self.buckets.front().is_some_and(|bucket| bucket.number < oldest) {
            self.buckets.pop_front();
        }
        if self.buckets.back().is_none_or(|bucket| bucket.number < number) {
            self.buckets.push_back(Bucket { number, sum: 0.0, count: 0, grown: 0.0, falls: 0 });
        }
        // If a value is older than the newest bucket, it counts in that bucket.
        let Some(bucket) = self.buckets.back_mut() else { return };
        bucket.sum += value;
        bucket.count += 1;
        if let Some((_, before)) = before {
            let grown = if value >= before { value - before } else { value };
            bucket.grown += grown * share;
            bucket.falls += u32::from(before >= 1.0 && value < 1.0);
        }
    }

    /// The measure at `now_ms`. `None` while the history is too short.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of days are far below 2^53")]
    pub(super) fn measure(&self, now_ms: i64) -> Option<f64> {
        let (_, newest) = self.last?;
        let covered_s = self.covered_ms(now_ms) as f64 / 1000.0;
        let grown = |from_s: u32, to_s: u32| {
            self.within(now_ms, from_s, to_s).map(|bucket| bucket.grown).sum::<f64>()
        };
        // At first, half a window is enough. Waiting for the whole window would hide a fault right
        // after the start.
        let enough = |over_s: u32| covered_s >= f64::from(over_s) / 2.0;
        let span = |over_s: u32| f64::from(over_s).min(covered_s.max(1.0));
        match self.measure {
            Measure::Last => Some(newest),
            Measure::Mean { over_s } => {
                let (sum, count) =
                    self.within(now_ms, over_s, 0).fold((0.0, 0_u32), |(sum, count), bucket| {
                        (sum + bucket.sum, count + bucket.count)
                    });
                (enough(over_s) && count > 0).then(|| sum / f64::from(count))
            }
            Measure::Increase { over_s } => Some(grown(over_s, 0)),
            Measure::Rate { over_s } => enough(over_s).then(|| grown(over_s, 0) / span(over_s)),
            Measure::Windows { over_s, each_above, .. } => {
                let each_above = f64::from(each_above);
                let count = self
                    .within(now_ms, over_s, 0)
                    .filter(|bucket| bucket.grown > each_above)
                    .count();
                Some(count as f64)
            }
            Measure::Falls { over_s } => {
                let falls: u32 = self.within(now_ms, over_s, 0).map(|bucket| bucket.falls).sum();
                Some(f64::from(falls))
            }
            Measure::Growth { over_s, base_s } => {
                let base = grown(over_s + base_s, over_s) / f64::from(base_s);
                let rate = grown(over_s, 0) / f64::from(over_s);
                let is_covered = covered_s >= f64::from(over_s) + f64::from(base_s) / 2.0;
                is_covered.then(|| {
                    if base > 0.0 {
                        rate / base
                    } else if rate > 0.0 {
                        GROWTH_MAX
                    } else {
                        0.0
                    }
                })
            }
        }
    }

    /// Time since the first value.
    pub(super) fn covered_ms(&self, now_ms: i64) -> i64 {
        if self.last.is_some() { now_ms - self.first_ms } else { 0 }
    }

    /// After a gap, all growth of a counter arrives at once, but part of it happened before the
    /// window. Returns the share of the growth that counts in the window.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of days are far below 2^53")]
    fn counted_share(&self, gap_ms: i64) -> f64 {
        let window_ms = match self.measure {
            Measure::Rate { over_s } | Measure::Growth { over_s, .. } => i64::from(over_s) * 1000,
            _ => return 1.0,
        };
        if gap_ms > window_ms { window_ms as f64 / gap_ms as f64 } else { 1.0 }
    }

    fn lookback_ms(&self) -> i64 {
        i64::from(self.measure.lookback_s()) * 1000
    }

    /// Buckets that began in the last `from_s` seconds, but not in the last `to_s` seconds.
    fn within(&self, now_ms: i64, from_s: u32, to_s: u32) -> impl Iterator<Item = &Bucket> {
        let number = |ago_s: u32| (now_ms - i64::from(ago_s) * 1000).div_euclid(self.bucket_ms);
        let (from, to) = (number(from_s), number(to_s));
        self.buckets
            .iter()
            .filter(move |bucket| bucket.number > from && (to_s == 0 || bucket.number <= to))
    }
}

/// The median. Sorts the values. `None` if there are no values.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    let is_odd = !values.len().is_multiple_of(2);
    Some(if is_odd { upper } else { f64::midpoint(values[middle - 1], upper) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series_with(measure: Measure, values: &[(i64, f64)]) -> Series {
        let mut series = Series::new(measure);
        for (at_s, value) in values {
            series.push(at_s * 1000, *value);
        }
        series
    }

    #[test]
    fn a_counter_reset_counts_from_zero() {
        let measure = Measure::Increase { over_s: 60 };
        let series = series_with(measure, &[(0, 900.0), (10, 910.0), (20, 5.0), (30, 7.0)]);
        assert_eq!(series.measure(30_000), Some(17.0), "the initial value is not growth");
    }

    #[test]
    fn a_rate_needs_half_its_window() {
        let series = series_with(Measure::Rate { over_s: 60 }, &[(0, 0.0), (10, 1000.0)]);
        assert_eq!(series.measure(10_000), None);
        let series = series_with(
            Measure::Rate { over_s: 60 },
            &[(0, 0.0), (10, 300.0), (20, 600.0), (30, 900.0)],
        );
        assert_eq!(series.measure(30_000), Some(30.0));
    }

    #[test]
    fn growth_before_the_window_does_not_count() {
        let series =
            series_with(Measure::Increase { over_s: 60 }, &[(0, 0.0), (10, 5.0), (200, 5.0)]);
        assert_eq!(series.measure(200_000), Some(0.0));
    }

    #[test]
    fn growth_over_a_gap_is_spread_over_the_gap() {
        let values: Vec<(i64, f64)> = (0..6).map(|turn| (turn * 10, 0.0)).collect();
        let mut series = series_with(Measure::Rate { over_s: 60 }, &values);
        series.push(350_000, 3.0);
        let rate = series.measure(350_000).unwrap();
        assert!((rate - 0.01).abs() < 1e-9, "3 in 300 s: {rate}");
    }

    #[test]
    fn windows_falls_and_growth_are_measured() {
        let windows = Measure::Windows { over_s: 300, window_s: 60, each_above: 0 };
        let series =
            series_with(windows, &[(0, 0.0), (30, 1.0), (90, 2.0), (150, 2.0), (210, 3.0)]);
        assert_eq!(series.measure(210_000), Some(3.0));
        let series = series_with(
            Measure::Falls { over_s: 300 },
            &[(0, 1.0), (10, 0.0), (20, 1.0), (30, 0.0)],
        );
        assert_eq!(series.measure(30_000), Some(2.0));
        let growth = Measure::Growth { over_s: 60, base_s: 600 };
        let steady: Vec<(i64, f64)> =
            (0..=66_u32).map(|turn| (i64::from(turn) * 10, f64::from(turn))).collect();
        let ratio = series_with(growth, &steady).measure(660_000).unwrap();
        assert!((0.7..1.3).contains(&ratio), "{ratio}");
        let mut sudden = steady;
        sudden.push((661, 6000.0));
        assert!(series_with(growth, &sudden).measure(661_000).unwrap() > 100.0);
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_increases_are_never_negative(
            steps in proptest::collection::vec((0_i64..5000, 0_u32..1000), 1..500),
        ) {
            let mut series = Series::new(Measure::Increase { over_s: 120 });
            let mut now_ms = 0;
            for (wait_ms, value) in steps {
                now_ms += wait_ms;
                series.push(now_ms, f64::from(value));
                prop_assert!(series.buckets.len() <= 33);
                prop_assert!(series.measure(now_ms).unwrap() >= 0.0);
            }
        }
    }
}
