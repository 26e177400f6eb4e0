//! Scales of plots, and the values that are written beside them. Pure.

use crate::spread::thousands;

/// The width of every plot: two stand beside each other on a wide page, one fills a narrow one.
pub(super) const WIDTH: f64 = 560.0;

/// A number of things as a coordinate.
pub(super) fn coordinate(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

/// Round values from zero to at most `most`, some five of them.
pub(super) fn round_values(most: f64) -> Vec<f64> {
    if !(most.is_finite() && most > 0.0) {
        return vec![0.0];
    }
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| most / step <= 6.0)
        .unwrap_or(10.0 * power);
    let mut values = Vec::new();
    let mut count = 0.0;
    while count * step <= most * (1.0 + 1e-9) {
        values.push(count * step);
        count += 1.0;
    }
    values
}

/// A logarithmic scale between two coordinates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log {
    pub(super) least: f64,
    pub(super) most: f64,
    from: f64,
    to: f64,
}

/// A scale for something of no or absurd size would be none.
const SMALLEST: f64 = 1e-12;

impl Log {
    /// One that holds all values, with `room` on both sides as a factor, over at least a factor of
    /// `least_ratio`.
    pub(super) fn around(values: impl Iterator<Item = f64>, room: f64, least_ratio: f64) -> Self {
        let known = values.filter(|value| value.is_finite() && *value > 0.0);
        let (mut least, mut most) = known
            .fold((f64::INFINITY, SMALLEST), |(least, most): (f64, f64), value| {
                (least.min(value), most.max(value))
            });
        if !least.is_finite() {
            (least, most) = (1.0, 1.0);
        }
        (least, most) = (least / room, most * room);
        let lacking = (least_ratio / (most / least)).max(1.0).sqrt();
        Self { least: least / lacking, most: most * lacking, from: 0.0, to: 1.0 }
    }

    /// The same, drawn between two coordinates.
    pub(super) fn drawn(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// Where a value is; at the end where it is beyond.
    pub(super) fn at(self, value: f64) -> f64 {
        let inside = if value.is_nan() { self.least } else { value.clamp(self.least, self.most) };
        let share = (inside / self.least).ln() / (self.most / self.least).ln();
        self.from + (self.to - self.from) * share
    }

    /// Round values on it: powers of ten where they are many, and more between where they are few.
    pub(super) fn round_values(self) -> Vec<f64> {
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
            let mut power = 10_f64.powf(self.least.log10().floor());
            while power <= self.most {
                values.extend(factors.iter().map(|factor| factor * power));
                power *= 10.0;
            }
            values.retain(|value| (self.least..=self.most).contains(value));
            if values.len() >= 3 {
                break;
            }
        }
        values
    }
}

/// A round number, without zeros that say nothing: `0.05`, `2`, `1,000`.
pub(super) fn plain(value: f64) -> String {
    if value >= 1000.0 {
        return thousands(value);
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A round number in thousands, millions or billions: `1.5M`.
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
    fn round_values_reach_up_to_the_most() {
        assert_eq!(round_values(80.0), [0.0, 20.0, 40.0, 60.0, 80.0]);
        let written: Vec<String> = round_values(0.5).into_iter().map(plain).collect();
        assert_eq!(written, ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
        for none in [0.0, f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(round_values(none), [0.0]);
        }
    }

    #[test]
    fn a_logarithmic_scale_keeps_ratios_and_its_ends() {
        let log = Log::around([1.0, 100.0].into_iter(), 1.0, 1.0).drawn(10.0, 30.0);
        assert!((log.at(10.0) - 20.0).abs() < 1e-9);
        assert!((log.at(1e9) - 30.0).abs() < 1e-9 && (log.at(0.0) - 10.0).abs() < 1e-9);
        assert_eq!(log.round_values(), [1.0, 10.0, 100.0]);
    }

    #[test]
    fn a_narrow_scale_is_widened_and_still_has_values() {
        for middle in [1.0, 37.0, 4.2e6, 0.013] {
            let log = Log::around([middle].into_iter(), 1.1, 1.6).drawn(0.0, 100.0);
            assert!((log.at(middle) - 50.0).abs() < 1e-6);
            assert!(log.round_values().len() >= 3, "{middle} {:?}", log.round_values());
        }
        let nothing = Log::around([f64::NAN, 0.0].into_iter(), 1.1, 2.0).drawn(0.0, 1.0);
        assert!(nothing.at(1.0).is_finite());
    }

    #[test]
    fn numbers_are_short() {
        let written: Vec<String> = [0.05, 2.0, 1000.0, 1.5e4, 2e6, 1.5e9].map(short).into();
        assert_eq!(written, ["0.05", "2", "1,000", "15k", "2M", "1.5B"]);
    }
}
