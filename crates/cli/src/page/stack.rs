//! Columns of parts beside each other, with a limit over them. Pure.

use super::axis::{WIDTH, coordinate, plain, round_values};
use super::{Colour, escape};

const HEIGHT: f64 = 320.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = WIDTH - 8.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 40.0;
/// A column is no wider, however few there are.
const WIDEST: f64 = 64.0;
/// The number under a column needs as much.
const LABEL: f64 = 24.0;

/// Columns, and what they are held to.
pub(crate) struct Stack<'a> {
    /// What it shows.
    pub(crate) title: &'a str,
    /// Of the height.
    pub(crate) unit: &'a str,
    /// What a column is.
    pub(crate) each: &'a str,
    /// The colour of each part, from below.
    pub(crate) colours: &'a [Colour],
    /// From the left.
    pub(crate) columns: Vec<Column>,
    /// The most that a column may be, and what is written at it.
    pub(crate) limit: (f64, String),
}

/// One column.
pub(crate) struct Column {
    /// What is written under it, where there is room.
    pub(crate) label: String,
    /// Its parts, from below, as many as there are colours.
    pub(crate) parts: Vec<f64>,
    /// A mark above it.
    pub(crate) mark: f64,
    /// What it says when pointed at.
    pub(crate) text: String,
}

/// Draws them.
pub(crate) fn stack(stack: &Stack) -> String {
    let most = stack
        .columns
        .iter()
        .map(|column| column.mark.max(column.parts.iter().sum()))
        .fold(stack.limit.0, f64::max);
    let most = if most > 0.0 { most * 1.08 } else { 1.0 };
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / most;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>\
         <text class=\"tick\" x=\"0\" y=\"13\">{unit}</text>",
        label = escape(stack.title),
        unit = escape(stack.unit)
    );
    for value in round_values(most) {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"tick label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y(value) + 4.0,
            plain(value),
            at = y(value)
        ));
    }
    let slot = (RIGHT - LEFT) / coordinate(stack.columns.len().max(1));
    let width = (slot * 0.78).min(WIDEST);
    let every = std::iter::successors(Some(1_usize), |every| every.checked_mul(2))
        .find(|every| coordinate(*every) * slot >= LABEL)
        .unwrap_or(1);
    for (place, column) in stack.columns.iter().enumerate() {
        let middle = LEFT + slot * (coordinate(place) + 0.5);
        svg.push_str(&drawn(column, stack.colours, middle, width, y));
        if place % every == 0 {
            svg.push_str(&format!(
                "<text class=\"tick middle\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
                BOTTOM + 16.0,
                escape(&column.label)
            ));
        }
    }
    let at = y(stack.limit.0);
    svg.push_str(&format!(
        "<text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <path class=\"limit\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>\
         <text class=\"label over limit-text\" x=\"{RIGHT}\" y=\"{:.1}\">{}</text></svg>\n",
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 6.0,
        escape(stack.each),
        at - 6.0,
        escape(&stack.limit.1)
    ));
    svg
}

fn drawn(
    column: &Column,
    colours: &[Colour],
    middle: f64,
    width: f64,
    y: impl Fn(f64) -> f64,
) -> String {
    let (left, right) = (middle - width / 2.0, middle + width / 2.0);
    let mut svg = format!("<g class=\"column\"><title>{}</title>", escape(&column.text));
    let mut below = 0.0;
    for (part, colour) in column.parts.iter().zip(colours) {
        let (low, high) = (y(below), y(below + part));
        below += part;
        if low - high > 0.05 {
            svg.push_str(&format!(
                "<rect class=\"part {}\" x=\"{left:.1}\" y=\"{high:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
                colour.class(),
                low - high
            ));
        }
    }
    svg.push_str(&format!(
        "<path class=\"range\" d=\"M{left:.1} {mark:.1}H{right:.1}M{middle:.1} {mark:.1}V{:.1}\"/></g>",
        y(below),
        mark = y(column.mark)
    ));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(columns: u32, limit: f64) -> String {
        let column = |number: u32| Column {
            label: number.to_string(),
            parts: vec![f64::from(number), 0.0, 2.0],
            mark: f64::from(number) + 3.0,
            text: "<t>".to_owned(),
        };
        stack(&Stack {
            title: "t",
            unit: "GiB",
            each: "stage",
            colours: &[Colour::Indigo, Colour::Sand, Colour::Teal],
            columns: (0..columns).map(column).collect(),
            limit: (limit, "all".to_owned()),
        })
    }

    #[test]
    fn every_column_is_drawn_and_labels_have_room() {
        let svg = of(64, 80.0);
        assert_eq!(svg.matches("class=\"column\"").count(), 64);
        // 508 over 64 is 8: every fourth has a label, and the axis has its title.
        assert_eq!(svg.matches("tick middle").count(), 16 + 1);
        assert!(!svg.contains("<t>") && !svg.contains("NaN"));
        assert_eq!(of(4, 80.0).matches("tick middle").count(), 4 + 1);
    }

    #[test]
    fn heights_are_in_proportion() {
        // Most is the limit, 100 and 8 % more, over 254: 63 and its 2 above.
        let svg = of(64, 100.0);
        assert!(svg.contains(&format!("height=\"{:.1}\"", 254.0 * 63.0 / 108.0)), "{svg}");
    }

    #[test]
    fn nothing_is_no_nonsense() {
        let svg = of(0, 0.0);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
