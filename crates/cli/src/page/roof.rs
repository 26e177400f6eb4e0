//! Work under the roofs of a GPU, on logarithmic scales. Pure.

use super::axis::{Log, WIDTH, plain};
use super::{Colour, escape};

const HEIGHT: f64 = 340.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 22.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = HEIGHT - 40.0;

/// A GPU's roofs.
pub(crate) struct Roof<'a> {
    /// What it shows.
    pub(crate) title: &'a str,
    /// Peak of arithmetic, TFLOP/s, and what is written at it.
    pub(crate) peak: (f64, String),
    /// A lower peak that some of the work is held to.
    pub(crate) lower: Option<(f64, String)>,
    /// The slope of memory, TB/s, and what is written at it.
    pub(crate) slope: (f64, String),
    /// Work under them.
    pub(crate) under: Vec<Under>,
}

/// A kind of work.
pub(crate) struct Under {
    /// FLOP for each byte.
    pub(crate) intensity: f64,
    /// TFLOP/s.
    pub(crate) reached: f64,
    /// What it says when pointed at.
    pub(crate) text: String,
    /// Of its mark.
    pub(crate) colour: Colour,
}

/// Draws them.
pub(crate) fn roofs(roof: &Roof) -> String {
    let ridge = roof.peak.0 / roof.slope.0;
    let intensities = roof.under.iter().map(|work| work.intensity).chain([ridge]);
    let x = Log::around(intensities, 2.5, 100.0).drawn(LEFT, RIGHT);
    let peaks = [roof.peak.0].into_iter().chain(roof.lower.iter().map(|lower| lower.0));
    let reached = roof.under.iter().map(|work| work.reached).chain(peaks);
    let y = Log::around(reached, 2.0, 100.0).drawn(BOTTOM, TOP);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>\
         <text class=\"tick\" x=\"0\" y=\"13\">TFLOP/s</text>",
        label = escape(roof.title)
    );
    for value in y.round_values() {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"tick label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y.at(value) + 4.0,
            plain(value),
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
    svg.push_str(&lines(roof, x, y));
    for work in &roof.under {
        svg.push_str(&format!(
            "<g class=\"point {}\"><title>{}</title>{}</g>",
            work.colour.class(),
            escape(&work.text),
            shape(work.colour, x.at(work.intensity), y.at(work.reached), 6.0)
        ));
    }
    svg.push_str(&format!(
        "<text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">FLOP for each byte of memory</text></svg>\n",
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 6.0
    ));
    svg
}

fn lines(roof: &Roof, x: Log, y: Log) -> String {
    let (slope, peak) = (roof.slope.0, roof.peak.0);
    // The slope begins at the left edge or at the lower one.
    let begin = x.least.max(y.least / slope);
    let end = (peak / slope).clamp(begin, x.most);
    let (x1, y1) = (x.at(begin), y.at(begin * slope));
    let (x2, y2) = (x.at(end), y.at(end * slope));
    let mut svg = String::new();
    if let Some((lower, text)) = &roof.lower {
        svg.push_str(&format!(
            "<path class=\"lower\" d=\"M{:.1} {at:.1}H{RIGHT}\"/>\
             <text class=\"label over\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x.at(lower / slope),
            x.at(lower / slope) - 9.0,
            y.at(*lower) + 4.5,
            escape(text),
            at = y.at(*lower)
        ));
    }
    // Over the roofs, where no work is: beside the slope, along it, and before each peak.
    let (middle_x, middle_y) = (x1 + 0.42 * (x2 - x1), y1 + 0.42 * (y2 - y1));
    let angle = (y2 - y1).atan2(x2 - x1).to_degrees();
    svg.push_str(&format!(
        "<path class=\"roof\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}H{RIGHT}\"/>\
         <text class=\"label over\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <text class=\"middle over\" transform=\"translate({middle_x:.1} {middle_y:.1}) rotate({angle:.1}) translate(0 -7)\">{}</text>",
        x2 - 9.0,
        y2 + 4.5,
        escape(&roof.peak.1),
        escape(&roof.slope.1)
    ));
    svg
}

