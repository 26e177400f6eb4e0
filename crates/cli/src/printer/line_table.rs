//! Tables for long lists. Columns that do not fit are left out, and long texts are cut, so that
//! each row is exactly one line. Only columns that a person has to read to the end wrap instead.

use std::io;

use farrier_wire::hidden::escaped;

use super::{Printer, mark_tone, split_tone};

/// A column of [`Printer::line_table`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineColumn {
    pub(crate) heading: &'static str,
    pub(crate) fit: Fit,
}

/// What happens to a column if the terminal is too narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It stays, and no cell is cut.
    Whole,
    /// It is left out. The column with the highest number goes first.
    Optional(u8),
    /// Its cells are cut, but not below this width.
    Cut { min: usize },
    /// Its cells wrap to more lines, but not below this width.
    Wrap { min: usize },
}

const GAP: usize = 2;

impl Printer {
    /// Prints one line per row, at most as wide as the terminal, and more lines only for columns
    /// that wrap. A cell may have a colour ([`Printer::toned`]) only as a whole.
    pub(crate) fn line_table(
        &mut self,
        columns: &[LineColumn],
        rows: &[Vec<String>],
    ) -> io::Result<()> {
        let cell = |cell: &String| {
            let (text, tone) = split_tone(cell);
            (escaped(text).into_owned(), tone)
        };
        let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
        let content: Vec<usize> = columns
            .iter()
            .enumerate()
            .map(|(place, column)| {
                let cells = rows.iter().filter_map(|row| row.get(place));
                let widest = cells.map(|(text, _)| text.chars().count()).max();
                widest.unwrap_or(0).max(column.heading.chars().count())
            })
            .collect();
        let widths = widths(columns, &content, usize::from(self.width));
        let headings: Vec<_> =
            columns.iter().map(|column| (column.heading.to_owned(), None)).collect();
        let rule = used(&widths);
        self.line(&line(&headings, &widths))?;
        self.line(&"─".repeat(rule))?;
        for row in &rows {
            for row in wrapped(row, columns, &widths) {
                self.line(&line(&row, &widths))?;
            }
        }
        Ok(())
    }
}

/// The width of each column; `None` if it is left out.
fn widths(columns: &[LineColumn], content: &[usize], room: usize) -> Vec<Option<usize>> {
    let least = |place: usize| match columns[place].fit {
        Fit::Cut { min } | Fit::Wrap { min } => content[place].min(min),
        Fit::Whole | Fit::Optional(_) => content[place],
    };
    let mut widths: Vec<Option<usize>> = (0..columns.len()).map(|at| Some(least(at))).collect();
    let mut optional: Vec<(u8, usize)> = (0..columns.len())
        .filter_map(|place| match columns[place].fit {
            Fit::Optional(order) => Some((order, place)),
            _ => None,
        })
        .collect();
    optional.sort_unstable();
    while used(&widths) > room
        && let Some((_, place)) = optional.pop()
    {
        widths[place] = None;
    }
    for place in 0..columns.len() {
        let spare = room.saturating_sub(used(&widths));
        if let Some(width) = widths[place].as_mut() {
            *width = content[place].min(*width + spare);
        }
    }
    widths
}

type Cells = Vec<(String, Option<char>)>;

/// The lines of a row. Only columns that wrap have text after the first line.
fn wrapped(row: &Cells, columns: &[LineColumn], widths: &[Option<usize>]) -> Vec<Cells> {
    let lines_of = |place: usize, text: &str| match (columns[place].fit, widths[place]) {
        (Fit::Wrap { .. }, Some(width)) => wrap(text, width),
        _ => vec![text.to_owned()],
    };
    let cells: Vec<Vec<String>> =
        row.iter().enumerate().map(|(place, (text, _))| lines_of(place, text)).collect();
    let count = cells.iter().map(Vec::len).max().unwrap_or(0);
    (0..count)
        .map(|number| {
            let cell = |(lines, (_, tone)): (&Vec<String>, &(String, Option<char>))| {
                let text = lines.get(number).cloned().unwrap_or_default();
                let tone = tone.filter(|_| !text.is_empty());
                (text, tone)
            };
            cells.iter().zip(row).map(cell).collect()
        })
        .collect()
}

/// Breaks the text at spaces. A word that is longer than the width has a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + length <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    if lines.is_empty() { vec![String::new()] } else { lines }
}

/// The width of a whole line.
fn used(widths: &[Option<usize>]) -> usize {
    1 + widths.iter().flatten().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

fn line(cells: &[(String, Option<char>)], widths: &[Option<usize>]) -> String {
    let mut line = String::new();
    for ((text, tone), width) in cells.iter().zip(widths) {
        let Some(width) = *width else { continue };
        line.push_str(if line.is_empty() { " " } else { "  " });
        let length = text.chars().count();
        let shown = if length > width {
            let kept: String = text.chars().take(width.saturating_sub(1)).collect();
            format!("{}…", kept.trim_end())
        } else {
            text.clone()
        };
        let padding = width.saturating_sub(shown.chars().count());
        line.push_str(&tone.map_or_else(|| shown.clone(), |tone| mark_tone(tone, &shown)));
        line.push_str(&" ".repeat(padding));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [LineColumn; 5] = [
        LineColumn { heading: "Node", fit: Fit::Whole },
        LineColumn { heading: "Pool", fit: Fit::Optional(1) },
        LineColumn { heading: "GPUs", fit: Fit::Optional(2) },
        LineColumn { heading: "Reason", fit: Fit::Cut { min: 10 } },
        LineColumn { heading: "Next", fit: Fit::Whole },
    ];

    #[test]
    fn columns_are_left_out_before_a_text_is_cut_to_its_least_width() {
        let content = [6, 5, 20, 40, 4];
        let at = |room| widths(&COLUMNS, &content, room);
        assert_eq!(at(200), [Some(6), Some(5), Some(20), Some(40), Some(4)]);
        assert_eq!(at(60), [Some(6), Some(5), Some(20), Some(16), Some(4)]);
        assert_eq!(at(50), [Some(6), Some(5), None, Some(28), Some(4)]);
        assert_eq!(at(30), [Some(6), None, None, Some(15), Some(4)]);
        // Names and commands stay whole, even if the terminal is too narrow for them.
        assert_eq!(at(10), [Some(6), None, None, Some(10), Some(4)]);
    }

    #[test]
    fn a_cell_that_wraps_is_never_cut() {
        let columns = [
            LineColumn { heading: "Node", fit: Fit::Whole },
            LineColumn { heading: "Cause", fit: Fit::Wrap { min: 10 } },
            LineColumn { heading: "Next", fit: Fit::Whole },
        ];
        let row = ["gpu-1", "drain the node and reboot it", "explain gpu-1"]
            .map(|cell| (cell.to_owned(), None))
            .to_vec();
        let widths = [Some(5), Some(14), Some(13)];
        let lines: Vec<String> =
            wrapped(&row, &columns, &widths).iter().map(|row| line(row, &widths)).collect();
        assert_eq!(lines, [" gpu-1  drain the node  explain gpu-1", "        and reboot it"]);
    }

    #[test]
    fn a_cell_is_cut_with_an_ellipsis_and_never_adds_a_line() {
        let cells = ["gpu-1", "a long reason", "x"].map(|cell| (cell.to_owned(), None)).to_vec();
        assert_eq!(line(&cells, &[Some(6), Some(8), Some(1)]), " gpu-1   a long…   x");
        assert_eq!(line(&cells, &[Some(6), None, Some(1)]), " gpu-1   x");
    }
}
