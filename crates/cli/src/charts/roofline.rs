//! Roofline chart: work under a GPU's compute and memory roofs, on logarithmic scales. Pure.

use super::axis::{LogScale, WIDTH, plain};
use super::{Colour, escape};

const HEIGHT: f64 = 340.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 22.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = HEIGHT - 40.0;

/// The roofs of a GPU, which are the limits from compute and memory bandwidth, and the work below
/// them.
pub(crate) struct RooflineChart<'a> {
    pub(crate) title: &'a str,
    /// Peak compute in TFLOP/s, and its label.
    pub(crate) peak: (f64, String),
    /// A lower compute peak, which limits a part of the work, such as 16-bit GEMMs in an FP8 run.
    pub(crate) lower: Option<(f64, String)>,
    /// Memory bandwidth in TB/s, and its label.
    pub(crate) slope: (f64, String),
    pub(crate) points: Vec<RooflineMarker>,
}

/// One kind of work.
pub(crate) struct RooflineMarker {
    /// FLOP per byte.
    pub(crate) intensity: f64,
    /// TFLOP/s.
    pub(crate) reached: f64,
    /// Tooltip.
    pub(crate) text: String,
    pub(crate) colour: Colour,
}

pub(crate) fn roofline_chart(chart: &RooflineChart) -> String {
    let ridge = chart.peak.0 / chart.slope.0;
    let intensities = chart.points.iter().map(|work| work.intensity).chain([ridge]);
    let x = LogScale::containing(intensities, 2.5, 100.0).mapped_to(LEFT, RIGHT);
    let peaks = [chart.peak.0].into_iter().chain(chart.lower.iter().map(|lower| lower.0));
    let reached = chart.points.iter().map(|work| work.reached).chain(peaks);
    let y = LogScale::containing(reached, 2.0, 100.0).mapped_to(BOTTOM, TOP);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>\
         <text class=\"tick\" x=\"0\" y=\"13\">TFLOP/s</text>",
        label = escape(chart.title)
    );
    for value in y.ticks() {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"tick label\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y.at(value) + 4.0,
            plain(value),
            at = y.at(value)
        ));
    }
    for value in x.ticks() {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{BOTTOM}\"/>\
             <text class=\"tick middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            BOTTOM + 16.0,
            plain(value),
            at = x.at(value)
        ));
    }
    svg.push_str(&lines(chart, x, y));
    for work in &chart.points {
        svg.push_str(&format!(
            "<g class=\"point {}\"><title>{}</title>{}</g>",
            work.colour.class(),
            escape(&work.text),
            marker_shape(work.colour, x.at(work.intensity), y.at(work.reached), 6.0)
        ));
    }
    svg.push_str(&format!(
        "<text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">FLOP per byte of memory traffic</text></svg>\n",
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 6.0
    ));
    svg
}

fn lines(chart: &RooflineChart, x: LogScale, y: LogScale) -> String {
    let (slope, peak) = (chart.slope.0, chart.peak.0);
    // The slope starts at the left edge or at the bottom edge.
    let begin = x.min.max(y.min / slope);
    let end = (peak / slope).clamp(begin, x.max);
    let (x1, y1) = (x.at(begin), y.at(begin * slope));
    let (x2, y2) = (x.at(end), y.at(end * slope));
    let mut svg = String::new();
    if let Some((lower, text)) = &chart.lower {
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
    // All points are below the roofs, so the labels are above the roofs: along the slope, and to
    // the left of each peak.
    let (middle_x, middle_y) = (x1 + 0.42 * (x2 - x1), y1 + 0.42 * (y2 - y1));
    let angle = (y2 - y1).atan2(x2 - x1).to_degrees();
    svg.push_str(&format!(
        "<path class=\"roof\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}H{RIGHT}\"/>\
         <text class=\"label over\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <text class=\"middle over\" transform=\"translate({middle_x:.1} {middle_y:.1}) rotate({angle:.1}) translate(0 -7)\">{}</text>",
        x2 - 9.0,
        y2 + 4.5,
        escape(&chart.peak.1),
        escape(&chart.slope.1)
    ));
    svg
}

/// A marker. Each colour has its own shape, so that colour is not the only cue.
fn marker_shape(colour: Colour, x: f64, y: f64, r: f64) -> String {
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

/// A marker outside a chart, for a legend.
pub(crate) fn marker(colour: Colour) -> String {
    format!(
        "<svg class=\"mark {}\" viewBox=\"0 0 16 16\" aria-hidden=\"true\">{}</svg>",
        colour.class(),
        marker_shape(colour, 8.0, 8.0, 5.5)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(lower: Option<f64>, points: &[(f64, f64)]) -> String {
        roofline_chart(&RooflineChart {
            title: "t",
            peak: (1000.0, "peak".to_owned()),
            lower: lower.map(|peak| (peak, "lower".to_owned())),
            slope: (2.0, "memory".to_owned()),
            points: points
                .iter()
                .map(|(intensity, reached)| RooflineMarker {
                    intensity: *intensity,
                    reached: *reached,
                    text: "<w>".to_owned(),
                    colour: Colour::Indigo,
                })
                .collect(),
        })
    }

    #[test]
    fn points_at_the_roofs_are_drawn_on_the_roof_lines() {
        // One point on the slope at 10 FLOP per byte, one on the peak beyond the ridge, and one at
        // the ridge (500 FLOP per byte).
        let svg = draw(None, &[(10.0, 20.0), (2000.0, 1000.0), (500.0, 1000.0)]);
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
    fn the_lower_roof_is_optional_and_nothing_is_nan() {
        assert_eq!(draw(None, &[]).matches("class=\"lower\"").count(), 0);
        let svg = draw(Some(500.0), &[(0.0, 0.0), (f64::INFINITY, 1.0)]);
        assert_eq!(svg.matches("class=\"lower\"").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<w>"), "{svg}");
    }
}
