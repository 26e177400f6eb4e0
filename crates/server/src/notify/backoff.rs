//! How long a worker waits after a failed delivery.

use std::time::Duration;

/// Wait after the first failure. It doubles with each failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait. A receiver that returns gets its notifications within this time.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// The wait after this many failures in a row. `jitter` is from 0 to 1: receivers that failed
/// together are not tried again together.
pub(super) fn wait(failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let full = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    full.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_limit_and_is_spread() {
        let waits: Vec<u64> = (1..10).map(|failures| wait(failures, 1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(wait(3, 0.0), Duration::from_secs(2));
        assert_eq!(wait(u32::MAX, 1.0), LONGEST);
    }
}
