//! Chart scales, tick values and tick labels. Pure.

use crate::stats::thousands;

/// Width of a chart. Two charts fit side by side on a wide page; one chart fills a narrow page.
pub(super) const WIDTH: f64 = 560.0;

/// Converts a count to a coordinate.
pub(super) fn coordinate(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

/// Returns about five round tick values, from zero to at most `max`.
pub(super) fn ticks(max: f64) -> Vec<f64> {
    if !(max.is_finite() && max > 0.0) {
        return vec![0.0];
    }
    let power = 10_f64.powf((max / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| max / step <= 6.0)
        .unwrap_or(10.0 * power);
    let mut values = Vec::new();
    let mut count = 0.0;
    while count * step <= max * (1.0 + 1e-9) {
        values.push(count * step);
        count += 1.0;
    }
    values
}

/// A logarithmic scale, and the range of coordinates that it is mapped to.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogScale {
    pub(super) min: f64,
    pub(super) max: f64,
    from: f64,
    to: f64,
}

/// Lower bound for the maximum, so that the logarithm stays finite.
const SMALLEST_MAX: f64 = 1e-12;

impl LogScale {
    /// A scale that contains all values. It leaves a factor of `margin` free on both sides, and its
    /// ends differ by at least a factor of `min_ratio`.
    pub(super) fn containing(
        values: impl Iterator<Item = f64>,
        margin: f64,
        min_ratio: f64,
    ) -> Self {
        let drawable = values.filter(|value| value.is_finite() && *value > 0.0);
        let (mut min, mut max) = drawable
            .fold((f64::INFINITY, SMALLEST_MAX), |(min, max): (f64, f64), value| {
                (min.min(value), max.max(value))
            });
        if !min.is_finite() {
            (min, max) = (1.0, 1.0);
        }
        (min, max) = (min / margin, max * margin);
        let widening = (min_ratio / (max / min)).max(1.0).sqrt();
        Self { min: min / widening, max: max * widening, from: 0.0, to: 1.0 }
    }

    /// Maps the scale to the coordinates `from` to `to`.
    pub(super) fn mapped_to(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// Coordinate of a value, clamped to the scale.
    pub(super) fn at(self, value: f64) -> f64 {
        let inside = if value.is_nan() { self.min } else { value.clamp(self.min, self.max) };
        let share = (inside / self.min).ln() / (self.max / self.min).ln();
        self.from + (self.to - self.from) * share
    }

    /// Round tick values: powers of ten on a wide scale, with intermediate values on a narrow one.
    pub(super) fn ticks(self) -> Vec<f64> {
        const BETWEEN: [&[f64]; 4] = [
            &[1.0],
            &[1.0, 2.0, 5.0],
            &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            &[
                1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.2, 2.5, 2.8, 3.0, 3.5,
                4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0,
            ],
        ];
        let mut values = Vec::new();
        for factors in BETWEEN {
            values.clear();
            let mut power = 10_f64.powf(self.min.log10().floor());
            while power <= self.max {
                values.extend(factors.iter().map(|factor| factor * power));
                power *= 10.0;
            }
            values.retain(|value| (self.min..=self.max).contains(value));
            if values.len() >= 3 {
                break;
            }
        }
        values
    }
}

/// A number without trailing zeros: `0.05`, `2`, `1,000`.
pub(super) fn plain(value: f64) -> String {
    if value >= 1000.0 {
        return thousands(value);
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number, abbreviated from 10,000 on: `15k`, `1.5M`.
pub(super) fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e9 => (value / 1e9, "B"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    format!("{}{unit}", plain(scaled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_reach_up_to_the_maximum() {
        assert_eq!(ticks(80.0), [0.0, 20.0, 40.0, 60.0, 80.0]);
        let formatted: Vec<String> = ticks(0.5).into_iter().map(plain).collect();
        assert_eq!(formatted, ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
        for invalid in [0.0, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(ticks(invalid), [0.0]);
        }
    }

    #[test]
    fn a_logarithmic_scale_preserves_ratios_and_clamps() {
        let log = LogScale::containing([1.0, 100.0].into_iter(), 1.0, 1.0).mapped_to(10.0, 30.0);
        assert!((log.at(10.0) - 20.0).abs() < 1e-9);
        assert!((log.at(1e9) - 30.0).abs() < 1e-9 && (log.at(0.0) - 10.0).abs() < 1e-9);
        assert_eq!(log.ticks(), [1.0, 10.0, 100.0]);
    }

    #[test]
    fn a_narrow_scale_is_widened_and_has_ticks() {
        for middle in [1.0, 37.0, 4.2e6, 0.013] {
            let log = LogScale::containing([middle].into_iter(), 1.1, 1.6).mapped_to(0.0, 100.0);
            assert!((log.at(middle) - 50.0).abs() < 1e-6);
            assert!(log.ticks().len() >= 3, "{middle} {:?}", log.ticks());
        }
        let nothing =
            LogScale::containing([f64::NAN, 0.0].into_iter(), 1.1, 2.0).mapped_to(0.0, 1.0);
        assert!(nothing.at(1.0).is_finite());
    }

    #[test]
    fn large_numbers_are_abbreviated() {
        let formatted: Vec<String> = [0.05, 2.0, 1000.0, 1.5e4, 2e6, 1.5e9].map(short).into();
        assert_eq!(formatted, ["0.05", "2", "1,000", "15k", "2M", "1.5B"]);
    }
}
