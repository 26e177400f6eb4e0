//! Writes all output on stdout: lines, tables, paragraphs, JSON and colours.

mod line_table;

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::LazyLock;

use comfy_table::{ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle};
use farrier_facts::xid::Severity;
use farrier_wire::hidden::{escaped, escaped_but};

pub(crate) use line_table::{Fit, LineColumn};

/// A rule under the headings and no other borders, so that a table pastes cleanly into a ticket.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Width of tables when stdout is not a terminal: most tables fit, also when pasted into a ticket.
const WIDTH_WITHOUT_TERMINAL: u16 = 120;

/// Buffers a command's output and writes it to stdout.
pub(crate) struct Printer {
    out: BufWriter<Box<dyn Write>>,
    colour: bool,
    terminal: bool,
    width: u16,
    /// Replace characters outside ASCII.
    in_ascii: bool,
}

/// Meaning of a word's colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// No action needed.
    Good,
    /// Needs attention.
    Caution,
    /// Needs action.
    Bad,
    /// A heading.
    Strong,
}

#[cfg(test)]
impl Printer {
    /// The output of `print` at this width.
    pub(crate) fn capture(width: u16, colour: bool, print: impl FnOnce(&mut Self)) -> String {
        #[derive(Clone, Default)]
        struct SharedBuffer(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for SharedBuffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let buffer = SharedBuffer::default();
        let out = BufWriter::new(Box::new(buffer.clone()) as Box<dyn Write>);
        let mut printer = Self { out, colour, terminal: colour, width, in_ascii: false };
        print(&mut printer);
        printer.finish().unwrap();
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }
}

impl Printer {
    /// A printer on stdout. Colour only on a terminal, and never with `NO_COLOR`.
    pub(crate) fn stdout() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let width = terminal_size::terminal_size().map(|(width, _)| width.0).filter(|_| terminal);
        let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
        Self {
            out: BufWriter::with_capacity(64 << 10, Box::new(stdout)),
            colour: terminal && !no_colour,
            terminal,
            width: width.or_else(columns).unwrap_or(WIDTH_WITHOUT_TERMINAL).max(40),
            in_ascii: false,
        }
    }

    /// Replaces characters outside ASCII from here on.
    pub(crate) fn set_ascii_only(&mut self) {
        self.in_ascii = true;
    }

