//! Failpoints: named points at which a test crashes the process. Some lie between an observation
//! and its report, and others between an order and its status.
//!
//! `FARRIER_CRASH_AT=written:2` aborts when `written` is reached for the second time.
//! `observed:kernel` aborts when `observed` is reached with a kernel log event in the batch.
//! `written:hang` blocks at `written`, like a write to a disk that hangs. `written:2:panic` panics,
//! which ends only the thread. The agent reads the variable once, at startup. If the variable is
//! not set, a failpoint costs one comparison.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Messages were received, and nothing is decided yet.
    Observed,
    /// The engine has decided, and nothing is written yet.
    Decided,
    /// Half of a record is written.
    HalfWritten,
    /// The record is written, but not synced.
    Written,
    /// The record is on disk.
    Synced,
    /// The new state is published.
    Published,
    /// The changes are in the sink, which is a file for log shippers.
    Sunk,
    /// An order was submitted, and nothing is written yet.
    OrderOffered,
    /// Half of an order journal line is written.
    OrderHalfWritten,
    /// An order journal line is written, but not synced.
    OrderWritten,
    /// An order journal line is on disk.
    OrderSynced,
    /// The start of a change is on disk, but the change has not been made.
    OrderBegun,
    /// The change has been made, but its outcome is not on disk.
    OrderActed,
    /// The outcome of the change is on disk.
    OrderEnded,
    /// The status is on disk, but not reported.
    OrderAnswered,
}

impl Point {
    /// Points between an observation and its report, in order.
    pub const ALL: [Self; 7] = [
        Self::Observed,
        Self::Decided,
        Self::HalfWritten,
        Self::Written,
        Self::Synced,
        Self::Published,
        Self::Sunk,
    ];

    /// Points between an order and its status, in order.
    pub const ORDER_POINTS: [Self; 8] = [
        Self::OrderOffered,
        Self::OrderHalfWritten,
        Self::OrderWritten,
        Self::OrderSynced,
        Self::OrderBegun,
        Self::OrderActed,
        Self::OrderEnded,
        Self::OrderAnswered,
    ];

    /// The name in `FARRIER_CRASH_AT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::Decided => "decided",
            Self::HalfWritten => "half-written",
            Self::Written => "written",
            Self::Synced => "synced",
            Self::Published => "published",
            Self::Sunk => "sunk",
            Self::OrderOffered => "order-offered",
            Self::OrderHalfWritten => "order-half-written",
            Self::OrderWritten => "order-written",
            Self::OrderSynced => "order-synced",
            Self::OrderBegun => "order-begun",
            Self::OrderActed => "order-acted",
            Self::OrderEnded => "order-ended",
            Self::OrderAnswered => "order-answered",
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
enum CrashMode {
    #[default]
    Abort,
    Hang,
    Panic,
}

/// A crash that a test requested. The default never crashes.
#[derive(Debug, Default)]
pub struct Failpoint {
    at: Option<(Point, Cell<u32>)>,
    only_kernel: bool,
    mode: CrashMode,
}

impl Failpoint {
    /// Parses `FARRIER_CRASH_AT`.
    pub fn from_environment() -> Self {
        std::env::var("FARRIER_CRASH_AT")
            .map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut fields = text.split(':');
        let name = fields.next().unwrap_or_default();
        let points = Point::ALL.into_iter().chain(Point::ORDER_POINTS);
        let point = points.into_iter().find(|point| point.name() == name);
        let (mut times, mut only_kernel, mut mode) = (1, false, CrashMode::Abort);
        for field in fields {
            match field {
                "kernel" => only_kernel = true,
                "hang" => mode = CrashMode::Hang,
                "panic" => mode = CrashMode::Panic,
                _ => times = field.parse().unwrap_or(times),
            }
        }
        Self { at: point.map(|point| (point, Cell::new(times))), only_kernel, mode }
    }

    /// Counts a pass through `point`. Returns `true` if the process has to crash there.
    pub(crate) fn is_due(&self, point: Point) -> bool {
        let Some((target, remaining)) = &self.at else { return false };
        if *target != point {
            return false;
        }
        remaining.set(remaining.get().saturating_sub(1));
        remaining.get() == 0
    }

    /// Like `reach`, but for a batch. `has_kernel` says whether the batch has kernel log events.
    pub(crate) fn reach_with(&self, point: Point, has_kernel: bool) {
        if has_kernel || !self.only_kernel {
            self.reach(point);
        }
    }

    /// Crashes as configured.
    pub(crate) fn crash(&self) -> ! {
        match self.mode {
            CrashMode::Abort => std::process::abort(),
            CrashMode::Hang => loop {
                std::thread::park();
            },
            CrashMode::Panic => panic!("requested by a test"),
        }
    }

    /// Crashes here if this pass is due.
    pub(crate) fn reach(&self, point: Point) {
        if self.is_due(point) {
            self.crash();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failpoint_is_due_only_at_its_configured_pass() {
        let failpoint = Failpoint::parse("written:2");
        assert!(!failpoint.is_due(Point::Synced));
        assert!(!failpoint.is_due(Point::Written));
        assert!(failpoint.is_due(Point::Written));
        for point in Point::ALL.into_iter().chain(Point::ORDER_POINTS) {
            assert!(Failpoint::parse(point.name()).is_due(point));
            assert!(!Failpoint::default().is_due(point));
        }
    }
}
