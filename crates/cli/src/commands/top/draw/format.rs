//! Formats values. `?` stands for an unknown value, and `-` for a value that the hardware does not
//! have.

use farrier_facts::node::Reading;
use jiff::Timestamp;

const GIB: f64 = 1_073_741_824.0;

/// A number without decimals.
pub(crate) fn number(reading: &Reading<f64>, factor: f64, unit: &str) -> String {
    shown(reading, |value| format!("{:.0}{unit}", value * factor))
}

/// A reading, formatted by a function.
pub(crate) fn shown<T>(reading: &Reading<T>, format: impl FnOnce(&T) -> String) -> String {
    match reading {
        Reading::Value(value) => format(value),
        Reading::Absent => "-".to_owned(),
        Reading::Unreadable(_) => "?".to_owned(),
    }
}

/// A ratio in whole per cent.
pub(crate) fn percent(reading: &Reading<f64>) -> String {
    number(reading, 100.0, "%")
}

/// `71/80G`; an unknown number is `?`.
pub(crate) fn of_total(used: &Reading<f64>, total: &Reading<f64>) -> String {
    match (used, total) {
        (Reading::Absent, Reading::Absent) => "-".to_owned(),
        (Reading::Unreadable(_), Reading::Unreadable(_)) => "?".to_owned(),
        _ => format!("{}/{}G", number(used, 1.0 / GIB, ""), number(total, 1.0 / GIB, "")),
    }
}

/// `698/700W`.
pub(crate) fn power(drawn: &Reading<f64>, limit: &Reading<f64>) -> String {
    match (drawn, limit) {
        (Reading::Unreadable(_), Reading::Unreadable(_)) => "?".to_owned(),
        (drawn, Reading::Absent) => number(drawn, 1.0, "W"),
        _ => format!("{}/{}W", number(drawn, 1.0, ""), number(limit, 1.0, "")),
    }
}

/// Bytes per second in at most five characters: `1.2G`.
pub(crate) fn rate(reading: &Reading<f64>) -> String {
    shown(reading, |value| scaled(*value))
}

/// A number in at most five characters.
pub(crate) fn scaled(value: f64) -> String {
    const STEPS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    for (step, unit) in STEPS {
        // If a value rounds up to the next unit, that unit is used.
        if value >= step * 0.9995 {
            let value = value / step;
            return if value < 9.95 {
                format!("{value:.1}{unit}")
            } else {
                format!("{value:.0}{unit}")
            };
        }
    }
    format!("{value:.0}")
}

/// Memory of a process: `71.3G`, `512M`.
pub(crate) fn memory(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return "?".to_owned() };
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let gib = bytes as f64 / GIB;
    if gib >= 99.95 {
        format!("{gib:.0}G")
    } else if gib >= 1.0 {
        format!("{gib:.1}G")
    } else {
        format!("{:.0}M", gib * 1024.0)
    }
}

/// `3d04h`, `4h12m`, `12m05s`, `8s`.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, left) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{left}s"),
        (0, 0, _) => format!("{minutes}m{left:02}s"),
        (0, ..) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

/// The age of a timestamp, never negative.
pub(crate) fn ago(since: Timestamp, now: Timestamp) -> String {
    duration(u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0))
}

/// Time of day in UTC.
pub(crate) fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::ReadError;

    use super::*;

    #[test]
    fn unknown_absent_and_zero_differ() {
        let unknown = Reading::Unreadable(ReadError::unavailable("it hangs"));
        assert_eq!(percent(&Reading::Value(0.0)), "0%");
        assert_eq!(percent(&Reading::Absent), "-");
        assert_eq!(percent(&unknown), "?");
        assert_eq!(of_total(&unknown, &Reading::Value(80.0 * GIB)), "?/80G");
        assert_eq!(power(&Reading::Value(12.4), &unknown), "12/?W");
        assert_eq!(power(&unknown, &unknown), "?");
        assert_eq!(memory(None), "?");
    }

    #[test]
    fn rates_fit_in_five_characters() {
        let rates = [0.0, 999.0, 999.9, 1.04e6, 9.96e9, 123.4e9, 999.9e9, 4.2e13];
        let words: Vec<String> = rates.into_iter().map(scaled).collect();
        assert_eq!(words, ["0", "999", "1.0k", "1.0M", "10G", "123G", "1.0T", "42T"]);
    }

    #[test]
    fn durations_are_short() {
        let words: Vec<String> = [8, 725, 15_130, 273_600].into_iter().map(duration).collect();
        assert_eq!(words, ["8s", "12m05s", "4h12m", "3d04h"]);
        assert_eq!(memory(Some(512 << 20)), "512M");
        assert_eq!(memory(Some(76 << 30)), "76.0G");
    }
}
