//! A frame: a grid of styled cells. [`Frame::diff`] returns the escape sequences that turn the
//! frame on the terminal into this one.

use farrier_wire::hidden::escaped;
use unicode_width::UnicodeWidthChar;

use crate::printer::{Tone, ascii};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    #[default]
    Plain,
    /// Less important text, and lines that separate sections.
    Dim,
    Strong,
    Good,
    Caution,
    Bad,
    /// The selected row.
    Selected,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "\x1b[0m",
            Self::Dim => "\x1b[0;2m",
            Self::Strong => "\x1b[0;1m",
            Self::Good => "\x1b[0;32m",
            Self::Caution => "\x1b[0;33m",
            Self::Bad => "\x1b[0;31m",
            Self::Selected => "\x1b[0;7m",
        }
    }

    /// The closest style that uses no colour.
    fn without_colour(self) -> Self {
        match self {
            Self::Good | Self::Caution => Self::Plain,
            Self::Bad => Self::Strong,
            other => other,
        }
    }
}

impl From<Option<Tone>> for Style {
    fn from(tone: Option<Tone>) -> Self {
        match tone {
            None => Self::Plain,
            Some(Tone::Good) => Self::Good,
            Some(Tone::Caution) => Self::Caution,
            Some(Tone::Bad) => Self::Bad,
            Some(Tone::Strong) => Self::Strong,
        }
    }
}

/// A character and its style. A wide character takes two cells, and the right one holds NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    letter: char,
    style: Style,
}

const BLANK: Cell = Cell { letter: ' ', style: Style::Plain };

/// The whole screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    width: usize,
    height: usize,
    cells: Vec<Cell>,
}

impl Frame {
    pub(crate) fn new(width: u16, height: u16) -> Self {
        let (width, height) = (usize::from(width), usize::from(height));
        Self { width, height, cells: vec![BLANK; width * height] }
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// Writes text at a column, at most `room` columns wide. Returns the column after the text.
    /// Text that does not fit is cut, and ends in an ellipsis. Text outside the frame is dropped.
    pub(crate) fn text(
        &mut self,
        row: usize,
        column: usize,
        room: usize,
        style: Style,
        text: &str,
    ) -> usize {
        let room = room.min(self.width.saturating_sub(column));
        if row >= self.height || room == 0 {
            return column;
        }
        let text = escaped(text);
        let letters: Vec<(char, usize)> = text.chars().map(printable).collect();
        let total_width: usize = letters.iter().map(|(_, width)| width).sum();
        let room_for_letters = if total_width <= room { room } else { room - 1 };
        let mut at = column;
        for (letter, width) in letters {
            if at - column + width > room_for_letters {
                break;
            }
            if width == 0 {
                continue;
            }
            self.put(row, at, letter, style);
            if width == 2 {
                self.put(row, at + 1, '\0', style);
            }
            at += width;
        }
        if total_width > room {
            self.put(row, at, '…', style);
            at += 1;
        }
        at
    }

    /// Like [`Frame::text`], but right-aligned in `room` columns.
    pub(crate) fn right(
        &mut self,
        row: usize,
        column: usize,
        room: usize,
        style: Style,
        text: &str,
    ) {
        let used = columns(text).min(room);
        self.text(row, column + room - used, used, style, text);
    }

    /// Sets the style of a whole row.
    pub(crate) fn style_row(&mut self, row: usize, style: Style) {
        if row < self.height {
            for cell in &mut self.cells[row * self.width..(row + 1) * self.width] {
                cell.style = style;
            }
        }
    }

    fn put(&mut self, row: usize, column: usize, letter: char, style: Style) {
        if row < self.height && column < self.width {
            self.cells[row * self.width + column] = Cell { letter, style };
        }
    }

    pub(crate) fn without_colour(mut self) -> Self {
        for cell in &mut self.cells {
            cell.style = cell.style.without_colour();
        }
        self
    }

    /// Replaces every character by a similar ASCII one.
    pub(crate) fn in_ascii(mut self) -> Self {
        for cell in &mut self.cells {
            cell.letter = ascii(cell.letter);
        }
        self
    }

    /// The text of each row, without styles.
    #[cfg(test)]
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |cells: &[Cell]| {
            let text: String =
                cells.iter().map(|cell| cell.letter).filter(|letter| *letter != '\0').collect();
            text.trim_end().to_owned()
        };
        self.cells.chunks(self.width.max(1)).map(line).collect()
    }

    /// The escape sequences that turn `before` into this frame. Clears the screen and draws
    /// everything if there is no frame before, or if it has another size.
    pub(crate) fn diff(&self, before: Option<&Self>) -> Vec<u8> {
        let before =
            before.filter(|before| (before.width, before.height) == (self.width, self.height));
        let mut out = String::new();
        if before.is_none() {
            out.push_str("\x1b[0m\x1b[2J");
        }
        let mut style = None;
        for row in 0..self.height {
            self.diff_row(row, before, &mut style, &mut out);
        }
        if style.is_some_and(|style| style != Style::Plain) {
            out.push_str(Style::Plain.code());
        }
        out.into_bytes()
    }

