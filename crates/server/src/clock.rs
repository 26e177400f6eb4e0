//! The log's time: the one clock for every rule that has to do with time (leases, heartbeat timeouts, freezes, windows, approvals).
//!
//! It follows the wall clock. A wall clock that is stepped, by hand or by NTP, is noticed against the monotonic clock: until the
//! controller has written the step to the log, the log's time goes on as if there had been none.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// A difference beyond this is a step. NTP slews at 0.5 ms a second, and it is looked at every second.
const STEP_MIN: SignedDuration = SignedDuration::from_secs(2);
/// Both clocks are read within this time, or again: a thread that was not scheduled in between sees no step.
const READ_MAX: Duration = Duration::from_millis(100);
/// How often they are read again; after that a step is noticed with the next look.
const READS_MAX: u32 = 10;

/// A step of the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// What the log's clock would show without it.
    pub(crate) from: Timestamp,
    /// What the wall clock shows.
    pub(crate) to: Timestamp,
}

/// One for the server.
#[derive(Debug)]
pub(crate) struct LogClock {
    /// The last time that was given, and when that was.
    last: Mutex<(Timestamp, Instant)>,
}

impl LogClock {
    /// Goes on from the last entry of a log. The wall clock may be ahead of it by any time: the server was down. Where it is behind, it
    /// was stepped.
    pub(crate) fn after(last: Timestamp) -> Self {
        let wall = Timestamp::now();
        let start = if wall.duration_since(last) > -STEP_MIN { wall.max(last) } else { last };
        Self { last: Mutex::new((start, Instant::now())) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.read(|_, expected| expected)
    }

    /// A step that is not in the log yet. From here on the log's time is what the wall clock shows.
    pub(crate) fn take_step(&self) -> Option<Step> {
        let mut step = None;
        self.read(|wall, expected| {
            step = Some(Step { from: expected, to: wall });
            wall
        });
        step
    }

    /// The time by now; `on_step` gives it where the wall clock was stepped.
    fn read(&self, on_step: impl FnOnce(Timestamp, Timestamp) -> Timestamp) -> Timestamp {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall, now, is_exact) = both_clocks();
        let passed = SignedDuration::try_from(now.saturating_duration_since(last.1));
        let passed = passed.unwrap_or_default();
        let (before, expected) = (last.0, last.0.checked_add(passed).unwrap_or(last.0));
        let time = match judged(before, expected, wall) {
            Judged::Follows(time) => time,
            Judged::Stepped if is_exact => on_step(wall, expected),
            Judged::Stepped => expected,
        };
        *last = (time, now);
        time
    }
}

/// The wall clock and the monotonic clock, read at one moment; whether they really were.
fn both_clocks() -> (Timestamp, Instant, bool) {
    let mut reads = 0;
    loop {
        let (before, wall, after) = (Instant::now(), Timestamp::now(), Instant::now());
        let is_exact = after.duration_since(before) <= READ_MAX;
        reads += 1;
        if is_exact || reads == READS_MAX {
            return (wall, after, is_exact);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Judged {
    /// The log's time, which follows the wall clock and does not go back.
    Follows(Timestamp),
    /// The wall clock was stepped.
    Stepped,
}

fn judged(last: Timestamp, expected: Timestamp, wall: Timestamp) -> Judged {
    let skew = wall.duration_since(expected);
    if skew.abs() > STEP_MIN { Judged::Stepped } else { Judged::Follows(wall.max(last)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: SignedDuration = SignedDuration::from_secs(1);
    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    #[test]
    fn it_follows_a_wall_clock_that_is_slewed_and_sees_one_that_is_stepped() {
        let start: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let expected = start + SECOND;
        assert_eq!(judged(start, expected, expected), Judged::Follows(expected));
        let slewed = expected - SECOND * 2;
        assert_eq!(judged(start, expected, slewed), Judged::Follows(start), "it does not go back");
        assert_eq!(judged(start, expected, expected + SECOND), Judged::Follows(expected + SECOND));
        assert_eq!(judged(start, expected, expected - HOUR), Judged::Stepped);
        assert_eq!(judged(start, expected, expected + HOUR), Judged::Stepped);
    }

    #[test]
    fn a_log_that_is_ahead_of_the_wall_clock_shows_a_step_once() {
        let ahead = Timestamp::now() + HOUR;
        let clock = LogClock::after(ahead);
        let (first, then) = (clock.now(), clock.now());
        assert!(ahead <= first && first <= then, "it goes on until the step is logged");
        let step = clock.take_step().unwrap();
        assert!(step.from >= ahead && step.to < ahead, "{step:?}");
        assert_eq!(clock.take_step(), None);
        assert!(clock.now() < ahead);
    }

    #[test]
    fn a_server_that_was_down_for_long_sees_no_step() {
        let clock = LogClock::after(Timestamp::now() - HOUR * 1000);
        assert_eq!(clock.take_step(), None);
        assert!(Timestamp::now().duration_since(clock.now()) < HOUR);
    }
}
