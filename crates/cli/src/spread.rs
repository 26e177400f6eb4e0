//! Repeats of one measurement: their middle and how far they lie apart. Pure.

use serde::Serialize;

/// The median and the range of some numbers; there is at least one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The middle one, or the mean of the two.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) least: f64,
    /// The largest.
    pub(crate) most: f64,
    /// How many there were.
    pub(crate) count: usize,
}

impl Spread {
    /// Of numbers that are all finite; none of no numbers, and none where one is not a number.
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        if sorted.iter().any(|number| !number.is_finite()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, least, most, count: sorted.len() })
    }

    /// The same in another unit. `factor` is positive.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            least: self.least * factor,
            most: self.most * factor,
            ..self
        }
    }

    /// `median (least to most)`; the range only where it shows.
    pub(crate) fn text(self, write: impl Fn(f64) -> String) -> String {
        let (median, least, most) = (write(self.median), write(self.least), write(self.most));
        if least == most {
            return median;
        }
        format!("{median} ({} to {})", bare(&least), bare(&most))
    }
}

/// Without its unit, which is said once.
pub(crate) fn bare(text: &str) -> &str {
    text.trim_end_matches(" %").trim_end_matches(" points")
}

/// A number with commas between the thousands.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 && digits != "0" { format!("-{text}") } else { text }
}

/// A number with three figures that count, without powers of ten.
pub(crate) fn figures(number: f64) -> String {
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
    fn the_median_is_the_middle_one_or_between_the_two() {
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.least, odd.most, odd.count), (2.0, 1.0, 3.0, 3));
        assert!((Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median - 2.5).abs() < 1e-12);
    }

    #[test]
    fn nothing_and_what_is_no_number_have_no_spread() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
        assert_eq!(Spread::of([1.0, f64::INFINITY]), None);
    }

    #[test]
    fn a_range_is_written_where_it_shows() {
        assert_eq!(Spread::of([1000.2, 1000.4]).unwrap().text(thousands), "1,000");
        let apart = Spread::of([999.0, 123_456.0, 1000.0]).unwrap();
        assert_eq!(apart.text(thousands), "1,000 (999 to 123,456)");
        let shares = Spread::of([1.0, 2.0, 3.0]).unwrap();
        assert_eq!(shares.text(|share| format!("{share} %")), "2 % (1 to 3)");
    }

    #[test]
    fn figures_that_count() {
        let written: Vec<String> =
            [0.0, 0.0123, 1.234, 12.34, 123.4, 1_234_567.0, -1234.0].map(figures).into();
        assert_eq!(written, ["0.00", "0.012", "1.23", "12.3", "123", "1,234,567", "-1,234"]);
    }
}