/// A colour's mark: each has a shape of its own too.
fn shape(colour: Colour, x: f64, y: f64, r: f64) -> String {
    let polygon = |points: &[(f64, f64)]| {
        let points: Vec<String> =
            points.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx * r, y + dy * r)).collect();
        format!("<polygon points=\"{}\"/>", points.join(" "))
    };
    match colour {
        Colour::Indigo => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r:.1}\"/>"),
        Colour::Green => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        Colour::Teal => polygon(&[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]),
        Colour::Rose => polygon(&[(0.0, -1.2), (1.15, 0.9), (-1.15, 0.9)]),
        Colour::Sand => polygon(&[(0.0, 1.2), (1.15, -0.9), (-1.15, -0.9)]),
        Colour::Purple => {
            polygon(&[(0.0, -1.2), (1.15, -0.35), (0.7, 1.0), (-0.7, 1.0), (-1.15, -0.35)])
        }
        Colour::Olive | Colour::Cyan | Colour::Grey => polygon(&[
            (-0.4, -1.1),
            (0.4, -1.1),
            (0.4, -0.4),
            (1.1, -0.4),
            (1.1, 0.4),
            (0.4, 0.4),
            (0.4, 1.1),
            (-0.4, 1.1),
            (-0.4, 0.4),
            (-1.1, 0.4),
            (-1.1, -0.4),
            (-0.4, -0.4),
        ]),
    }
}

/// A mark by itself, for words beside it.
pub(crate) fn mark(colour: Colour) -> String {
    format!(
        "<svg class=\"mark {}\" viewBox=\"0 0 16 16\" aria-hidden=\"true\">{}</svg>",
        colour.class(),
        shape(colour, 8.0, 8.0, 5.5)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lower: Option<f64>, under: &[(f64, f64)]) -> String {
        roofs(&Roof {
            title: "t",
            peak: (1000.0, "peak".to_owned()),
            lower: lower.map(|peak| (peak, "lower".to_owned())),
            slope: (2.0, "memory".to_owned()),
            under: under
                .iter()
                .map(|(intensity, reached)| Under {
                    intensity: *intensity,
                    reached: *reached,
                    text: "<w>".to_owned(),
                    colour: Colour::Indigo,
                })
                .collect(),
        })
    }

    #[test]
    fn points_on_the_roofs_are_drawn_on_them() {
        // On the slope at 10 FLOP a byte, and on the peak beyond the ridge at 500.
        let svg = of(None, &[(10.0, 20.0), (2000.0, 1000.0), (500.0, 1000.0)]);
        let circles: Vec<&str> = svg.split("<circle ").skip(1).collect();
        assert_eq!(circles.len(), 3);
        let number = |text: &str, name: &str| -> f64 {
            let (_, after) = text.split_once(&format!("{name}=\"")).unwrap();
            after.split_once('"').unwrap().0.parse().unwrap()
        };
        let (_, path) = svg.split_once("class=\"roof\" d=\"M").unwrap();
        let (path, _) = path.split_once('H').unwrap();
        let ends: Vec<f64> = path.split(['L', ' ']).map(|number| number.parse().unwrap()).collect();
        let [x1, y1, x2, y2] = ends[..] else { panic!("{path}") };
        assert!((number(circles[2], "cx") - x2).abs() < 0.11, "the ridge");
        assert!((number(circles[1], "cy") - y2).abs() < 0.11, "the flat roof");
        let share = (number(circles[0], "cx") - x1) / (x2 - x1);
        assert!((number(circles[0], "cy") - (y1 + share * (y2 - y1))).abs() < 0.3, "the slope");
    }

    #[test]
    fn a_second_roof_only_where_there_is_one_and_no_nonsense() {
        assert_eq!(of(None, &[]).matches("class=\"lower\"").count(), 0);
        let svg = of(Some(500.0), &[(0.0, 0.0), (f64::INFINITY, 1.0)]);
        assert_eq!(svg.matches("class=\"lower\"").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<w>"), "{svg}");
    }
}
