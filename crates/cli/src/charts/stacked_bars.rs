//! Stacked bar chart with a limit line. Pure.

use super::axis::{WIDTH, coordinate, plain, ticks};
use super::{Colour, escape};

const HEIGHT: f64 = 320.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = WIDTH - 8.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 40.0;
/// Maximum width of a bar in a chart with few bars.
const MAX_WIDTH: f64 = 64.0;
/// Width needed by the label under a bar.
const LABEL_WIDTH: f64 = 24.0;

/// Stacked bars under a limit.
pub(crate) struct StackedBars<'a> {
    pub(crate) title: &'a str,
    /// Unit of the y axis.
    pub(crate) unit: &'a str,
    /// Title of the x axis.
    pub(crate) each: &'a str,
    /// Colours of the segments, beginning at the bottom.
    pub(crate) colours: &'a [Colour],
    /// The bars, from left to right.
    pub(crate) bars: Vec<StackedBar>,
    /// Value and label of the limit line.
    pub(crate) limit: Option<(f64, String)>,
}

pub(crate) struct StackedBar {
    /// Label under the bar, if it fits.
    pub(crate) label: String,
    /// Segments, beginning at the bottom. Each has one of the colours.
    pub(crate) segments: Vec<f64>,
    /// Value at which the mark above the bar is drawn.
    pub(crate) mark: Option<f64>,
    /// Tooltip.
    pub(crate) text: String,
}

pub(crate) fn stacked_bars(chart: &StackedBars) -> String {
    let max = chart
        .bars
        .iter()
        .map(|bar| bar.mark.unwrap_or_default().max(bar.segments.iter().sum()))
        .fold(chart.limit.as_ref().map_or(0.0, |(limit, _)| *limit), f64::max);
    let max = if max > 0.0 { max * 1.08 } else { 1.0 };
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / max;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>\
         <text class=\"tick\" x=\"0\" y=\"13\">{unit}</text>",
        label = escape(chart.title),
        unit = escape(chart.unit)
    );
    for value in ticks(max) {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"tick label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y(value) + 4.0,
            plain(value),
            at = y(value)
        ));
    }
    let slot = (RIGHT - LEFT) / coordinate(chart.bars.len().max(1));
    let width = (slot * 0.78).min(MAX_WIDTH);
    let every = std::iter::successors(Some(1_usize), |every| every.checked_mul(2))
        .find(|every| coordinate(*every) * slot >= LABEL_WIDTH)
        .unwrap_or(1);
    for (index, bar) in chart.bars.iter().enumerate() {
        let middle = LEFT + slot * (coordinate(index) + 0.5);
        svg.push_str(&draw_bar(bar, chart.colours, middle, width, y));
        if index % every == 0 {
            svg.push_str(&format!(
                "<text class=\"tick middle\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
                BOTTOM + 16.0,
                escape(&bar.label)
            ));
        }
    }
    svg.push_str(&format!(
        "<text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 6.0,
        escape(chart.each)
    ));
    if let Some((limit, label)) = &chart.limit {
        let at = y(*limit);
        svg.push_str(&format!(
            "<path class=\"limit\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>\
             <text class=\"label over limit-text\" x=\"{RIGHT}\" y=\"{:.1}\">{}</text>",
            at - 6.0,
            escape(label)
        ));
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_bar(
    bar: &StackedBar,
    colours: &[Colour],
    middle: f64,
    width: f64,
    y: impl Fn(f64) -> f64,
) -> String {
    let (left, right) = (middle - width / 2.0, middle + width / 2.0);
    let mut svg = format!("<g class=\"column\"><title>{}</title>", escape(&bar.text));
    let mut below = 0.0;
    for (segment, colour) in bar.segments.iter().zip(colours) {
        let (low, high) = (y(below), y(below + segment));
        below += segment;
        if low - high > 0.05 {
            svg.push_str(&format!(
                "<rect class=\"part {}\" x=\"{left:.1}\" y=\"{high:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
                colour.class(),
                low - high
            ));
        }
    }
    if let Some(mark) = bar.mark {
        svg.push_str(&format!(
            "<path class=\"range\" d=\"M{left:.1} {mark:.1}H{right:.1}M{middle:.1} {mark:.1}V{:.1}\"/>",
            y(below),
            mark = y(mark)
        ));
    }
    svg.push_str("</g>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(bars: u32, limit: f64) -> String {
        let bar = |number: u32| StackedBar {
            label: number.to_string(),
            segments: vec![f64::from(number), 0.0, 2.0],
            mark: Some(f64::from(number) + 3.0),
            text: "<t>".to_owned(),
        };
        stacked_bars(&StackedBars {
            title: "t",
            unit: "GiB",
            each: "stage",
            colours: &[Colour::Indigo, Colour::Sand, Colour::Teal],
            bars: (0..bars).map(bar).collect(),
            limit: Some((limit, "all".to_owned())),
        })
    }

    #[test]
    fn every_bar_is_drawn_and_labels_do_not_overlap() {
        let svg = draw(64, 80.0);
        assert_eq!(svg.matches("class=\"column\"").count(), 64);
        // Each of the 64 bars gets about 8 of 508 units, so every fourth bar has a label. The axis
        // title has the same class.
        assert_eq!(svg.matches("tick middle").count(), 16 + 1);
        assert!(!svg.contains("<t>") && !svg.contains("NaN"));
        assert_eq!(draw(4, 80.0).matches("tick middle").count(), 4 + 1);
    }

    #[test]
    fn heights_are_in_proportion() {
        // The axis ends 8 % above the limit of 100 and is 254 units high. The tallest segment
        // is 63.
        let svg = draw(64, 100.0);
        assert!(svg.contains(&format!("height=\"{:.1}\"", 254.0 * 63.0 / 108.0)), "{svg}");
    }

    #[test]
    fn an_empty_chart_contains_no_nan() {
        let svg = draw(0, 0.0);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
