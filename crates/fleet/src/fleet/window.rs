//! Weekly repair windows of a pool. Times are in UTC, so that a replay gives the same decisions on
//! every machine.

use std::fmt;

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A weekly window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Days on which the window opens. Empty means every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    /// Opening time in UTC, such as `22:00`.
    pub from: Time,
    /// Duration in hours.
    pub hours: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Day {
    fn weekday(self) -> Weekday {
        match self {
            Self::Mon => Weekday::Monday,
            Self::Tue => Weekday::Tuesday,
            Self::Wed => Weekday::Wednesday,
            Self::Thu => Weekday::Thursday,
            Self::Fri => Weekday::Friday,
            Self::Sat => Weekday::Saturday,
            Self::Sun => Weekday::Sunday,
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.days.iter().map(|day| format!("{day:?}")).collect::<Vec<_>>().join(", ");
        let days = if days.is_empty() { "every day".to_owned() } else { days };
        let (hours, minute) = (self.from.hour(), self.from.minute());
        write!(formatter, "{days} at {hours:02}:{minute:02} UTC for {} h", self.hours)
    }
}

/// Returns when the next window opens, or `None` if one is open or there are no windows.
pub(super) fn opens(windows: &[Window], now: Timestamp) -> Option<Timestamp> {
    let mut next: Option<Timestamp> = None;
    let today = now.to_zoned(TimeZone::UTC).date();
    for window in windows {
        // A window that opened yesterday may still be open. Every window opens within the next
        // seven days.
        for ahead in -1..=7_i64 {
            let Ok(day) = today.checked_add(SignedDuration::from_hours(24 * ahead)) else {
                continue;
            };
            let is_this_day = |window_day: &Day| window_day.weekday() == day.weekday();
            if !window.days.is_empty() && !window.days.iter().any(is_this_day) {
                continue;
            }
            let Ok(start) = TimeZone::UTC.to_timestamp(day.to_datetime(window.from)) else {
                continue;
            };
            let duration = SignedDuration::from_hours(i64::from(window.hours));
            if start > now {
                next = Some(next.map_or(start, |earliest| earliest.min(start)));
            } else if start.checked_add(duration).is_ok_and(|end| now < end) {
                return None;
            }
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn window(days: &[Day], from: &str, hours: u32) -> Window {
        Window { days: days.to_vec(), from: from.parse().unwrap(), hours }
    }

    #[test]
    fn a_window_is_open_from_its_hour_on_and_over_midnight() {
        // 2026-11-14 is a Saturday.
        let nights = [window(&[Day::Sat], "22:00", 6)];
        let opens_at = |text| opens(&nights, at(text)).map(|opening| opening.to_string());
        let saturday = Some("2026-11-14T22:00:00Z".to_owned());
        assert_eq!(opens_at("2026-11-14T21:59:59Z"), saturday);
        assert_eq!(opens_at("2026-11-14T22:00:00Z"), None);
        assert_eq!(opens_at("2026-11-15T03:59:59Z"), None, "it stays open after midnight");
        let next = Some("2026-11-21T22:00:00Z".to_owned());
        assert_eq!(opens_at("2026-11-15T04:00:00Z"), next);
    }

    #[test]
    fn the_first_window_to_open_counts_and_an_empty_list_is_always_open() {
        let both = [window(&[Day::Sun], "02:00", 1), window(&[], "12:30", 1)];
        let opens_at = |text| opens(&both, at(text)).map(|opening| opening.to_string());
        assert_eq!(opens_at("2026-11-15T01:00:00Z").as_deref(), Some("2026-11-15T02:00:00Z"));
        assert_eq!(opens_at("2026-11-15T03:00:00Z").as_deref(), Some("2026-11-15T12:30:00Z"));
        assert_eq!(opens_at("2026-11-16T13:31:00Z").as_deref(), Some("2026-11-17T12:30:00Z"));
        assert_eq!(opens(&[], at("2026-11-15T03:00:00Z")), None);
    }

    #[test]
    fn a_window_parses_and_displays() {
        let json = r#"{"days":["sat","sun"],"from":"22:00","hours":6}"#;
        let read: Window = serde_json::from_str(json).unwrap();
        assert_eq!(read, window(&[Day::Sat, Day::Sun], "22:00", 6));
        assert_eq!(read.to_string(), "Sat, Sun at 22:00 UTC for 6 h");
        assert_eq!(window(&[], "02:05", 1).to_string(), "every day at 02:05 UTC for 1 h");
    }
}