    fn diff_row(
        &self,
        row: usize,
        before: Option<&Self>,
        style: &mut Option<Style>,
        out: &mut String,
    ) {
        let range = row * self.width..(row + 1) * self.width;
        let (now, was) = (&self.cells[range.clone()], before.map(|frame| &frame.cells[range]));
        // The column where the terminal's cursor is. `None` if it is not in this row yet.
        let mut cursor = None;
        for (column, cell) in now.iter().enumerate() {
            let is_same = match was {
                Some(was) => was[column] == *cell && !must_rewrite(was, now, column),
                None => *cell == BLANK,
            };
            if is_same || cell.letter == '\0' {
                continue;
            }
            if cursor != Some(column) {
                out.push_str(&format!("\x1b[{};{}H", row + 1, column + 1));
            }
            if *style != Some(cell.style) {
                out.push_str(cell.style.code());
                *style = Some(cell.style);
            }
            out.push(cell.letter);
            let is_wide = now.get(column + 1).is_some_and(|next| next.letter == '\0');
            cursor = Some(column + if is_wide { 2 } else { 1 });
        }
    }
}

/// Whether a cell must be written again although it did not change. This is the case if the cell
/// was the right half of a wide character, or if the cell to its right became such a half or no
/// longer is one.
fn must_rewrite(was: &[Cell], now: &[Cell], column: usize) -> bool {
    let is_next_half =
        |cells: &[Cell]| cells.get(column + 1).is_some_and(|cell| cell.letter == '\0');
    was[column].letter == '\0' || is_next_half(was) != is_next_half(now)
}

/// The character to draw, and its width in columns. A control character, which has no width, is
/// replaced. Callers have escaped hidden characters already; a combining mark has width 0.
fn printable(letter: char) -> (char, usize) {
    match letter.width() {
        None => (char::REPLACEMENT_CHARACTER, 1),
        Some(width) => (letter, width),
    }
}

/// Width of a text in columns, after escaping.
pub(crate) fn columns(text: &str) -> usize {
    escaped(text).chars().map(|letter| printable(letter).1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_truncated_and_stays_inside_the_frame() {
        let mut frame = Frame::new(8, 2);
        assert_eq!(frame.text(0, 0, 5, Style::Plain, "abcdefgh"), 5);
        assert_eq!(frame.text(1, 6, 99, Style::Plain, "xyz"), 8);
        frame.text(9, 0, 9, Style::Plain, "nowhere");
        frame.text(0, 99, 9, Style::Plain, "nowhere");
        assert_eq!(frame.lines(), ["abcd…", "      x…"]);
        let mut empty = Frame::new(0, 0);
        empty.text(0, 0, 9, Style::Plain, "nothing");
        assert_eq!(empty.diff(None), b"\x1b[0m\x1b[2J");
    }

    #[test]
    fn only_changed_cells_are_written() {
        let mut before = Frame::new(10, 2);
        before.text(0, 0, 10, Style::Plain, "power 12 W");
        let mut now = before.clone();
        assert_eq!(now.diff(Some(&before)), b"");
        now.text(0, 6, 2, Style::Bad, "34");
        let bytes = String::from_utf8(now.diff(Some(&before))).unwrap();
        assert_eq!(bytes, "\x1b[1;7H\x1b[0;31m34\x1b[0m");
        let whole = String::from_utf8(now.diff(Some(&Frame::new(9, 2)))).unwrap();
        assert!(whole.starts_with("\x1b[0m\x1b[2J\x1b[1;1H"), "a resize redraws everything");
    }

    #[test]
    fn wide_characters_take_two_columns_and_invisible_ones_are_escaped() {
        let mut escapes = Frame::new(20, 1);
        assert_eq!(escapes.text(0, 0, 20, Style::Plain, "漢\x1b\u{202e}字"), 16);
        assert_eq!(escapes.lines(), ["漢\\u001b\\u202e字"]);
        let mut frame = Frame::new(6, 1);
        assert_eq!(frame.text(0, 0, 6, Style::Plain, "漢a字"), 5);
        let mut narrow = Frame::new(6, 1);
        narrow.text(0, 0, 6, Style::Plain, "a");
        let bytes = String::from_utf8(narrow.diff(Some(&frame))).unwrap();
        assert_eq!(
            bytes, "\x1b[1;1H\x1b[0ma    ",
            "both halves of each wide character are cleared"
        );
        assert_eq!(columns("漢字a"), 5);
    }

    #[test]
    fn ascii_mode_writes_only_ascii() {
        let mut frame = Frame::new(16, 1);
        frame.text(0, 0, 16, Style::Plain, "▁▄█· 50 °C 漢é…");
        assert_eq!(frame.in_ascii().lines(), ["_-#? 50 oC ? ?~"]);
    }

    #[test]
    fn without_colour_faults_are_bold() {
        let mut frame = Frame::new(3, 1);
        frame.text(0, 0, 3, Style::Bad, "bad");
        let bytes = String::from_utf8(frame.without_colour().diff(None)).unwrap();
        assert!(bytes.contains("\x1b[0;1m") && !bytes.contains("31m"), "{bytes:?}");
    }
}
