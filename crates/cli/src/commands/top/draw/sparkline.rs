//! Sparklines and bar graphs of block characters.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// An unknown value.
const GAP: char = '·';

/// One character per point, newest at the right, padded to `width`.
pub(crate) fn line(points: &[Option<f64>], full: f64, width: usize) -> String {
    let points = &points[points.len().saturating_sub(width)..];
    let mut text = " ".repeat(width - points.len());
    text.extend(points.iter().map(|point| point.map_or(GAP, |value| block(value, full))));
    text
}

fn block(value: f64, full: f64) -> char {
    BLOCKS[eighths(value, full, 1).saturating_sub(1)]
}

/// Number of eighths filled in a graph of `rows` rows; at least one, so that any value is visible.
fn eighths(value: f64, full: f64, rows: usize) -> usize {
    let share = if full > 0.0 { (value / full).clamp(0.0, 1.0) } else { 0.0 };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a fraction of a few terminal rows"
    )]
    let filled = (share * (rows * 8) as f64).round() as usize;
    filled.clamp(1, rows * 8)
}

/// A graph of several rows, top row first.
pub(crate) fn graph(points: &[Option<f64>], full: f64, width: usize, rows: usize) -> Vec<String> {
    let points = &points[points.len().saturating_sub(width)..];
    let blank = " ".repeat(width - points.len());
    let row = |row: usize| {
        let below = (rows - 1 - row) * 8;
        let letter = |point: &Option<f64>| match point {
            None if below == 0 => GAP,
            None => ' ',
            Some(value) => match eighths(*value, full, rows).saturating_sub(below) {
                0 => ' ',
                filled => BLOCKS[filled.min(8) - 1],
            },
        };
        blank.chars().chain(points.iter().map(letter)).collect()
    };
    (0..rows).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_point_is_at_the_right_and_a_gap_is_not_zero() {
        let points = [Some(0.0), None, Some(50.0), Some(100.0), Some(900.0)];
        assert_eq!(line(&points, 100.0, 7), "  ▁·▄██");
        assert_eq!(line(&points, 100.0, 2), "██");
        assert_eq!(line(&points, 0.0, 5), "▁·▁▁▁");
        assert_eq!(line(&points, 100.0, 0), "");
    }

    #[test]
    fn a_graph_spans_several_rows() {
        let points = [Some(0.0), None, Some(50.0), Some(75.0), Some(100.0)];
        assert_eq!(graph(&points, 100.0, 6, 2), ["    ▄█", " ▁·███"]);
    }
}