    /// Prints one line of text. Text from outside may contain anything, so [`sanitize`] escapes
    /// every control sequence except our own colours.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        let text = sanitize(text);
        if self.in_ascii && !text.is_ascii() {
            let text: String = text.chars().map(ascii).collect();
            self.out.write_all(text.as_bytes())?;
        } else {
            self.out.write_all(text.as_bytes())?;
        }
        self.out.write_all(b"\n")
    }

    /// Prints one indented JSON document.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        self.out.write_all(sanitize_json(value, true)?.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Prints one JSON document on one line.
    pub(crate) fn json_line(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        self.out.write_all(sanitize_json(value, false)?.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Prints columns under headings, wrapped to the width of the terminal. A cell may have a
    /// colour ([`Printer::toned`]) only as a whole. Colours are added after layout, because
    /// `comfy_table` counts escape codes as visible characters.
    pub(crate) fn table(&mut self, headings: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let mut table = Table::new();
        table
            .load_style(STYLE)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(self.width)
            .set_header(headings.to_vec());
        // A marker row, not printed: its layout shows where each column starts.
        table.add_row(vec![COLUMN_MARK.to_string(); headings.len()]);
        let mut tones: Vec<Vec<(String, char)>> = vec![Vec::new(); headings.len()];
        for row in rows {
            let mut plain = Vec::with_capacity(row.len());
            for (cell, tones) in row.iter().zip(&mut tones) {
                let (text, tone) = split_tone(cell);
                // Escape before layout: a line break in a name would start a new row.
                let text = escaped(text).into_owned();
                tones.extend(tone.map(|tone| (text.clone(), tone)));
                plain.push(text);
            }
            table.add_row(plain);
        }
        for (place, heading) in headings.iter().enumerate() {
            // A wrapped UUID cannot be copied, and a wrapped cell cannot be coloured.
            let is_whole = heading.eq_ignore_ascii_case("uuid") || !tones[place].is_empty();
            if let Some(column) = table.column_mut(place).filter(|_| is_whole) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        let mut begins: Vec<usize> = Vec::new();
        for line in table.lines() {
            if begins.is_empty() && line.contains(COLUMN_MARK) {
                let marks = line.chars().enumerate().filter(|(_, letter)| *letter == COLUMN_MARK);
                begins = marks.map(|(at, _)| at).collect();
                continue;
            }
            let coloured =
                if begins.is_empty() { line } else { colour_cells(&line, &begins, &tones) };
            self.line(coloured.trim_end())?;
        }
        Ok(())
    }

    /// Prints text wrapped to the width of the terminal, with a hanging indent.
    pub(crate) fn paragraph(&mut self, first: &str, indent: usize, text: &str) -> io::Result<()> {
        let width = usize::from(self.width).max(indent + 20);
        let mut line = format!("{first:indent$}");
        if first.len() >= indent && !first.is_empty() {
            line.push(' ');
        }
        let mut empty = true;
        for word in text.split_whitespace() {
            let used = visible_width(&line);
            if !empty && used + 1 + word.chars().count() > width {
                self.line(line.trim_end())?;
                line = " ".repeat(indent);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        self.line(line.trim_end())
    }

    /// The severity's name in its colour.
    pub(crate) fn severity(&self, severity: Severity) -> String {
        let tone = match severity {
            Severity::Info => Tone::Good,
            Severity::Warning => Tone::Caution,
            Severity::Critical | Severity::Fatal => Tone::Bad,
        };
        self.toned(tone, &severity.to_string())
    }

    /// A word in colour if colour is enabled.
    pub(crate) fn toned(&self, tone: Tone, word: &str) -> String {
        let [(good, _), (caution, _), (bad, _), (strong, _)] = COLOURS;
        let begin = match tone {
            Tone::Good => good,
            Tone::Caution => caution,
            Tone::Bad => bad,
            Tone::Strong => strong,
        };
        if self.colour { mark_tone(begin, word) } else { word.to_owned() }
    }

    /// Prints a progress line that [`Printer::clear_transient`] removes. Only for a terminal.
    pub(crate) fn transient(&mut self, text: &str) -> io::Result<()> {
        let room = usize::from(self.width).saturating_sub(1);
        let text: String = sanitize(text).chars().take(room).collect();
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Erases the line printed by [`Printer::transient`].
    pub(crate) fn clear_transient(&mut self) -> io::Result<()> {
        self.out.write_all(b"\r\x1b[2K")
    }

    pub(crate) fn has_colour(&self) -> bool {
        self.colour
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes out what is buffered.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The ASCII character that looks most like `letter`, for terminals and logs without Unicode.
pub(crate) fn ascii(letter: char) -> char {
    match letter {
        '▁' => '_',
        '▂' => '.',
        '▃' => ':',
        '▄' | '─' => '-',
        '▅' => '=',
        '▆' => '+',
        '▇' => '*',
        '█' => '#',
        '…' => '~',
        '×' => 'x',
        '→' => '>',
        '↑' => '^',
        '↓' => 'v',
        '°' => 'o',
        // The right half of a double-width character.
        '\0' => ' ',
        letter if letter.is_ascii() => letter,
        _ => '?',
    }
}

/// Marks column starts in [`Printer::table`].
const COLUMN_MARK: char = '█';

/// Markers that start a colour inside a text, with their SGR codes. Each is followed by [`nonce`],
/// so text from outside cannot forge one. All are noncharacters (U+FDD0..), which never display.
const COLOURS: [(char, &str); 4] =
    [('\u{fdd1}', "32"), ('\u{fdd2}', "33"), ('\u{fdd3}', "31"), ('\u{fdd4}', "1")];
const PLAIN: (char, &str) = ('\u{fdd0}', "0");

/// A private-use character chosen at random for this process.
fn nonce() -> char {
    static NONCE: LazyLock<char> = LazyLock::new(|| {
        let random = RandomState::new().build_hasher().finish() % 0xfffe;
        u32::try_from(random)
            .ok()
            .and_then(|offset| char::from_u32(0xf_0000 + offset))
            .unwrap_or('\u{f0000}')
    });
    *NONCE
}

/// Splits a cell into its text and its colour marker.
fn split_tone(cell: &str) -> (&str, Option<char>) {
    let parts = COLOURS.iter().find_map(|(begin, _)| {
        let rest = cell.strip_prefix(*begin)?.strip_prefix(nonce())?;
        Some((rest.strip_suffix(nonce())?.strip_suffix(PLAIN.0)?, *begin))
    });
    parts.map_or((cell, None), |(text, begin)| (text, Some(begin)))
}

/// Wraps a text in a colour marker that [`sanitize`] translates into an escape code.
fn mark_tone(begin: char, text: &str) -> String {
    let (nonce, end) = (nonce(), PLAIN.0);
    format!("{begin}{nonce}{text}{end}{nonce}")
}

/// Puts the colours of the cells into a laid-out table line.
fn colour_cells(line: &str, begins: &[usize], tones: &[Vec<(String, char)>]) -> String {
    let letters: Vec<char> = line.chars().collect();
    let mut out: String = letters.iter().take(begins.first().copied().unwrap_or(0)).collect();
    for (place, begin) in begins.iter().enumerate() {
        let end = begins.get(place + 1).copied().unwrap_or(letters.len());
        let cell: String = letters.iter().skip(*begin).take(end.saturating_sub(*begin)).collect();
        let text = cell.trim_end();
        let tone = tones[place].iter().find(|(toned, _)| *toned == text && !text.is_empty());
        match tone {
            Some((_, begin)) => out.push_str(&mark_tone(*begin, text)),
            None => out.push_str(text),
        }
        out.push_str(&cell[text.len()..]);
    }
    out
}

/// Number of visible characters: colour markers take no width.
fn visible_width(text: &str) -> usize {
    let nonce = nonce();
    let mut letters = text.chars().peekable();
    let mut count = 0;
    while let Some(letter) = letters.next() {
        if sgr_code(letter).is_some() && letters.next_if_eq(&nonce).is_some() {
            continue;
        }
        count += 1;
    }
    count
}

/// The SGR code of a colour marker.
fn sgr_code(letter: char) -> Option<&'static str> {
    let mut all = COLOURS.iter().chain([&PLAIN]);
    all.find(|(mark, _)| *mark == letter).map(|(_, code)| *code)
}

/// Makes a text safe for a terminal: escapes control and invisible characters, and translates our
/// own colour markers into SGR sequences.
fn sanitize(text: &str) -> Cow<'_, str> {
    let text = escaped(text);
    if !text.contains(|letter| sgr_code(letter).is_some()) {
        return text;
    }
    let nonce = nonce();
    let mut clean = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match sgr_code(letter) {
            Some(code) if letters.next_if_eq(&nonce).is_some() => {
                clean.push_str(&format!("\x1b[{code}m"));
            }
            Some(_) => clean.push_str(&format!("\\u{:04x}", u32::from(letter))),
            None => clean.push(letter),
        }
    }
    Cow::Owned(clean)
}

/// JSON that is safe for a terminal and parses to the same value.
fn sanitize_json(value: &impl serde::Serialize, is_pretty: bool) -> io::Result<String> {
    let text =
        if is_pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    Ok(escaped_but(&text?, |letter| letter == '\n').into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a table at this width, with colours.
    fn printed(width: u16, headings: &[&str], rows: &[Vec<String>]) -> String {
        Printer::capture(width, true, |printer| printer.table(headings, rows).unwrap())
    }

    #[test]
    fn coloured_cells_never_wrap() {
        let row = |word: &str, code: &str| {
            let reason = "a long reason that has to be folded somewhere";
            let begin = COLOURS.iter().find(|(_, sgr)| *sgr == code).unwrap().0;
            vec!["node-1".to_owned(), mark_tone(begin, word), reason.to_owned()]
        };
        let rows = [row("in service", "32"), row("in repair", "31")];
        for width in [40, 60, 200] {
            let text = printed(width, &["Node", "Standing", "Why"], &rows);
            assert!(text.contains("\x1b[32min service\x1b[0m"), "{width}: {text}");
            assert!(text.contains("\x1b[31min repair\x1b[0m"), "{width}: {text}");
            assert_eq!(text.matches('\x1b').count(), 4, "{width}: {text}");
            assert!(!text.contains(COLUMN_MARK) && !text.contains('\u{fffd}'), "{width}: {text}");
            let plain = text.replace("\x1b[32m", "").replace("\x1b[31m", "").replace("\x1b[0m", "");
            let longest = plain.lines().map(visible_width).max().unwrap();
            assert!(longest <= usize::from(width), "{width}: {longest}: {text}");
        }
    }

    #[test]
    fn colour_markers_have_no_width() {
        assert_eq!(visible_width(&format!("a{} b", mark_tone('\u{fdd3}', "red"))), 6);
        assert_eq!(visible_width("grün"), 4);
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(sanitize("plain \u{e9}"), "plain \u{e9}");
        let red = mark_tone('\u{fdd3}', "red\u{202e}");
        assert_eq!(sanitize(&format!("a{red}")), "a\x1b[31mred\\u202e\x1b[0m");
        assert_eq!(sanitize("a\x1b]0;title\x07b\r\n"), "a\\u001b]0;title\\u0007b\\r\\n");
        // Foreign colours, and markers with a wrong nonce.
        assert_eq!(sanitize("\x1b[31mred\x1b[0m"), "\\u001b[31mred\\u001b[0m");
        assert_eq!(sanitize("\u{fdd3}\u{f0000}\u{f0001}x"), "\\ufdd3\u{f0000}\u{f0001}x");
    }

    #[test]
    fn a_line_break_in_a_cell_does_not_start_a_row() {
        let evil = "H100\nnode-2  in service\u{202e}\x1b[2K";
        let rows = [vec!["node-1".to_owned(), evil.to_owned()]];
        let text = printed(120, &["Node", "GPU"], &rows);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("H100\\nnode-2  in service\\u202e\\u001b[2K"), "{text}");
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let value = serde_json::json!({ "name": "a\u{202e}b\n\u{9b}31m" });
        for is_pretty in [true, false] {
            let text = sanitize_json(&value, is_pretty).unwrap();
            assert!(!text.contains(['\u{202e}', '\u{9b}']), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
