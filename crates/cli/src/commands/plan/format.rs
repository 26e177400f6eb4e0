//! Number formatting.

pub(super) use crate::stats::thousands as grouped;

/// Three significant digits with thousands separators: `12,300`, `0.0123`.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    if size >= 1000.0 {
        return grouped(value);
    }
    let decimals = match size {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A large count with a unit: `8.03 B`, `405 B`, `15.6 T`.
pub(super) fn count(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e12 => (value / 1e12, " T"),
        value if value >= 1e9 => (value / 1e9, " B"),
        value if value >= 1e6 => (value / 1e6, " M"),
        value => (value, ""),
    };
    format!("{}{unit}", number(scaled))
}

pub(super) fn usd(value: f64) -> String {
    if value >= 1000.0 { format!("${}", grouped(value)) } else { format!("${value:.2}") }
}

/// A duration in the most readable unit, from seconds to days.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{} s", number(seconds)),
        seconds if seconds < 7200.0 => format!("{} min", number(seconds / 60.0)),
        seconds if seconds < 172_800.0 => format!("{} h", number(seconds / 3600.0)),
        seconds => format!("{} days", number(seconds / 86_400.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_significant_digits() {
        assert_eq!(number(0.012_34), "0.0123");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(16384.0), "16,384");
        assert_eq!(count(405.85e9), "406 B");
        assert_eq!(usd(1_234_567.8), "$1,234,568");
        assert_eq!(duration(5400.0), "90.0 min");
    }
}
