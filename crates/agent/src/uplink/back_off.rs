//! Computes the time of the next connection attempt by exponential back-off with full jitter. The
//! functions only compute with instants.

use std::time::Duration;

use farrier_fleet::fleet::reconnect::RECONNECT_WAIT_MAX_S;
use tokio::time::Instant;

/// Upper bound of the first wait. It applies until the server has sent a bound that suits the size
/// of its fleet.
const FIRST: Duration = Duration::from_secs(1);
/// Minimum time between two attempts. It protects a server that accepts sessions and ends them at
/// once.
const ATTEMPT_INTERVAL_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(RECONNECT_WAIT_MAX_S as u64);
/// The longest back-off while an urgent finding is unreported. Also the minimum time between two
/// waits that an urgent finding ends early. It is short enough for a fatal finding. If every node
/// in a rack has a fatal finding, there are still five times fewer attempts than with
/// [`ATTEMPT_INTERVAL_MIN`].
pub(super) const URGENT_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct BackOff {
    /// Number of attempts since the last accepted session.
    failures: u32,
    /// The upper bound of the first wait.
    first: Duration,
    /// When the last attempt began.
    began: Option<Instant>,
    /// When an urgent finding last ended a wait early.
    cut_short: Option<Instant>,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { failures: 0, first: FIRST, began: None, cut_short: None }
    }
}

impl BackOff {
    /// Records that an attempt begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// Records that the server accepted a session. When the session ends, the agents of the fleet
    /// spread their first attempts over `spread`.
    pub(super) fn accepted(&mut self, spread: Duration) {
        self.failures = 0;
        self.first = spread.clamp(FIRST, WAIT_MAX);
    }

    /// Restarts the back-off at its first step.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// When the next attempt is due. `jitter` is a number in 0..=1 by which the whole wait is
    /// multiplied.
    pub(super) fn next_attempt(&mut self, now: Instant, is_urgent: bool, jitter: f64) -> Instant {
        let longest = if is_urgent { URGENT_WAIT_MAX } else { WAIT_MAX };
        let step = self.first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        self.not_before(now + step.mul_f64(jitter))
    }

    /// When an urgent finding may trigger an attempt. This is at once, unless another urgent
    /// finding has triggered an attempt recently.
    pub(super) fn urgent_attempt(&self, now: Instant) -> Instant {
        let again = self.cut_short.map_or(now, |at| at + URGENT_WAIT_MAX);
        self.not_before(now.max(again))
    }

    /// Records that an urgent finding ended a wait early.
    pub(super) fn cut_short(&mut self, at: Instant) {
        self.cut_short = Some(at);
    }

    fn not_before(&self, at: Instant) -> Instant {
        self.began.map_or(at, |began| at.max(began + ATTEMPT_INTERVAL_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_and_restart_after_an_accepted_session() {
        let now = Instant::now();
        let mut back_off = BackOff::default();
        let mut waits = || {
            let wait = |back_off: &mut BackOff| back_off.next_attempt(now, false, 1.0) - now;
            let seconds: Vec<u64> = (0..7).map(|_| wait(&mut back_off).as_secs()).collect();
            back_off.accepted(Duration::ZERO);
            seconds
        };
        assert_eq!(waits(), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(waits(), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(BackOff::default().next_attempt(now, false, 0.25) - now, FIRST / 4);
    }

    #[test]
    fn an_unreported_urgent_finding_keeps_waits_short() {
        let now = Instant::now();
        let mut back_off = BackOff { failures: u32::MAX, ..BackOff::default() };
        assert_eq!(back_off.next_attempt(now, true, 1.0) - now, URGENT_WAIT_MAX);
        assert_eq!(back_off.next_attempt(now, false, 1.0) - now, WAIT_MAX);
    }

    /// Checks the busiest second after all sessions of a fleet end at once and the server is away
    /// for 2 s.
    #[test]
    fn reconnects_of_a_fleet_are_spread_out() {
        let now = Instant::now();
        let agents = 100_000_u32;
        let mut accepted = [0_u32; 120];
        for agent in 0..agents {
            let mut back_off = BackOff::default();
            back_off.accepted(Duration::from_secs(30));
            let mut at = now;
            for attempt in 0..10 {
                // Use a low-discrepancy sequence instead of random numbers. It is evenly spread
                // over 0 to 1.
                let jitter =
                    (f64::from(agent) * 0.618_033_99 + f64::from(attempt) * 0.754_877_67) % 1.0;
                at = back_off.next_attempt(at, false, jitter);
                if at >= now + Duration::from_secs(2) {
                    break;
                }
                back_off.begin(at);
            }
            accepted[usize::try_from((at - now).as_secs()).unwrap()] += 1;
        }
        let busiest = accepted.iter().max().unwrap();
        assert!(*busiest < agents / 16, "{accepted:?}");
        assert_eq!(accepted.iter().sum::<u32>(), agents);
    }
}
