//! Named points between an observation and its sinks, and between an order and its answer, at which a test lets the process
//! die.
//!
//! `FARRIER_CRASH_AT=written:2` aborts when `written` is reached for the second time, `observed:kernel` when it is
//! reached with an event of the kernel log in hand. `written:hang` stands still there, as a write to a disk that does not
//! answer does, and `written:2:panic` ends only the thread. The variable is read once, when the agent starts; where it is not
//! set a point costs one comparison.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Collectors' messages are taken, nothing is decided.
    Observed,
    /// The engine has decided, nothing is written.
    Decided,
    /// Half of a record is in the file.
    HalfWritten,
    /// The record is in the file and not on disk.
    Written,
    /// The record is on disk.
    Synced,
    /// The new state can be seen.
    Published,
    /// The changes are in the sink.
    Sunk,
    /// An order was offered, and nothing is written of it.
    OrderOffered,
    /// Half of a line of the journal of orders is in the file.
    OrderHalfWritten,
    /// A line of it is in the file and not on disk.
    OrderWritten,
    /// A line of it is on disk.
    OrderSynced,
    /// That something is about to be changed for an order is on disk, and it is not changed.
    OrderBegun,
    /// It is changed, and that is not on disk.
    OrderActed,
    /// That it is changed is on disk.
    OrderEnded,
    /// The answer is on disk, and nobody is told.
    OrderAnswered,
}

impl Point {
    /// Those between an observation and its sinks, in order.
    pub const ALL: [Self; 7] = [
        Self::Observed,
        Self::Decided,
        Self::HalfWritten,
        Self::Written,
        Self::Synced,
        Self::Published,
        Self::Sunk,
    ];

    /// Those between an order and its answer, in order.
    pub const OF_ORDERS: [Self; 8] = [
        Self::OrderOffered,
        Self::OrderHalfWritten,
        Self::OrderWritten,
        Self::OrderSynced,
        Self::OrderBegun,
        Self::OrderActed,
        Self::OrderEnded,
        Self::OrderAnswered,
    ];

    /// Its name in the variable.
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

/// What happens at the point.
#[derive(Debug, Clone, Copy, Default)]
enum Way {
    #[default]
    Abort,
    Hang,
    Panic,
}

/// Whether, where, when and how to die.
#[derive(Debug, Default)]
pub struct Failpoint {
    at: Option<(Point, Cell<u32>)>,
    only_kernel: bool,
    way: Way,
}

impl Failpoint {
    /// As `FARRIER_CRASH_AT` says.
    pub fn from_environment() -> Self {
        std::env::var("FARRIER_CRASH_AT").map_or_else(|_| Self::default(), |text| Self::of(&text))
    }

    pub(crate) fn of(text: &str) -> Self {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let points = Point::ALL.into_iter().chain(Point::OF_ORDERS);
        let point = points.into_iter().find(|point| point.name() == name);
        let (mut times, mut only_kernel, mut way) = (1, false, Way::Abort);
        for word in words {
            match word {
                "kernel" => only_kernel = true,
                "hang" => way = Way::Hang,
                "panic" => way = Way::Panic,
                _ => times = word.parse().unwrap_or(times),
            }
        }
        Self { at: point.map(|point| (point, Cell::new(times))), only_kernel, way }
    }

    /// Whether this is the moment.
    pub(crate) fn is_due(&self, point: Point) -> bool {
        let Some((wanted, left)) = &self.at else { return false };
        if *wanted != point {
            return false;
        }
        left.set(left.get().saturating_sub(1));
        left.get() == 0
    }

    /// The same, of a turn with events of the kernel log or without.
    pub(crate) fn reach_with(&self, point: Point, has_kernel: bool) {
        if has_kernel || !self.only_kernel {
            self.reach(point);
        }
    }

    /// Dies, and does not come back.
    pub(crate) fn die(&self) -> ! {
        match self.way {
            Way::Abort => std::process::abort(),
            Way::Hang => loop {
                std::thread::park();
            },
            Way::Panic => panic!("a test asked for it"),
        }
    }

    /// Dies here if this is the moment.
    pub(crate) fn reach(&self, point: Point) {
        if self.is_due(point) {
            self.die();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_due_at_its_turn_and_only_then() {
        let crash = Failpoint::of("written:2");
        assert!(!crash.is_due(Point::Synced));
        assert!(!crash.is_due(Point::Written));
        assert!(crash.is_due(Point::Written));
        for point in Point::ALL.into_iter().chain(Point::OF_ORDERS) {
            assert!(Failpoint::of(point.name()).is_due(point));
            assert!(!Failpoint::default().is_due(point));
        }
    }
}
