//! Weekly windows, in UTC or in a time zone. The time zones are compiled in, so that a replay gives
//! the same decisions on every machine.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use jiff::civil::{Time, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A weekly window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Days on which the window opens. Empty means every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    /// Opening time, such as `22:00`.
    pub from: Time,
    /// Duration in hours. A change of the clocks in a window does not change its duration.
    pub hours: u32,
    /// The time zone of `days` and `from`; `None` for UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tz: Option<ZoneName>,
}

/// Name of a time zone in the IANA database, such as `Europe/Berlin`. That the zone exists is
/// checked when a policy is set and not here, because old log entries have to stay readable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ZoneName(Box<str>);

/// Longest name of a time zone.
const ZONE_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a time zone, such as `Europe/Berlin` or `UTC`")]
pub struct ZoneNameError(String);

impl FromStr for ZoneName {
    type Err = ZoneNameError;

    fn from_str(text: &str) -> Result<Self, ZoneNameError> {
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "/_+-".contains(letter);
        if (1..=ZONE_MAX).contains(&text.len()) && text.chars().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(ZoneNameError(text.chars().take(ZONE_MAX).collect()))
        }
    }
}

impl TryFrom<String> for ZoneName {
    type Error = ZoneNameError;

    fn try_from(text: String) -> Result<Self, ZoneNameError> {
        text.parse()
    }
}

impl From<ZoneName> for String {
    fn from(name: ZoneName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for ZoneName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.0)
    }
}

impl ZoneName {
    /// The zone, or `None` if the time zone database of this build does not have it.
    pub fn zone(&self) -> Option<TimeZone> {
        TimeZoneDatabase::bundled().get(&self.0).ok()
    }
}

/// An interval in which a window is open. The end is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenInterval {
    pub opens: Timestamp,
    pub closes: Timestamp,
}

/// Whether something that takes a while may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowStart {
    /// Now. `closes` is `None` if there are no windows.
    Now { closes: Option<Timestamp> },
    /// At this time, when a window opens that is long enough.
    At(Timestamp),
    /// No window is long enough.
    TooLong,
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
        let tz = self.tz.as_ref().map_or("UTC", |tz| &tz.0);
        write!(formatter, "{days} at {hours:02}:{minute:02} {tz} for {} h", self.hours)
    }
}

impl Window {
    /// The intervals that begin on one of these days, counted from the day of `from`. Empty if the
    /// time zone is unknown.
    fn intervals(&self, from: Timestamp, days: RangeInclusive<i64>) -> Vec<OpenInterval> {
        let zone = match &self.tz {
            None => Some(TimeZone::UTC),
            Some(tz) => tz.zone(),
        };
        let Some(zone) = zone else { return Vec::new() };
        let today = from.to_zoned(zone.clone()).date();
        let duration = SignedDuration::from_hours(i64::from(self.hours));
        let interval = |ahead| {
            let day = today.checked_add(SignedDuration::from_hours(24 * ahead)).ok()?;
            let is_this_day = |window_day: &Day| window_day.weekday() == day.weekday();
            if !self.days.is_empty() && !self.days.iter().any(is_this_day) {
                return None;
            }
            // If the clocks are set forward over this time, the window opens right after.
            let opens = zone.to_ambiguous_zoned(day.to_datetime(self.from)).compatible().ok()?;
            let opens = opens.timestamp();
            Some(OpenInterval { opens, closes: opens.checked_add(duration).ok()? })
        };
        days.filter_map(interval).collect()
    }

    /// The first day, relative to today, whose window may still be open.
    fn earliest(&self) -> i64 {
        -1 - i64::from(self.hours / 24)
    }
}

/// The times within the next `days` days in which a window is open. Intervals that touch are one.
pub fn open_intervals(windows: &[Window], from: Timestamp, days: i64) -> Vec<OpenInterval> {
    let intervals =
        windows.iter().flat_map(|window| window.intervals(from, window.earliest()..=days));
    let mut all: Vec<OpenInterval> = intervals.filter(|interval| interval.closes > from).collect();
    all.sort_by_key(|interval| (interval.opens, interval.closes));
    let mut merged: Vec<OpenInterval> = Vec::new();
    for interval in all {
        match merged.last_mut() {
            Some(last) if interval.opens <= last.closes => {
                last.closes = last.closes.max(interval.closes);
            }
            _ => merged.push(interval),
        }
    }
    merged
}

