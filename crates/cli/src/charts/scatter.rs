//! Connected scatter plot on log-log scales, with error bars along x. Pure.

use super::axis::{LogScale, WIDTH, coordinate, plain, short};
use super::escape;

const HEIGHT: f64 = 340.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 22.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = HEIGHT - 40.0;
/// Approximate width of a character.
const CHARACTER_WIDTH: f64 = 7.2;
/// Height of a line of text.
const LINE_HEIGHT: f64 = 15.0;

/// Points on a curve.
pub(crate) struct ScatterPlot<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_title: &'a str,
    pub(crate) y_title: &'a str,
    /// Prefix of y tick labels, such as `$`.
    pub(crate) y_sign: &'a str,
    /// The points, in the order in which the line connects them.
    pub(crate) points: Vec<ScatterPoint>,
}

pub(crate) struct ScatterPoint {
    pub(crate) x: f64,
    /// Ends of the error bar.
    pub(crate) x_range: (f64, f64),
    pub(crate) y: f64,
    pub(crate) label: String,
    /// Tooltip.
    pub(crate) text: String,
    /// Whether the point is highlighted as the subject of the page.
    pub(crate) ours: bool,
}

pub(crate) fn scatter_plot(plot: &ScatterPlot) -> String {
    let extent = plot.points.iter().flat_map(|point| [point.x_range.0, point.x, point.x_range.1]);
    let x = LogScale::containing(extent, 1.25, 4.0).mapped_to(LEFT, RIGHT);
    let y = LogScale::containing(plot.points.iter().map(|point| point.y), 1.3, 3.0)
        .mapped_to(BOTTOM, TOP);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" class=\"plot\"><title>{label}</title>\
         <text class=\"tick\" x=\"0\" y=\"13\">{}</text>",
        escape(plot.y_title),
        label = escape(plot.title)
    );
    for value in y.ticks() {
        svg.push_str(&format!(
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"tick label\" x=\"{:.1}\" y=\"{:.1}\">{}{}</text>",
            LEFT - 6.0,
            y.at(value) + 4.0,
            escape(plot.y_sign),
            short(value),
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
    let points: Vec<String> = plot
        .points
        .iter()
        .map(|point| format!("{:.1},{:.1}", x.at(point.x), y.at(point.y)))
        .collect();
    svg.push_str(&format!("<polyline class=\"line\" points=\"{}\"/>", points.join(" ")));
    for point in &plot.points {
        svg.push_str(&draw_point(point, x, y));
    }
    svg.push_str(&labels(&plot.points, x, y));
    svg.push_str(&format!(
        "<text class=\"tick middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text></svg>\n",
        f64::midpoint(LEFT, RIGHT),
        HEIGHT - 6.0,
        escape(plot.x_title)
    ));
    svg
}

fn draw_point(point: &ScatterPoint, x: LogScale, y: LogScale) -> String {
    format!(
        "<g class=\"place\"><title>{}</title>\
         <path class=\"doubt\" d=\"M{from:.1} {high:.1}V{low:.1}M{from:.1} {at:.1}H{to:.1}M{to:.1} {high:.1}V{low:.1}\"/>\
         <circle class=\"{}\" cx=\"{:.1}\" cy=\"{at:.1}\" r=\"{:.1}\"/></g>",
        escape(&point.text),
        if point.ours { "ours" } else { "dot" },
        x.at(point.x),
        if point.ours { 6.5 } else { 4.0 },
        from = x.at(point.x_range.0),
        to = x.at(point.x_range.1),
        at = y.at(point.y),
        high = y.at(point.y) - 4.0,
        low = y.at(point.y) + 4.0
    )
}

/// Places labels above or below their points. A label that would overlap another label or a point
/// is omitted. The highlighted point comes first, so that it always has its label.
fn labels(points: &[ScatterPoint], x: LogScale, y: LogScale) -> String {
    let mut svg = String::new();
    let mut occupied: Vec<(f64, f64, f64)> = Vec::new();
    let (first, others): (Vec<&ScatterPoint>, Vec<&ScatterPoint>) =
        points.iter().partition(|point| point.ours);
    for point in first.into_iter().chain(others) {
        let half = coordinate(point.label.chars().count()) * CHARACTER_WIDTH / 2.0;
        let middle = x.at(point.x).clamp(LEFT + half, RIGHT - half);
        let at = y.at(point.y);
        let free = |line: f64| {
            let labels = occupied.iter().all(|(other, width, height)| {
                (other - middle).abs() > width + half + 4.0 || (height - line).abs() > LINE_HEIGHT
            });
            let dots = points.iter().all(|other| {
                let own = std::ptr::eq(other, point);
                let beside = (x.at(other.x) - middle).abs() > half + 6.0;
                own || beside || (y.at(other.y) - (line - 4.5)).abs() > 12.0
            });
            labels && dots && line > TOP && line < BOTTOM - 2.0
        };
        let Some(line) = [at - 12.0, at + 22.0].into_iter().find(|line| free(*line)) else {
            continue;
        };
        occupied.push((middle, half, line));
        svg.push_str(&format!(
            "<text class=\"middle over{}\" x=\"{middle:.1}\" y=\"{line:.1}\">{}</text>",
            if point.ours { " strong" } else { "" },
            escape(&point.label)
        ));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(points: Vec<ScatterPoint>) -> String {
        scatter_plot(&ScatterPlot {
            title: "t",
            x_title: "days",
            y_title: "cost",
            y_sign: "$",
            points,
        })
    }

    fn point(x: f64, y: f64, ours: bool) -> ScatterPoint {
        ScatterPoint {
            x,
            x_range: (x * 0.9, x * 1.1),
            y,
            label: if ours { "<ours>".to_owned() } else { "other".to_owned() },
            text: "text".to_owned(),
            ours,
        }
    }

    #[test]
    fn all_points_are_drawn_and_the_highlighted_one_keeps_its_label() {
        let many = (0..40).map(|number| point(10.0 + f64::from(number) * 0.01, 1e6, number == 20));
        let svg = draw(many.collect());
        assert_eq!(svg.matches("class=\"place\"").count(), 40);
        assert_eq!(svg.matches("&lt;ours&gt;").count(), 1);
        assert!(svg.matches(">other<").count() < 3, "overlapping labels are omitted");
    }

    #[test]
    fn points_far_apart_are_all_labelled() {
        let apart = (0..5).map(|number| point(f64::from(1 << (2 * number)), 1e6, number == 2));
        assert_eq!(draw(apart.collect()).matches(">other<").count(), 4);
    }

    #[test]
    fn empty_or_degenerate_points_contain_no_nan() {
        for points in [vec![], vec![point(0.0, 0.0, true)], vec![point(f64::NAN, 1.0, false)]] {
            let svg = draw(points);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
