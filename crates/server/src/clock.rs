//! The log clock: one time source for leases, heartbeat timeouts, freezes, repair windows and
//! approvals.
//!
//! The log clock follows the wall clock. It detects steps, made by hand or by NTP, by comparing the
//! wall clock with the monotonic clock. Until the controller has logged a step, the log clock
//! continues as if there had been no step.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use crate::last_ran::LastRan;

/// If the wall clock and the monotonic clock diverge by more than this between two reads, the wall
/// clock was stepped. The controller reads both clocks about once a second.
const STEP_MIN: SignedDuration = SignedDuration::from_secs(2);
/// Length of the window over which differences between the clocks add up. A clock that runs too
/// fast therefore also counts as stepped.
const DRIFT_WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// A slew of up to a tenth of the elapsed time is not a step: ntpd slews at 500 ppm, chrony at up
/// to 83,333 ppm (`maxslewrate`).
const SLEW_DIVISOR: i32 = 10;
/// Longest permitted time between the reads of the two clocks. If more time passes, both clocks are
/// read again. Otherwise a thread that was preempted between the reads would see a step that did
/// not happen.
const READ_MAX: Duration = Duration::from_millis(100);
/// Maximum number of attempts to read both clocks within [`READ_MAX`]. If every attempt takes
/// longer, no step is reported now. A later read reports it.
const READS_MAX: u32 = 10;

/// The wall clock. Tests can add an offset.
#[derive(Debug, Clone, Default)]
pub struct WallClock {
    offset_ms: Arc<AtomicI64>,
}

impl WallClock {
    pub fn now(&self) -> Timestamp {
        self.wall_now(Timestamp::now())
    }

    /// The time of this clock when the system clock shows `system`.
    pub(crate) fn wall_now(&self, system: Timestamp) -> Timestamp {
        let offset = SignedDuration::from_millis(self.offset_ms.load(Ordering::Relaxed));
        system.checked_add(offset).unwrap_or(system)
    }

    /// Steps the clock in a test: from now on, it is ahead of the system clock by `offset`.
    pub fn set_offset(&self, offset: SignedDuration) {
        let offset_ms = i64::try_from(offset.as_millis()).unwrap_or_default();
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }
}

/// The wall clock that the controller follows, and what to do when it is stepped.
pub(crate) struct ClockWatch {
    pub(crate) wall: WallClock,
    pub(crate) on_step: Box<dyn Fn() + Send>,
    /// The file that records when the controller ran. `None` in tests without a data directory.
    pub(crate) last_ran: Option<LastRan>,
}

impl Default for ClockWatch {
    fn default() -> Self {
        Self { wall: WallClock::default(), on_step: Box::new(|| ()), last_ran: None }
    }
}

impl fmt::Debug for ClockWatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClockWatch").field("wall", &self.wall).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockStep {
    /// The log time if there had been no step.
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

#[derive(Debug)]
pub(crate) struct LogClock {
    wall: WallClock,
    readings: Mutex<Readings>,
}

#[derive(Debug)]
struct Readings {
    /// The log time that the last read returned, and the monotonic time of that read.
    last: (Timestamp, Instant),
    /// The wall-clock time and the monotonic time at the start of the drift window. If the wall
    /// clock was stepped while the server was down, the first value is the time of the last log
    /// entry instead.
    window: (Timestamp, Instant),
}

fn elapsed_between(from: Instant, until: Instant) -> SignedDuration {
    SignedDuration::try_from(until.saturating_duration_since(from)).unwrap_or_default()
}

fn saturating_add(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(time)
}

impl LogClock {
    /// Continues after the log entry at `last`. If the wall clock is ahead of that entry, the
    /// server was down, and the log clock starts at the wall clock. If the wall clock is behind the
    /// entry by [`STEP_MIN`] or more, it was stepped. The log clock then continues from the entry
    /// until the step is logged. If the wall clock is behind by less, the log clock waits until the
    /// wall clock has caught up.
    pub(crate) fn after(last: Timestamp, wall: WallClock) -> Self {
        let (wall_now, now) = (wall.now(), Instant::now());
        let was_stepped = wall_now.duration_since(last) <= -STEP_MIN;
        let (start, window) =
            if was_stepped { (last, last) } else { (wall_now.max(last), wall_now) };
        let readings = Readings { last: (start, now), window: (window, now) };
        Self { wall, readings: Mutex::new(readings) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.read(false).0
    }

    /// Returns a step that is not logged yet. After this call, the log clock follows the stepped
    /// wall clock.
    pub(crate) fn take_step(&self) -> Option<ClockStep> {
        self.read(true).1
    }

    /// Returns the log time. If `takes_step` is set, also returns a detected step, and the log
    /// clock then follows that step.
    fn read(&self, takes_step: bool) -> (Timestamp, Option<ClockStep>) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall_now, now, is_exact) = read_clocks(&self.wall);
        let Readings { last, window } = &mut *readings;
        let expected = saturating_add(last.0, elapsed_between(last.1, now));
        let watched = elapsed_between(window.1, now);
        let check = check_clock(last.0, expected, (window.0, watched), wall_now);
        let (time, step) = match check {
            ClockCheck::Follows(time) => (time, None),
            ClockCheck::Stepped { from } if is_exact && takes_step => {
                (wall_now, Some(ClockStep { from, to: wall_now }))
            }
            ClockCheck::Stepped { .. } => (expected, None),
        };
        let is_over = watched >= DRIFT_WINDOW && matches!(check, ClockCheck::Follows(_));
        if step.is_some() || is_over {
            *window = (wall_now, now);
        }
        *last = (time, now);
        (time, step)
    }
}

