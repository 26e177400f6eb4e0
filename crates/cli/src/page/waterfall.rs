//! Parts of a whole, one after the other. Pure.

use super::axis::{WIDTH, coordinate, plain, round_values};
use super::{Colour, escape};

const LABELS: f64 = 166.0;
/// Room for the words at the end of the last bar.
const NUMBERS: f64 = 128.0;
const ROW: f64 = 25.0;
const BAR: f64 = 15.0;
const AXIS: f64 = 38.0;

/// Parts that follow each other, and their sum.
pub(crate) struct Waterfall<'a> {
    /// What it shows.
    pub(crate) title: &'a str,
    /// Of the axis.
    pub(crate) unit: &'a str,
    /// In their order.
    pub(crate) falls: Vec<Fall>,
    /// What the sum is called.
    pub(crate) sum: &'a str,
    /// What is written at its end.
    pub(crate) sum_text: String,
    /// How far it may be off, from and to.
    pub(crate) sum_range: (f64, f64),
}

/// One part.
pub(crate) struct Fall {
    /// What it is.
    pub(crate) label: String,
    /// Its length.
    pub(crate) value: f64,
    /// What is written at its end.
    pub(crate) text: String,
    /// Of its bar.
    pub(crate) colour: Colour,
}

/// Draws them.
pub(crate) fn waterfall(water: &Waterfall) -> String {
    let sum: f64 = water.falls.iter().map(|fall| fall.value).sum();
    let most = sum.max(water.sum_range.1);
    let scale = (WIDTH - LABELS - NUMBERS) / if most > 0.0 { most } else { 1.0 };
    let x = |value: f64| LABELS + value * scale;
    let bottom = ROW * coordinate(water.falls.len() + 1) + 4.0;
    let height = bottom + AXIS;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>",
        label = escape(water.title)
    );
    for value in round_values(most) {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{at:.1}\" y1=\"0\" x2=\"{at:.1}\" y2=\"{bottom}\"/>\
             <text class=\"tick middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 15.0,
            plain(value),
            at = x(value)
        ));
    }
    let mut before = 0.0;
    for (place, fall) in water.falls.iter().enumerate() {
        let top = ROW * coordinate(place) + (ROW - BAR) / 2.0;
        let (from, to) = (x(before), x(before + fall.value));
        before += fall.value;
        svg.push_str(&row(&fall.label, top, to + 7.0, &fall.text, "number over"));
        svg.push_str(&format!(
            "<rect class=\"fall {}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>\
             <path class=\"step\" d=\"M{to:.1} {:.1}V{:.1}\"/>",
            fall.colour.class(),
            (to - from).max(1.0),
            top + BAR,
            top + ROW
        ));
    }
    let top = ROW * coordinate(water.falls.len()) + (ROW - BAR) / 2.0;
    let (least, most) = (x(water.sum_range.0), x(water.sum_range.1));
    svg.push_str(&row(
        water.sum,
        top,
        most.max(x(sum)) + 7.0,
        &water.sum_text,
        "number over strong",
    ));
    svg.push_str(&format!(
        "<rect class=\"other\" x=\"{LABELS}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>\
         <path class=\"range\" d=\"M{least:.1} {high:.1}V{low:.1}M{least:.1} {middle:.1}H{most:.1}M{most:.1} {high:.1}V{low:.1}\"/>\
         <text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text></svg>\n",
        sum * scale,
        f64::midpoint(LABELS, WIDTH - NUMBERS),
        height - 6.0,
        escape(water.unit),
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

    fn of(values: &[f64], sum_range: (f64, f64)) -> String {
        let fall = |value: &f64| Fall {
            label: "<l>".to_owned(),
            value: *value,
            text: "t".to_owned(),
            colour: Colour::Rose,
        };
        waterfall(&Waterfall {
            title: "t",
            unit: "seconds",
            falls: values.iter().map(fall).collect(),
            sum: "step",
            sum_text: "all".to_owned(),
            sum_range,
        })
    }

    #[test]
    fn each_begins_where_the_last_ended() {
        // 266 for 4: 66.5 each.
        let svg = of(&[1.0, 2.0, 1.0], (4.0, 4.0));
        for (from, width) in [("166.0", "66.5"), ("232.5", "133.0"), ("365.5", "66.5")] {
            assert!(svg.contains(&format!("x=\"{from}\"")), "{svg}");
            assert!(svg.contains(&format!("width=\"{width}\"")), "{svg}");
        }
        assert!(!svg.contains("<l>"));
    }

    #[test]
    fn the_range_has_room_and_nothing_is_no_nonsense() {
        assert!(of(&[1.0], (0.5, 2.0)).contains("H432.0"), "the range ends at the edge");
        let svg = of(&[], (0.0, 0.0));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
