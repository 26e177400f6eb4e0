//! The one way to stdout.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};

use comfy_table::{ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle};
use farrier_facts::xid::Severity;

/// A rule under the headings, and nothing else: copies well into a ticket.
const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Width of tables when stdout is not a terminal: fits a wide pager and a review.
const WIDTH_WITHOUT_TERMINAL: u16 = 120;

/// Buffers what a command says and writes it to stdout.
pub(crate) struct Printer {
    out: BufWriter<Box<dyn Write>>,
    colour: bool,
    terminal: bool,
    width: u16,
    /// No letter beyond ASCII.
    in_ascii: bool,
}

/// The colour of a word that carries a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing to do.
    Good,
    /// Read on.
    Caution,
    /// Act.
    Bad,
    /// A heading.
    Strong,
}

impl Printer {
    /// A printer on stdout; colour only on a terminal, and never with `NO_COLOR`.
    pub(crate) fn stdout() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let width = terminal_size::terminal_size().map(|(width, _)| width.0).filter(|_| terminal);
        let asked = || std::env::var("COLUMNS").ok()?.parse().ok();
        Self {
            out: BufWriter::with_capacity(64 << 10, Box::new(stdout)),
            colour: terminal && !no_colour,
            terminal,
            width: width.or_else(asked).unwrap_or(WIDTH_WITHOUT_TERMINAL).max(40),
            in_ascii: false,
        }
    }

    /// From here on lines have no letter beyond ASCII.
    pub(crate) fn use_ascii_alone(&mut self) {
        self.in_ascii = true;
    }

    /// One line of text. What comes from outside may hold anything: nothing but our own colours
    /// reaches the terminal as a control character.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        let text = harmless(text);
        if self.in_ascii && !text.is_ascii() {
            let text: String = text.chars().map(ascii).collect();
            self.out.write_all(text.as_bytes())?;
        } else {
            self.out.write_all(text.as_bytes())?;
        }
        self.out.write_all(b"\n")
    }

    /// One JSON document on a line of its own, indented.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// One JSON document on one line.
    pub(crate) fn json_line(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// Columns under headings, wrapped to the width of the terminal. A cell may have a colour ([`Printer::toned`]) if all of it
    /// has; it is put on when the lines are laid out, as a table counts the codes for letters.
    pub(crate) fn table(&mut self, headings: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let mut table = Table::new();
        table
            .load_style(STYLE)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(self.width)
            .set_header(headings.to_vec());
        // Says where each column begins, and is not printed.
        table.add_row(vec![MARK.to_string(); headings.len()]);
        let mut tones: Vec<Vec<(&str, &str)>> = vec![Vec::new(); headings.len()];
        for row in rows {
            let mut plain = Vec::with_capacity(row.len());
            for (cell, tones) in row.iter().zip(&mut tones) {
                let (text, tone) = untoned(cell);
                tones.extend(tone.map(|tone| (text, tone)));
                plain.push(text);
            }
            table.add_row(plain);
        }
        for (place, heading) in headings.iter().enumerate() {
            // One that is folded cannot be copied, nor coloured.
            let is_whole = heading.eq_ignore_ascii_case("uuid") || !tones[place].is_empty();
            if let Some(column) = table.column_mut(place).filter(|_| is_whole) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        let mut begins: Vec<usize> = Vec::new();
        for line in table.lines() {
            if begins.is_empty() && line.contains(MARK) {
                let marks = line.chars().enumerate().filter(|(_, letter)| *letter == MARK);
                begins = marks.map(|(at, _)| at).collect();
                continue;
            }
            let coloured = if begins.is_empty() { line } else { coloured(&line, &begins, &tones) };
            self.line(coloured.trim_end())?;
        }
        Ok(())
    }

    /// Text folded to the width of the terminal, every line after the first indented.
    pub(crate) fn paragraph(&mut self, first: &str, indent: usize, text: &str) -> io::Result<()> {
        let width = usize::from(self.width).max(indent + 20);
        let mut line = format!("{first:indent$}");
        if first.len() >= indent && !first.is_empty() {
            line.push(' ');
        }
        let mut empty = true;
        for word in text.split_whitespace() {
            let used = visible(&line);
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

    /// How bad something is, in the colour of it.
    pub(crate) fn severity(&self, severity: Severity) -> String {
        let tone = match severity {
            Severity::Info => Tone::Good,
            Severity::Warning => Tone::Caution,
            Severity::Critical | Severity::Fatal => Tone::Bad,
        };
        self.toned(tone, &severity.to_string())
    }

    /// A word in colour where there is colour.
    pub(crate) fn toned(&self, tone: Tone, word: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Caution => "33",
            Tone::Bad => "31",
            Tone::Strong => "1",
        };
        if self.colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// A line that is taken back before the next one: how things stand. Only on a terminal.
    pub(crate) fn transient(&mut self, text: &str) -> io::Result<()> {
        let room = usize::from(self.width).saturating_sub(1);
        let text: String = harmless(text).chars().take(room).collect();
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Takes it back.
    pub(crate) fn take_back(&mut self) -> io::Result<()> {
        self.out.write_all(b"\r\x1b[2K")
    }

    /// Whether words may be coloured.
    pub(crate) fn has_colour(&self) -> bool {
        self.colour
    }

    /// Whether somebody watches.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes out what is buffered.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// For a terminal or a log that knows no more: a letter that looks a little like it.
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
        // The right half of a wide letter.
        '\0' => ' ',
        letter if letter.is_ascii() => letter,
        _ => '?',
    }
}

/// A letter that no cell has.
const MARK: char = '█';

/// A cell without its colour, and the code of that.
fn untoned(cell: &str) -> (&str, Option<&str>) {
    let toned = || {
        let (code, text) = cell.strip_prefix("\x1b[")?.strip_suffix("\x1b[0m")?.split_once('m')?;
        Some((text, code))
    };
    toned().map_or((cell, None), |(text, code)| (text, Some(code)))
}

/// A line of a table in the colours of its cells.
fn coloured(line: &str, begins: &[usize], tones: &[Vec<(&str, &str)>]) -> String {
    let letters: Vec<char> = line.chars().collect();
    let mut out: String = letters.iter().take(begins.first().copied().unwrap_or(0)).collect();
    for (place, begin) in begins.iter().enumerate() {
        let end = begins.get(place + 1).copied().unwrap_or(letters.len());
        let cell: String = letters.iter().skip(*begin).take(end.saturating_sub(*begin)).collect();
        let text = cell.trim_end();
        let tone = tones[place].iter().find(|(toned, _)| *toned == text && !text.is_empty());
        let (before, after) = match tone {
            Some((_, code)) => (format!("\x1b[{code}m"), "\x1b[0m"),
            None => (String::new(), ""),
        };
        out.push_str(&format!("{before}{text}{after}{}", &cell[text.len()..]));
    }
    out
}

/// Letters that show: colours take no room.
fn visible(text: &str) -> usize {
    let coloured = text.split("\x1b[").skip(1);
    let hidden = coloured.filter_map(|part| part.find('m')).map(|end| end + 3).sum::<usize>();
    text.chars().count() - hidden
}

/// A text without control characters, but for the codes of [`Printer::toned`].
fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(char::is_control) {
        clean.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(code) = ["32", "33", "31", "1", "0"]
            .iter()
            .map(|code| format!("\x1b[{code}m"))
            .find(|code| rest.starts_with(code.as_str()))
        {
            clean.push_str(&code);
            rest = &rest[code.len()..];
        } else {
            clean.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[rest.chars().next().map_or(1, char::len_utf8)..];
        }
    }
    clean.push_str(rest);
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a table prints at this width, with colours.
    fn printed(width: u16, headings: &[&str], rows: &[Vec<String>]) -> String {
        #[derive(Clone, Default)]
        struct Paper(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Paper {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let paper = Paper::default();
        let out = BufWriter::new(Box::new(paper.clone()) as Box<dyn Write>);
        let mut printer = Printer { out, colour: true, terminal: true, width, in_ascii: false };
        printer.table(headings, rows).unwrap();
        printer.finish().unwrap();
        String::from_utf8(paper.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_coloured_cell_is_whole_whatever_the_width() {
        let row = |word: &str, code: &str| {
            let why = "a long reason that has to be folded somewhere";
            vec!["node-1".to_owned(), format!("\x1b[{code}m{word}\x1b[0m"), why.to_owned()]
        };
        let rows = [row("in service", "32"), row("in repair", "31")];
        for width in [40, 60, 200] {
            let text = printed(width, &["Node", "Standing", "Why"], &rows);
            assert!(text.contains("\x1b[32min service\x1b[0m"), "{width}: {text}");
            assert!(text.contains("\x1b[31min repair\x1b[0m"), "{width}: {text}");
            assert_eq!(text.matches('\x1b').count(), 4, "{width}: {text}");
            assert!(!text.contains(MARK) && !text.contains('\u{fffd}'), "{width}: {text}");
            let longest = text.lines().map(visible).max().unwrap();
            assert!(longest <= usize::from(width), "{width}: {longest}: {text}");
        }
    }

    #[test]
    fn colours_take_no_room() {
        assert_eq!(visible("a\x1b[31mred\x1b[0m b"), 6);
        assert_eq!(visible("grün"), 4);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(harmless("plain \u{e9}"), "plain \u{e9}");
        assert_eq!(harmless("a\x1b[31mred\x1b[0m"), "a\x1b[31mred\x1b[0m");
        assert_eq!(
            harmless("a\x1b]0;title\x07b\r\n"),
            "a\u{fffd}]0;title\u{fffd}b\u{fffd}\u{fffd}"
        );
    }
}