/// When something that takes this long may start, so that it ends before its window closes.
pub fn may_start(windows: &[Window], now: Timestamp, takes: SignedDuration) -> WindowStart {
    if windows.is_empty() {
        return WindowStart::Now { closes: None };
    }
    for interval in open_intervals(windows, now, 14) {
        let start = interval.opens.max(now);
        if start.duration_until(interval.closes) < takes {
            continue;
        }
        if start == now {
            return WindowStart::Now { closes: Some(interval.closes) };
        }
        return WindowStart::At(start);
    }
    WindowStart::TooLong
}

/// Returns when the next window opens, or `None` if one is open or there are no windows.
pub(super) fn opens(windows: &[Window], now: Timestamp) -> Option<Timestamp> {
    let mut next: Option<Timestamp> = None;
    for window in windows {
        // A window that opened yesterday may still be open. Every window opens within the next
        // seven days.
        for OpenInterval { opens, closes } in window.intervals(now, -1..=7) {
            if opens > now {
                next = Some(next.map_or(opens, |earliest| earliest.min(opens)));
            } else if now < closes {
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
        Window { days: days.to_vec(), from: from.parse().unwrap(), hours, tz: None }
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

    fn in_berlin(days: &[Day], from: &str, hours: u32) -> Window {
        Window { tz: "Europe/Berlin".parse().ok(), ..window(days, from, hours) }
    }

    #[test]
    fn a_window_follows_the_clocks_of_its_zone() {
        let nights = [in_berlin(&[Day::Sun], "02:30", 2)];
        let opens_at = |text| opens(&nights, at(text)).map(|opening| opening.to_string());
        // Winter time ends on 2026-03-29: 02:30 does not exist, and the window opens at 03:30.
        assert_eq!(opens_at("2026-03-28T12:00:00Z").as_deref(), Some("2026-03-29T01:30:00Z"));
        assert_eq!(opens_at("2026-07-04T12:00:00Z").as_deref(), Some("2026-07-05T00:30:00Z"));
        // Summer time ends on 2026-10-25: 02:30 exists twice, and the first one counts.
        let [interval] = open_intervals(&nights, at("2026-10-24T12:00:00Z"), 2)[..] else {
            panic!("one interval")
        };
        assert_eq!(interval.opens.to_string(), "2026-10-25T00:30:00Z");
        assert_eq!(interval.closes.to_string(), "2026-10-25T02:30:00Z");
        assert_eq!(nights[0].to_string(), "Sun at 02:30 Europe/Berlin for 2 h");
        let nowhere = Window { tz: "Europe/Atlantis".parse().ok(), ..nights[0].clone() };
        assert_eq!(open_intervals(&[nowhere], at("2026-10-24T12:00:00Z"), 30), []);
        assert!("Europe Berlin".parse::<ZoneName>().is_err());
    }

    #[test]
    fn what_does_not_fit_into_the_rest_of_a_window_waits_for_the_next() {
        let start = |windows: &[Window], text, minutes| {
            may_start(windows, at(text), SignedDuration::from_mins(minutes))
        };
        let closes = Some(at("2026-11-15T04:00:00Z"));
        let nights = [window(&[Day::Sat], "22:00", 6)];
        assert_eq!(start(&nights, "2026-11-15T03:00:00Z", 60), WindowStart::Now { closes });
        let next = WindowStart::At(at("2026-11-21T22:00:00Z"));
        assert_eq!(start(&nights, "2026-11-15T03:00:00Z", 61), next);
        assert_eq!(start(&nights, "2026-11-15T03:00:00Z", 361), WindowStart::TooLong);
        assert_eq!(start(&[], "2026-11-15T03:00:00Z", 361), WindowStart::Now { closes: None });
        // Windows that touch are one.
        let longer = [nights[0].clone(), window(&[Day::Sun], "04:00", 2)];
        let closes = Some(at("2026-11-15T06:00:00Z"));
        assert_eq!(start(&longer, "2026-11-15T03:00:00Z", 180), WindowStart::Now { closes });
        // A window of two days is still open on the second day.
        let weekend = [window(&[Day::Sat], "00:00", 48)];
        let closes = Some(at("2026-11-16T00:00:00Z"));
        assert_eq!(start(&weekend, "2026-11-15T12:00:00Z", 60), WindowStart::Now { closes });
    }
}
