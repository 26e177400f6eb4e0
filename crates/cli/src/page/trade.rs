//! One thing against another, both on logarithmic scales, with doubt along the first. Pure.

use super::axis::{Log, WIDTH, coordinate, plain, short};
use super::escape;

const HEIGHT: f64 = 340.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 22.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = HEIGHT - 40.0;
/// The width of a letter, about.
const LETTER: f64 = 7.2;
/// The height of a line of words.
const WORDS: f64 = 15.0;

/// Places on a curve.
pub(crate) struct Trade<'a> {
    /// What it shows.
    pub(crate) title: &'a str,
    /// What is written under the scale to the right.
    pub(crate) x_title: &'a str,
    /// What is written over the scale upwards.
    pub(crate) y_title: &'a str,
    /// What stands before each number of it.
    pub(crate) y_sign: &'a str,
    /// From one end of the curve to the other.
    pub(crate) places: Vec<Place>,
}

/// One of them.
pub(crate) struct Place {
    /// To the right.
    pub(crate) x: f64,
    /// From where to where it may be.
    pub(crate) x_range: (f64, f64),
    /// Upwards.
    pub(crate) y: f64,
    /// What is written at it.
    pub(crate) label: String,
    /// What it says when pointed at.
    pub(crate) text: String,
    /// The one that the page is about.
    pub(crate) ours: bool,
}

/// Draws them.
pub(crate) fn trade(trade: &Trade) -> String {
    let reach = trade.places.iter().flat_map(|place| [place.x_range.0, place.x, place.x_range.1]);
    let x = Log::around(reach, 1.25, 4.0).drawn(LEFT, RIGHT);
    let y = Log::around(trade.places.iter().map(|place| place.y), 1.3, 3.0).drawn(BOTTOM, TOP);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>\
         <text class=\"tick\" x=\"0\" y=\"13\">{}</text>",
        escape(trade.y_title),
        label = escape(trade.title)
    );
    for value in y.round_values() {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"tick label\" x=\"{:.1}\" y=\"{:.1}\">{}{}</text>",
            LEFT - 6.0,
            y.at(value) + 4.0,
            escape(trade.y_sign),
            short(value),
            at = y.at(value)
        ));
    }
    for value in x.round_values() {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{BOTTOM}\"/>\
             <text class=\"tick middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            BOTTOM + 16.0,
            plain(value),
            at = x.at(value)
        ));
    }
    let points: Vec<String> = trade
        .places
        .iter()
        .map(|place| format!("{:.1},{:.1}", x.at(place.x), y.at(place.y)))
        .collect();
    svg.push_str(&format!("<polyline class=\"line\" points=\"{}\"/>", points.join(" ")));
    for place in &trade.places {
        svg.push_str(&drawn(place, x, y));
    }
    svg.push_str(&labels(&trade.places, x, y));
    svg.push_str(&format!(
        "<text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text></svg>\n",
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 6.0,
        escape(trade.x_title)
    ));
    svg
}

fn drawn(place: &Place, x: Log, y: Log) -> String {
    format!(
        "<g class=\"place\"><title>{}</title>\
         <path class=\"doubt\" d=\"M{from:.1} {high:.1}V{low:.1}M{from:.1} {at:.1}H{to:.1}M{to:.1} {high:.1}V{low:.1}\"/>\
         <circle class=\"{}\" cx=\"{:.1}\" cy=\"{at:.1}\" r=\"{:.1}\"/></g>",
        escape(&place.text),
        if place.ours { "ours" } else { "dot" },
        x.at(place.x),
        if place.ours { 6.5 } else { 4.0 },
        from = x.at(place.x_range.0),
        to = x.at(place.x_range.1),
        at = y.at(place.y),
        high = y.at(place.y) - 4.0,
        low = y.at(place.y) + 4.0
    )
}

/// Words above their places, or below, as far as there is room; first the one that counts.
fn labels(places: &[Place], x: Log, y: Log) -> String {
    let mut svg = String::new();
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    let (first, others): (Vec<&Place>, Vec<&Place>) = places.iter().partition(|place| place.ours);
    for place in first.into_iter().chain(others) {
        let half = coordinate(place.label.chars().count()) * LETTER / 2.0;
        let middle = x.at(place.x).clamp(LEFT + half, RIGHT - half);
        let at = y.at(place.y);
        let free = |line: f64| {
            let words = taken.iter().all(|(other, width, height)| {
                (other - middle).abs() > width + half + 4.0 || (height - line).abs() > WORDS
            });
            let dots = places.iter().all(|other| {
                let own = std::ptr::eq(other, place);
                let beside = (x.at(other.x) - middle).abs() > half + 6.0;
                own || beside || (y.at(other.y) - (line - 4.5)).abs() > 12.0
            });
            words && dots && line > TOP && line < BOTTOM - 2.0
        };
        let Some(line) = [at - 12.0, at + 22.0].into_iter().find(|line| free(*line)) else {
            continue;
        };
        taken.push((middle, half, line));
        svg.push_str(&format!(
            "<text class=\"middle over{}\" x=\"{middle:.1}\" y=\"{line:.1}\">{}</text>",
            if place.ours { " strong" } else { "" },
            escape(&place.label)
        ));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: Vec<Place>) -> String {
        trade(&Trade { title: "t", x_title: "days", y_title: "cost", y_sign: "$", places })
    }

    fn place(x: f64, y: f64, ours: bool) -> Place {
        Place {
            x,
            x_range: (x * 0.9, x * 1.1),
            y,
            label: if ours { "<ours>".to_owned() } else { "other".to_owned() },
            text: "text".to_owned(),
            ours,
        }
    }

    #[test]
    fn all_are_drawn_and_the_one_that_counts_keeps_its_words() {
        let many = (0..40).map(|number| place(10.0 + f64::from(number) * 0.01, 1e6, number == 20));
        let svg = of(many.collect());
        assert_eq!(svg.matches("class=\"place\"").count(), 40);
        assert_eq!(svg.matches("&lt;ours&gt;").count(), 1);
        assert!(svg.matches(">other<").count() < 3, "no room for words over each other");
    }

    #[test]
    fn places_apart_are_all_named() {
        let apart = (0..5).map(|number| place(f64::from(1 << (2 * number)), 1e6, number == 2));
        assert_eq!(of(apart.collect()).matches(">other<").count(), 4);
    }

    #[test]
    fn nothing_is_no_nonsense() {
        for places in [vec![], vec![place(0.0, 0.0, true)], vec![place(f64::NAN, 1.0, false)]] {
            let svg = of(places);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
