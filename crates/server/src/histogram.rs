//! A histogram of durations that threads update without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds. A commit on an SSD takes about a millisecond. If the
/// disk hangs, a commit takes ten seconds, because SQLite gives up then.
const BOUNDS_S: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// Number of durations in each bucket. The last bucket is for durations above all bounds.
    counts: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

/// A copy of the counts. The buckets are cumulative, as Prometheus expects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HistogramSnapshot {
    /// Upper bound of each bucket in seconds, and the number of durations up to that bound.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) count: u64,
    pub(crate) sum_s: f64,
}

impl Histogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BOUNDS_S.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS_S.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> HistogramSnapshot {
        let mut count = 0;
        let mut add = |bucket: &AtomicU64| {
            count += bucket.load(Ordering::Relaxed);
            count
        };
        let buckets =
            BOUNDS_S.iter().zip(&self.counts).map(|(bound, bucket)| (*bound, add(bucket)));
        let buckets = buckets.collect();
        add(&self.counts[BOUNDS_S.len()]);
        let sum_s = Duration::from_micros(self.sum_us.load(Ordering::Relaxed)).as_secs_f64();
        HistogramSnapshot { buckets, count, sum_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_count_in_all_buckets_from_their_own_on() {
        let histogram = Histogram::default();
        for ms in [1, 2, 300, 60_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let HistogramSnapshot { buckets, count, sum_s } = histogram.snapshot();
        let at = |bound: f64| buckets.iter().find(|bucket| bucket.0 >= bound).unwrap().1;
        assert_eq!((at(0.001), at(0.0025), at(0.25), at(0.5), at(10.0)), (1, 2, 2, 3, 3));
        assert_eq!((count, sum_s), (4, 60.303));
    }
}
