//! The log's time: the wall clock's where that goes on, and steady where it is set back. Leases, silence and what is due are counted by it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// One for the server.
#[derive(Debug)]
pub(crate) struct LogClock {
    /// The last time that was told, and when that was.
    last: Mutex<(Timestamp, Instant)>,
}

impl LogClock {
    /// Goes on from the last entry of a log.
    pub(crate) fn after(last: Timestamp) -> Self {
        Self { last: Mutex::new((last, Instant::now())) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let passed = now.saturating_duration_since(last.1);
        *last = (told(last.0, passed.try_into().unwrap_or_default(), Timestamp::now()), now);
        last.0
    }
}

/// What it says after so long, beside a wall clock that may say anything.
fn told(last: Timestamp, passed: SignedDuration, wall: Timestamp) -> Timestamp {
    last.checked_add(passed).unwrap_or(last).max(wall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_back_does_not_stop_it() {
        let start: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let (second, hour) = (SignedDuration::from_secs(1), SignedDuration::from_hours(1));
        assert_eq!(told(start, second, start + second), start + second);
        assert_eq!(told(start, second, start - hour), start + second, "set back, and time passes");
        assert_eq!(told(start, second, start + hour), start + hour, "set forward");
        let ahead = Timestamp::now() + hour;
        let clock = LogClock::after(ahead);
        let (first, then) = (clock.now(), clock.now());
        assert!(ahead <= first && first <= then, "{ahead} {first} {then}");
    }
}
