//! Waterfall chart: consecutive parts of a sum. Pure.

use super::axis::{WIDTH, coordinate, plain, ticks};
use super::{Colour, escape};

const LABELS: f64 = 166.0;
/// Space for the text at the end of the last bar.
const NUMBERS: f64 = 128.0;
const ROW: f64 = 25.0;
const BAR: f64 = 15.0;
const AXIS: f64 = 38.0;

/// Consecutive parts and their sum.
pub(crate) struct Waterfall<'a> {
    pub(crate) title: &'a str,
    /// Title of the x axis.
    pub(crate) unit: &'a str,
    pub(crate) bars: Vec<WaterfallBar>,
    /// Label of the sum.
    pub(crate) sum: &'a str,
    /// Text at the end of the sum's bar.
    pub(crate) sum_text: String,
    /// Ends of the sum's error bar.
    pub(crate) sum_range: (f64, f64),
}

pub(crate) struct WaterfallBar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Text at the end of the bar.
    pub(crate) text: String,
    pub(crate) colour: Colour,
}

pub(crate) fn waterfall(chart: &Waterfall) -> String {
    let sum: f64 = chart.bars.iter().map(|bar| bar.value).sum();
    let max = sum.max(chart.sum_range.1);
    let scale = (WIDTH - LABELS - NUMBERS) / if max > 0.0 { max } else { 1.0 };
    let x = |value: f64| LABELS + value * scale;
    let bottom = ROW * coordinate(chart.bars.len() + 1) + 4.0;
    let height = bottom + AXIS;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>",
        label = escape(chart.title)
    );
    for value in ticks(max) {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{at:.1}\" y1=\"0\" x2=\"{at:.1}\" y2=\"{bottom}\"/>\
             <text class=\"tick middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 15.0,
            plain(value),
            at = x(value)
        ));
    }
    let mut before = 0.0;
    for (index, bar) in chart.bars.iter().enumerate() {
        let top = ROW * coordinate(index) + (ROW - BAR) / 2.0;
        let (from, to) = (x(before), x(before + bar.value));
        before += bar.value;
        svg.push_str(&row(&bar.label, top, to + 7.0, &bar.text, "number over"));
        svg.push_str(&format!(
            "<rect class=\"fall {}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>\
             <path class=\"step\" d=\"M{to:.1} {:.1}V{:.1}\"/>",
            bar.colour.class(),
            (to - from).max(1.0),
            top + BAR,
            top + ROW
        ));
    }
    let top = ROW * coordinate(chart.bars.len()) + (ROW - BAR) / 2.0;
    let (min, max) = (x(chart.sum_range.0), x(chart.sum_range.1));
    svg.push_str(&row(
        chart.sum,
        top,
        max.max(x(sum)) + 7.0,
        &chart.sum_text,
        "number over strong",
    ));
    svg.push_str(&format!(
        "<rect class=\"other\" x=\"{LABELS}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>\
         <path class=\"range\" d=\"M{min:.1} {high:.1}V{low:.1}M{min:.1} {middle:.1}H{max:.1}M{max:.1} {high:.1}V{low:.1}\"/>\
         <text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text></svg>\n",
        sum * scale,
        f64::midpoint(LABELS, WIDTH - NUMBERS),
        height - 6.0,
        escape(chart.unit),
        middle = top + BAR / 2.0,
        high = top + BAR / 2.0 - 4.0,
        low = top + BAR / 2.0 + 4.0,
    ));
    svg
}

fn row(label: &str, top: f64, end: f64, text: &str, class: &str) -> String {
    let line = top + BAR / 2.0 + 4.5;
    format!(
        "<text class=\"label\" x=\"{:.1}\" y=\"{line:.1}\">{}</text>\
         <text class=\"{class}\" x=\"{end:.1}\" y=\"{line:.1}\">{}</text>",
        LABELS - 8.0,
        escape(label),
        escape(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(values: &[f64], sum_range: (f64, f64)) -> String {
        let bar = |value: &f64| WaterfallBar {
            label: "<l>".to_owned(),
            value: *value,
            text: "t".to_owned(),
            colour: Colour::Rose,
        };
        waterfall(&Waterfall {
            title: "t",
            unit: "seconds",
            bars: values.iter().map(bar).collect(),
            sum: "step",
            sum_text: "all".to_owned(),
            sum_range,
        })
    }

    #[test]
    fn each_bar_starts_where_the_previous_one_ends() {
        // The sum of 4 spans 266 units, so a value of 1 spans 66.5.
        let svg = draw(&[1.0, 2.0, 1.0], (4.0, 4.0));
        for (from, width) in [("166.0", "66.5"), ("232.5", "133.0"), ("365.5", "66.5")] {
            assert!(svg.contains(&format!("x=\"{from}\"")), "{svg}");
            assert!(svg.contains(&format!("width=\"{width}\"")), "{svg}");
        }
        assert!(!svg.contains("<l>"));
    }

    #[test]
    fn the_error_bar_fits_and_an_empty_chart_contains_no_nan() {
        assert!(draw(&[1.0], (0.5, 2.0)).contains("H432.0"), "the range ends at the edge");
        let svg = draw(&[], (0.0, 0.0));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
