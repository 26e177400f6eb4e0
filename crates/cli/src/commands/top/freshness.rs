//! How old the shown values are. A value whose next read is overdue is stale: it is marked with
//! [`STALE_MARK`], because it may no longer be true.

use std::time::Duration;

use farrier_agent::status::StaleValue;
use farrier_fleet::health::Signal;
use farrier_hardware::nvml::watch;
use jiff::Timestamp;

/// Marks a stale value, also without colour and in ASCII.
pub(super) const STALE_MARK: char = '*';

/// When a value was read, and how often it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Freshness {
    pub(super) read_at: Timestamp,
    pub(super) interval: Duration,
}

impl Freshness {
    /// The age and the interval of the value, if it is stale.
    pub(super) fn stale_value(self, now: Timestamp) -> Option<StaleValue> {
        let age_s = self.stale_age(now)?.as_secs();
        Some(StaleValue { age_s, interval_s: self.interval.as_secs() })
    }

    /// The age of the value, if it is stale.
    pub(super) fn stale_age(self, now: Timestamp) -> Option<Duration> {
        let age = Duration::try_from(now.duration_since(self.read_at)).ok()?;
        watch::is_stale(age, self.interval).then_some(age)
    }
}

/// The values that a cell shows. The cell is stale if one of them is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Signals(&'static [Signal]),
    /// Performance state, fan, compute mode and display.
    Details,
    /// The state of the `NVLink` links.
    Links,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_stale_when_its_next_read_is_overdue() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let freshness = Freshness { read_at: at(100), interval: Duration::from_secs(4) };
        assert_eq!(freshness.stale_age(at(105)), None);
        assert_eq!(freshness.stale_age(at(112)), Some(Duration::from_secs(12)));
        assert_eq!(freshness.stale_age(at(0)), None, "the clock was set back");
    }
}
