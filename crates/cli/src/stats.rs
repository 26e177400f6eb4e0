//! Summary statistics of repeated measurements, and number formatting. Pure.

use serde::Serialize;

/// Median and range of at least one sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Stats {
    pub(crate) median: f64,
    #[serde(rename = "least")]
    pub(crate) min: f64,
    #[serde(rename = "most")]
    pub(crate) max: f64,
    pub(crate) count: usize,
}

impl Stats {
    /// `None` without samples, or if a sample is not finite.
    pub(crate) fn from_samples(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        if sorted.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max, count: sorted.len() })
    }

    /// Converts to another unit. `factor` is positive.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
            ..self
        }
    }

    /// `median (min to max)`; the range only if its ends differ after formatting.
    pub(crate) fn format_with(self, format: impl Fn(f64) -> String) -> String {
        let (median, min, max) = (format(self.median), format(self.min), format(self.max));
        if min == max {
            return median;
        }
        format!("{median} ({} to {})", strip_unit(&min), strip_unit(&max))
    }
}

/// Removes the unit from a formatted number, for ranges that state it once.
pub(crate) fn strip_unit(text: &str) -> &str {
    text.trim_end_matches(" %").trim_end_matches(" points")
}

/// A number rounded to an integer, with commas between thousands.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 && digits != "0" { format!("-{text}") } else { text }
}

/// A number with three significant figures, without an exponent.
pub(crate) fn significant(number: f64) -> String {
    let size = number.abs();
    if size >= 1000.0 {
        thousands(number)
    } else if size >= 100.0 {
        format!("{number:.0}")
    } else if size >= 10.0 {
        format!("{number:.1}")
    } else if size >= 1.0 || size == 0.0 {
        format!("{number:.2}")
    } else {
        format!("{number:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_count_averages_the_two_middle_samples() {
        let odd = Stats::from_samples([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.count), (2.0, 1.0, 3.0, 3));
        assert!((Stats::from_samples([4.0, 1.0, 2.0, 3.0]).unwrap().median - 2.5).abs() < 1e-12);
    }

    #[test]
    fn no_samples_or_non_finite_samples_have_no_stats() {
        assert_eq!(Stats::from_samples([]), None);
        assert_eq!(Stats::from_samples([1.0, f64::NAN]), None);
        assert_eq!(Stats::from_samples([1.0, f64::INFINITY]), None);
    }

    #[test]
    fn a_range_is_printed_only_if_it_is_visible() {
        assert_eq!(Stats::from_samples([1000.2, 1000.4]).unwrap().format_with(thousands), "1,000");
        let apart = Stats::from_samples([999.0, 123_456.0, 1000.0]).unwrap();
        assert_eq!(apart.format_with(thousands), "1,000 (999 to 123,456)");
        let shares = Stats::from_samples([1.0, 2.0, 3.0]).unwrap();
        assert_eq!(shares.format_with(|share| format!("{share} %")), "2 % (1 to 3)");
    }

    #[test]
    fn three_significant_figures() {
        let formatted: Vec<String> =
            [0.0, 0.0123, 1.234, 12.34, 123.4, 1_234_567.0, -1234.0].map(significant).into();
        assert_eq!(formatted, ["0.00", "0.012", "1.23", "12.3", "123", "1,234,567", "-1,234"]);
    }
}
