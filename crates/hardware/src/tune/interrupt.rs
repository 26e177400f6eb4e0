//! Named points at which a test lets the process die.
//!
//! `FARRIER_TUNE_CRASH_AT=tune-begun:2` aborts when a change was begun for the second time. The variable is read once; where
//! it is not set a point costs one comparison.

use std::cell::Cell;

/// Where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Half of a line of the journal is in the file.
    HalfWritten,
    /// A line of it is in the file and not on disk.
    Written,
    /// That something is about to be changed is on disk, and it is not changed.
    Begun,
    /// It is changed, and that is not on disk.
    Acted,
    /// What came of it is on disk.
    Ended,
    /// It is given back, and that is not on disk.
    GivenBack,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::HalfWritten, Self::Written, Self::Begun, Self::Acted, Self::Ended, Self::GivenBack];

    /// Its name in the variable.
    pub fn name(self) -> &'static str {
        match self {
            Self::HalfWritten => "tune-half-written",
            Self::Written => "tune-written",
            Self::Begun => "tune-begun",
            Self::Acted => "tune-acted",
            Self::Ended => "tune-ended",
            Self::GivenBack => "tune-given-back",
        }
    }
}

/// What a panic says that a test asked for.
pub(super) const ASKED_FOR: &str = "a test asked for it";

/// Whether, where and when to die.
#[derive(Debug, Default)]
pub struct Interrupt {
    at: Option<(Point, Cell<u32>)>,
    /// Ends the thread instead of the process.
    panics: bool,
}

impl Interrupt {
    /// As `FARRIER_TUNE_CRASH_AT` says.
    pub fn from_environment() -> Self {
        std::env::var("FARRIER_TUNE_CRASH_AT")
            .map_or_else(|_| Self::default(), |text| Self::of(&text))
    }

    fn of(text: &str) -> Self {
        let (name, times) = text.split_once(':').unwrap_or((text, "1"));
        let point = Point::ALL.into_iter().find(|point| point.name() == name);
        let times = times.parse().unwrap_or(1);
        Self { at: point.map(|point| (point, Cell::new(times))), panics: false }
    }

    /// A panic at a point, when it is reached for this time.
    #[cfg(test)]
    pub(crate) fn panic_at(point: Point, times: u32) -> Self {
        Self { at: Some((point, Cell::new(times))), panics: true }
    }

    /// Whether this is the moment.
    pub(crate) fn is_due(&self, point: Point) -> bool {
        let Some((wanted, left)) = &self.at else { return false };
        if *wanted != point {
            return false;
        }
        let due = left.get() == 1;
        left.set(left.get().saturating_sub(1));
        due
    }

    /// Dies, and does not come back.
    pub(crate) fn die(&self) -> ! {
        if self.panics {
            std::panic::panic_any(ASKED_FOR);
        }
        std::process::abort()
    }

    /// Dies here if this is the moment.
    pub(crate) fn reach(&self, point: Point) {
        if self.is_due(point) {
            self.die();
        }
    }
}
