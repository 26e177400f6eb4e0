//! Draws bar charts and line charts as SVG.

use super::escape;
use crate::stats::Stats;

const WIDTH: f64 = 560.0;
/// Width of the labels to the left of the bars.
const LABELS: f64 = 124.0;
/// Width of the text to the right of the longest bar.
const NUMBERS: f64 = 186.0;
/// Height of a bar and the space around it.
const ROW: f64 = 30.0;
/// Height of the bar alone.
const BAR: f64 = 16.0;

/// A bar with its label and text.
pub(crate) struct Bar {
    pub(crate) label: String,
    /// The bar ends at the median. A whisker extends from the minimum to the maximum. With `None`,
    /// only the label and `text` are drawn.
    pub(crate) value: Option<Stats>,
    /// Individual measurements, drawn as dots.
    pub(crate) repeats: Vec<f64>,
    /// Text to the right of the bar and its whisker.
    pub(crate) text: String,
    /// Whether the bar is highlighted as the subject of the page.
    pub(crate) ours: bool,
}

/// Draws horizontal bars from zero.
pub(crate) fn bar_chart(title: &str, bars: &[Bar]) -> String {
    let max = bars.iter().filter_map(|bar| bar.value).map(|stats| stats.max).fold(0.0, f64::max);
    // If all values are zero, all bars have the length zero, so any scale is right.
    let scale = (WIDTH - LABELS - NUMBERS) / if max > 0.0 { max } else { 1.0 };
    let height = ROW * usize_f64(bars.len()) + 8.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\" class=\"plot\">\
         <title>{label}</title>\
         <line class=\"axis\" x1=\"{LABELS}\" y1=\"0\" x2=\"{LABELS}\" y2=\"{height}\"/>",
        label = escape(title)
    );
    for (index, bar) in bars.iter().enumerate() {
        let middle = ROW * usize_f64(index) + ROW / 2.0 + 4.0;
        svg.push_str(&draw_bar(bar, middle, scale));
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_bar(bar: &Bar, middle: f64, scale: f64) -> String {
    let x = |value: f64| LABELS + value * scale;
    let mut svg = format!(
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        LABELS - 8.0,
        middle + 4.5,
        escape(&bar.label)
    );
    let mut end = LABELS;
    if let Some(value) = bar.value {
        end = x(value.max);
        svg.push_str(&format!(
            "<rect class=\"{}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>",
            if bar.ours { "ours" } else { "other" },
            middle - BAR / 2.0,
            value.median * scale
        ));
        if x(value.max) - x(value.min) >= 1.0 {
            svg.push_str(&format!(
                "<path class=\"range\" d=\"M{a:.1} {top:.1}V{low:.1}M{a:.1} {middle:.1}H{b:.1}M{b:.1} {top:.1}V{low:.1}\"/>",
                a = x(value.min),
                b = x(value.max),
                top = middle - 4.0,
                low = middle + 4.0
            ));
        }
        for &repeat in &bar.repeats {
            svg.push_str(&format!(
                "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"2.2\"/>",
                x(repeat)
            ));
        }
    }
    svg.push_str(&format!(
        "<text class=\"{}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        if bar.value.is_some() { "number" } else { "missing" },
        end + 8.0,
        middle + 4.5,
        escape(&bar.text)
    ));
    svg
}

/// A time series.
pub(crate) struct LineSeries {
    /// Time in seconds, and value.
    pub(crate) points: Vec<(f64, f64)>,
    /// Caption above the line.
    pub(crate) text: String,
}

const LINE_HEIGHT: f64 = 120.0;

/// Draws one line. Both axes start at zero.
pub(crate) fn line_chart(title: &str, line: &LineSeries) -> String {
    let (end_s, max) = line
        .points
        .iter()
        .fold((1.0, 0.0), |(end_s, max): (f64, f64), point| (end_s.max(point.0), max.max(point.1)));
    let max = if max > 0.0 { max * 1.05 } else { 1.0 };
    let (bottom, top) = (LINE_HEIGHT - 18.0, 20.0);
    let coordinates = |(at_s, value): &(f64, f64)| {
        let x = at_s / end_s * (WIDTH - 2.0);
        format!("{:.1},{:.1}", x + 1.0, bottom - value / max * (bottom - top))
    };
    let points: Vec<String> = line.points.iter().map(coordinates).collect();
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {LINE_HEIGHT}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>\
         <text x=\"0\" y=\"13\">{text}</text><line class=\"axis\" x1=\"0\" y1=\"{bottom}\" x2=\"{WIDTH}\" y2=\"{bottom}\"/>\
         <polyline class=\"line\" points=\"{points}\"/>\
         <text class=\"number\" x=\"0\" y=\"{LINE_HEIGHT}\">0 s</text>\
         <text class=\"label\" x=\"{WIDTH}\" y=\"{LINE_HEIGHT}\">{end_s:.0} s</text></svg>\n",
        label = escape(title),
        text = escape(&line.text),
        points = points.join(" ")
    )
}

fn usize_f64(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(numbers: &[f64]) -> Bar {
        Bar {
            label: "a <b>".to_owned(),
            value: Stats::from_samples(numbers.iter().copied()),
            repeats: numbers.to_vec(),
            text: "text".to_owned(),
            ours: true,
        }
    }

    #[test]
    fn the_longest_range_fills_the_chart_and_others_are_in_proportion() {
        let svg = bar_chart("t", &[bar(&[50.0, 50.0]), bar(&[80.0, 100.0])]);
        assert!(svg.contains("width=\"125.0\""), "half of 250: {svg}");
        assert!(svg.contains("width=\"225.0\""), "0.9 of 250: {svg}");
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("<b>"));
        assert_eq!(
            svg.matches("class=\"range\"").count(),
            1,
            "the bar with equal values has no range"
        );
    }

    #[test]
    fn empty_or_constant_lines_contain_no_nan() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 5.0), (2.0, 6.0)]] {
            let svg = line_chart("t", &LineSeries { points, text: "<x>".to_owned() });
            assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<x>"), "{svg}");
        }
    }

    #[test]
    fn zeros_and_empty_bars_contain_no_nan() {
        let svg = bar_chart("t", &[bar(&[0.0]), bar(&[])]);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("class=\"missing\"").count(), 1);
    }
}
