//! The log's time: the one clock for every rule that has to do with time (leases, heartbeat timeouts, freezes, windows, approvals).
//!
//! It follows the wall clock. A wall clock that is stepped, by hand or by NTP, is noticed against the monotonic clock: until the
//! controller has written the step to the log, the log's time goes on as if there had been none.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use crate::last_ran::LastRan;

/// A difference beyond this from one look to the next is a step. It is looked at every second.
const STEP_MIN: SignedDuration = SignedDuration::from_secs(2);
/// Differences are also summed up for this long, so that a clock that creeps counts as stepped.
const CREEP_WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// A slew is a tenth of the time that passed at most: ntpd slews by 500 ppm, chrony by 83,333 ppm (`maxslewrate`).
const SLEW_DIVISOR: i32 = 10;
/// Both clocks are read within this time, or again: a thread that was not scheduled in between sees no step.
const READ_MAX: Duration = Duration::from_millis(100);
/// How often they are read again; after that a step is noticed with the next look.
const READS_MAX: u32 = 10;

/// The wall clock. A test may set it wrong.
#[derive(Debug, Clone, Default)]
pub struct WallClock {
    offset_ms: Arc<AtomicI64>,
}

impl WallClock {
    /// What it shows.
    pub fn now(&self) -> Timestamp {
        self.wall_now(Timestamp::now())
    }

    /// What it shows when the system's clock shows this.
    pub(crate) fn wall_now(&self, system: Timestamp) -> Timestamp {
        let offset = SignedDuration::from_millis(self.offset_ms.load(Ordering::Relaxed));
        system.checked_add(offset).unwrap_or(system)
    }

    /// Steps it, for a test: from here on it is ahead of the system's clock by so much.
    pub fn set_offset(&self, offset: SignedDuration) {
        let offset_ms = i64::try_from(offset.as_millis()).unwrap_or_default();
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
    }
}

/// Which wall clock the controller follows, and what is done at once when that was stepped.
pub(crate) struct ClockWatch {
    pub(crate) wall: WallClock,
    pub(crate) on_step: Box<dyn Fn() + Send>,
    /// Where the controller notes that it runs; none in tests without a folder.
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
    wall: WallClock,
    readings: Mutex<Readings>,
}

#[derive(Debug)]
struct Readings {
    /// The last time that was given, and when that was.
    last: (Timestamp, Instant),
    /// The wall clock when differences were last summed up from zero, and when that was.
    window: (Timestamp, Instant),
}

fn elapsed_between(from: Instant, until: Instant) -> SignedDuration {
    SignedDuration::try_from(until.saturating_duration_since(from)).unwrap_or_default()
}

fn saturating_add(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(time)
}

impl LogClock {
    /// Goes on from the last entry of a log. The wall clock may be ahead of it by any time: the server was down. Where it is behind, it
    /// was stepped.
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

    /// A step that is not in the log yet. From here on the log's time is what the wall clock shows.
    pub(crate) fn take_step(&self) -> Option<Step> {
        self.read(true).1
    }

    /// The time by now, and a step that was seen, which the log's time follows where the caller takes it.
    fn read(&self, takes_step: bool) -> (Timestamp, Option<Step>) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall_now, now, is_exact) = both_clocks(&self.wall);
        let Readings { last, window } = &mut *readings;
        let expected = saturating_add(last.0, elapsed_between(last.1, now));
        let watched = elapsed_between(window.1, now);
        let check = check_clock(last.0, expected, (window.0, watched), wall_now);
        let (time, step) = match check {
            ClockCheck::Follows(time) => (time, None),
            ClockCheck::Stepped { from } if is_exact && takes_step => {
                (wall_now, Some(Step { from, to: wall_now }))
            }
            ClockCheck::Stepped { .. } => (expected, None),
        };
        let is_over = watched >= CREEP_WINDOW && matches!(check, ClockCheck::Follows(_));
        if step.is_some() || is_over {
            *window = (wall_now, now);
        }
        *last = (time, now);
        (time, step)
    }
}

/// The wall clock and the monotonic clock, read at one moment; whether they really were.
fn both_clocks(clock: &WallClock) -> (Timestamp, Instant, bool) {
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
    /// The log's time, which follows the wall clock and does not go back.
    Follows(Timestamp),
    /// The wall clock was stepped, or has crept away.
    Stepped {
        /// What it would show otherwise.
        from: Timestamp,
    },
}

/// `window`: what the wall clock showed a while ago, and how long ago.
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
    fn it_follows_a_wall_clock_that_is_slewed_and_sees_one_that_is_stepped() {
        let start: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let expected = start + SECOND;
        let judged = |wall| check_clock(start, expected, (start, SECOND), wall);
        assert_eq!(check_clock(expected), ClockCheck::Follows(expected));
        let slewed = expected - SECOND * 2;
        assert_eq!(check_clock(slewed), ClockCheck::Follows(start), "it does not go back");
        assert_eq!(check_clock(expected + SECOND), ClockCheck::Follows(expected + SECOND));
        for stepped in [expected - HOUR, expected + HOUR] {
            assert_eq!(check_clock(stepped), ClockCheck::Stepped { from: expected });
        }
    }

    /// Looks once a second at a wall clock that gains so many milliseconds each second; the step that is seen first, and when.
    fn creep(gains_ms: i64) -> Option<(i64, Step)> {
        let wall = WallClock::default();
        let clock = LogClock::after(wall.now(), wall.clone());
        for second in 1..=180 {
            // As if a second had passed since the last look.
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
    fn a_clock_that_creeps_is_stepped_and_one_that_is_slewed_is_not() {
        // ntpd and chrony, ahead and behind.
        for slew_ms in [0, 1, -1, 84, -84, 100, -100] {
            assert_eq!(creep(slew_ms), None, "{slew_ms} ms a second");
        }
        for (gains_ms, within_s) in [(1800, 2), (500, 6), (-500, 6), (200, 30), (-200, 30)] {
            let (second, step) = creep(gains_ms).unwrap();
            assert!(second <= within_s, "{gains_ms} ms a second: {second} s");
            // All that it gained since then counts as the step, and not only the last second's.
            let by_ms = step.to.duration_since(step.from).as_millis();
            let gained_ms = i128::from(gains_ms * second);
            assert!((by_ms - gained_ms).abs() < 500, "{by_ms} ms of {gained_ms} ms");
        }
    }

    #[test]
    fn a_log_that_is_ahead_of_the_wall_clock_shows_a_step_once() {
        let ahead = Timestamp::now() + HOUR;
        let clock = LogClock::after(ahead, WallClock::default());
        let (first, then) = (clock.now(), clock.now());
        assert!(ahead <= first && first <= then, "it goes on until the step is logged");
        let step = clock.take_step().unwrap();
        assert!(step.from >= ahead && step.to < ahead, "{step:?}");
        assert_eq!(clock.take_step(), None);
        assert!(clock.now() < ahead);
    }

    #[test]
    fn a_server_that_was_down_for_long_sees_no_step() {
        let clock = LogClock::after(Timestamp::now() - HOUR * 1000, WallClock::default());
        assert_eq!(clock.take_step(), None);
        assert!(Timestamp::now().duration_since(clock.now()) < HOUR);
    }
}