/// Reads both clocks. The flag is false if every attempt took longer than [`READ_MAX`].
fn read_clocks(clock: &WallClock) -> (Timestamp, Instant, bool) {
    let mut reads = 0;
    loop {
        let (before, wall, after) = (Instant::now(), clock.now(), Instant::now());
        let is_exact = after.duration_since(before) <= READ_MAX;
        reads += 1;
        if is_exact || reads == READS_MAX {
            return (wall, after, is_exact);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClockCheck {
    /// The log clock follows the wall clock. The value is the log time, which never decreases.
    Follows(Timestamp),
    /// The wall clock was stepped, or its drift added up to a step.
    Stepped {
        /// The log time as if there had been no step.
        from: Timestamp,
    },
}

/// Compares the clocks. `window` is the wall clock at the start of the drift window, and the time
/// since then.
fn check_clock(
    last: Timestamp,
    expected: Timestamp,
    window: (Timestamp, SignedDuration),
    wall: Timestamp,
) -> ClockCheck {
    if wall.duration_since(expected).abs() > STEP_MIN {
        return ClockCheck::Stepped { from: expected };
    }
    let (began, watched) = window;
    let from = saturating_add(began, watched);
    if wall.duration_since(from).abs() > STEP_MIN + watched / SLEW_DIVISOR {
        return ClockCheck::Stepped { from };
    }
    ClockCheck::Follows(wall.max(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: SignedDuration = SignedDuration::from_secs(1);
    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    #[test]
    fn the_log_clock_follows_a_slew_and_detects_a_step() {
        let start: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let expected = start + SECOND;
        let check = |wall| check_clock(start, expected, (start, SECOND), wall);
        assert_eq!(check(expected), ClockCheck::Follows(expected));
        let slewed = expected - SECOND * 2;
        assert_eq!(check(slewed), ClockCheck::Follows(start), "the log clock does not go back");
        assert_eq!(check(expected + SECOND), ClockCheck::Follows(expected + SECOND));
        for stepped in [expected - HOUR, expected + HOUR] {
            assert_eq!(check(stepped), ClockCheck::Stepped { from: expected });
        }
    }

    /// Reads a wall clock that gains `gains_ms` per second, once a second. Returns the first
    /// detected step and the second in which it was detected.
    fn first_step_with_drift(gains_ms: i64) -> Option<(i64, ClockStep)> {
        let wall = WallClock::default();
        let clock = LogClock::after(wall.now(), wall.clone());
        for second in 1..=180 {
            // Pretend that a second has passed since the last read.
            let ago = |at: &mut Instant| *at = at.checked_sub(Duration::from_secs(1)).unwrap();
            let mut readings = clock.readings.lock().unwrap();
            ago(&mut readings.last.1);
            ago(&mut readings.window.1);
            drop(readings);
            wall.set_offset(SignedDuration::from_millis(second * (1000 + gains_ms)));
            if let Some(step) = clock.take_step() {
                return Some((second, step));
            }
        }
        None
    }

    #[test]
    fn drift_is_a_step_and_a_slew_is_not() {
        for slew_ms in [0, 1, -1, 84, -84, 100, -100] {
            assert_eq!(first_step_with_drift(slew_ms), None, "{slew_ms} ms/s");
        }
        for (gains_ms, within_s) in [(1800, 2), (500, 6), (-500, 6), (200, 30), (-200, 30)] {
            let (second, step) = first_step_with_drift(gains_ms).unwrap();
            assert!(second <= within_s, "{gains_ms} ms/s: {second} s");
            // The step includes everything that the clock gained since the window started, not only
            // in the last second.
            let by_ms = step.to.duration_since(step.from).as_millis();
            let gained_ms = i128::from(gains_ms * second);
            assert!((by_ms - gained_ms).abs() < 500, "{by_ms} ms of {gained_ms} ms");
        }
    }

    #[test]
    fn a_log_ahead_of_the_wall_clock_is_one_step() {
        let ahead = Timestamp::now() + HOUR;
        let clock = LogClock::after(ahead, WallClock::default());
        let (first, then) = (clock.now(), clock.now());
        assert!(
            ahead <= first && first <= then,
            "the log clock continues until the step is logged"
        );
        let step = clock.take_step().unwrap();
        assert!(step.from >= ahead && step.to < ahead, "{step:?}");
        assert_eq!(clock.take_step(), None);
        assert!(clock.now() < ahead);
    }

    #[test]
    fn a_long_downtime_is_no_step() {
        let clock = LogClock::after(Timestamp::now() - HOUR * 1000, WallClock::default());
        assert_eq!(clock.take_step(), None);
        assert!(Timestamp::now().duration_since(clock.now()) < HOUR);
    }
}
