//! Failpoints: named places at which a test crashes the process.
//!
//! `FARRIER_TUNE_CRASH_AT=tune-begun:2` aborts when `tune-begun` is reached for the second time.
//! The variable is read once. If it is not set, a failpoint costs one comparison.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailpointSite {
    /// Half of a journal line is in the file.
    HalfWritten,
    /// A journal line is in the file but not synced.
    Written,
    /// The begin entry is on disk, but the change is not made.
    Begun,
    /// The change is made, but the end entry is not on disk.
    Acted,
    /// The end entry is on disk.
    Ended,
    /// The old value is restored, but the revert entry is not on disk.
    GivenBack,
}

impl FailpointSite {
    pub const ALL: [Self; 6] =
        [Self::HalfWritten, Self::Written, Self::Begun, Self::Acted, Self::Ended, Self::GivenBack];

    /// The name in `FARRIER_TUNE_CRASH_AT`.
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

/// Payload of a panic that a test injected.
pub(super) const INJECTED: &str = "injected by a test";

/// An armed failpoint, if any.
#[derive(Debug, Default)]
pub struct TuneFailpoint {
    at: Option<(FailpointSite, Cell<u32>)>,
    /// Panics instead of aborting the process.
    panics: bool,
}

impl TuneFailpoint {
    /// Parses `FARRIER_TUNE_CRASH_AT`.
    pub fn from_environment() -> Self {
        std::env::var("FARRIER_TUNE_CRASH_AT")
            .map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let (name, times) = text.split_once(':').unwrap_or((text, "1"));
        let point = FailpointSite::ALL.into_iter().find(|point| point.name() == name);
        let times = times.parse().unwrap_or(1);
        Self { at: point.map(|point| (point, Cell::new(times))), panics: false }
    }

    /// Panics when the point is reached for the `times`-th time.
    #[cfg(test)]
    pub(crate) fn panic_at(point: FailpointSite, times: u32) -> Self {
        Self { at: Some((point, Cell::new(times))), panics: true }
    }

    /// Counts a pass through `point`. Returns whether the process has to crash there.
    pub(crate) fn is_due(&self, point: FailpointSite) -> bool {
        let Some((armed, passes_left)) = &self.at else { return false };
        if *armed != point {
            return false;
        }
        let due = passes_left.get() == 1;
        passes_left.set(passes_left.get().saturating_sub(1));
        due
    }

    pub(crate) fn trigger(&self) -> ! {
        if self.panics {
            std::panic::panic_any(INJECTED);
        }
        std::process::abort()
    }

    /// Crashes here if this pass is due.
    pub(crate) fn hit(&self, point: FailpointSite) {
        if self.is_due(point) {
            self.trigger();
        }
    }
}
