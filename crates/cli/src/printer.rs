//! The one way to stdout.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::LazyLock;

use comfy_table::{ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle};
use farrier_facts::xid::Severity;
use farrier_wire::hidden::{escaped, escaped_but};

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
        self.out.write_all(harmless_json(value, true)?.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// One JSON document on one line.
    pub(crate) fn json_line(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        self.out.write_all(harmless_json(value, false)?.as_bytes())?;
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
        let mut tones: Vec<Vec<(String, char)>> = vec![Vec::new(); headings.len()];
        for row in rows {
            let mut plain = Vec::with_capacity(row.len());
            for (cell, tones) in row.iter().zip(&mut tones) {
                let (text, tone) = untoned(cell);
                // Before it is laid out: a line break in a name would begin a row.
                let text = escaped(text).into_owned();
                tones.extend(tone.map(|tone| (text.clone(), tone)));
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
        let [(good, _), (caution, _), (bad, _), (strong, _)] = COLOURS;
        let begin = match tone {
            Tone::Good => good,
            Tone::Caution => caution,
            Tone::Bad => bad,
            Tone::Strong => strong,
        };
        if self.colour { marked(begin, word) } else { word.to_owned() }
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

/// Begins and ends a colour inside of a text, each followed by [`own`]: what comes from outside cannot have it. None of them shows.
const COLOURS: [(char, &str); 4] =
    [('\u{fdd1}', "32"), ('\u{fdd2}', "33"), ('\u{fdd3}', "31"), ('\u{fdd4}', "1")];
const PLAIN: (char, &str) = ('\u{fdd0}', "0");

/// A character of this run of the program.
fn own() -> char {
    static OWN: LazyLock<char> = LazyLock::new(|| {
        let random = RandomState::new().build_hasher().finish() % 0xfffe;
        u32::try_from(random)
            .ok()
            .and_then(|it| char::from_u32(0xf_0000 + it))
            .unwrap_or('\u{f0000}')
    });
    *OWN
}

/// A cell without its colour, and the mark of that.
fn untoned(cell: &str) -> (&str, Option<char>) {
    let begun = COLOURS.iter().find_map(|(begin, _)| {
        let rest = cell.strip_prefix(*begin)?.strip_prefix(own())?;
        Some((rest.strip_suffix(own())?.strip_suffix(PLAIN.0)?, *begin))
    });
    begun.map_or((cell, None), |(text, begin)| (text, Some(begin)))
}

/// A text in a colour, as [`harmless`] knows it.
fn marked(begin: char, text: &str) -> String {
    let (own, end) = (own(), PLAIN.0);
    format!("{begin}{own}{text}{end}{own}")
}

/// A line of a table in the colours of its cells.
fn coloured(line: &str, begins: &[usize], tones: &[Vec<(String, char)>]) -> String {
    let letters: Vec<char> = line.chars().collect();
    let mut out: String = letters.iter().take(begins.first().copied().unwrap_or(0)).collect();
    for (place, begin) in begins.iter().enumerate() {
        let end = begins.get(place + 1).copied().unwrap_or(letters.len());
        let cell: String = letters.iter().skip(*begin).take(end.saturating_sub(*begin)).collect();
        let text = cell.trim_end();
        let tone = tones[place].iter().find(|(toned, _)| *toned == text && !text.is_empty());
        match tone {
            Some((_, begin)) => out.push_str(&marked(*begin, text)),
            None => out.push_str(text),
        }
        out.push_str(&cell[text.len()..]);
    }
    out
}

/// Letters that show: colours take no room.
fn visible(text: &str) -> usize {
    let own = own();
    let mut letters = text.chars().peekable();
    let mut count = 0;
    while let Some(letter) = letters.next() {
        if code(letter).is_some() && letters.next_if_eq(&own).is_some() {
            continue;
        }
        count += 1;
    }
    count
}

/// The colour that a mark stands for.
fn code(letter: char) -> Option<&'static str> {
    let mut all = COLOURS.iter().chain([&PLAIN]);
    all.find(|(mark, _)| *mark == letter).map(|(_, code)| *code)
}

/// A text as a terminal may have it: what does not show is written out, and nothing but our own colours moves anything.
fn harmless(text: &str) -> Cow<'_, str> {
    let text = escaped(text);
    if !text.contains(|letter| code(letter).is_some()) {
        return text;
    }
    let own = own();
    let mut clean = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match code(letter) {
            Some(code) if letters.next_if_eq(&own).is_some() => {
                clean.push_str(&format!("\x1b[{code}m"));
            }
            Some(_) => clean.push_str(&format!("\\u{:04x}", u32::from(letter))),
            None => clean.push(letter),
        }
    }
    Cow::Owned(clean)
}

/// JSON as a terminal may have it: it means the same.
fn harmless_json(value: &impl serde::Serialize, is_pretty: bool) -> io::Result<String> {
    let text =
        if is_pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    Ok(escaped_but(&text?, |letter| letter == '\n').into_owned())
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
            let begin = COLOURS.iter().find(|(_, it)| *it == code).unwrap().0;
            vec!["node-1".to_owned(), marked(begin, word), why.to_owned()]
        };
        let rows = [row("in service", "32"), row("in repair", "31")];
        for width in [40, 60, 200] {
            let text = printed(width, &["Node", "Standing", "Why"], &rows);
            assert!(text.contains("\x1b[32min service\x1b[0m"), "{width}: {text}");
            assert!(text.contains("\x1b[31min repair\x1b[0m"), "{width}: {text}");
            assert_eq!(text.matches('\x1b').count(), 4, "{width}: {text}");
            assert!(!text.contains(MARK) && !text.contains('\u{fffd}'), "{width}: {text}");
            let plain = text.replace("\x1b[32m", "").replace("\x1b[31m", "").replace("\x1b[0m", "");
            let longest = plain.lines().map(visible).max().unwrap();
            assert!(longest <= usize::from(width), "{width}: {longest}: {text}");
        }
    }

    #[test]
    fn colours_take_no_room() {
        assert_eq!(visible(&format!("a{} b", marked('\u{fdd3}', "red"))), 6);
        assert_eq!(visible("grün"), 4);
    }

    #[test]
    fn what_does_not_show_does_not_reach_the_terminal_but_is_written_out() {
        assert_eq!(harmless("plain \u{e9}"), "plain \u{e9}");
        let red = marked('\u{fdd3}', "red\u{202e}");
        assert_eq!(harmless(&format!("a{red}")), "a\x1b[31mred\\u202e\x1b[0m");
        assert_eq!(harmless("a\x1b]0;title\x07b\r\n"), "a\\u001b]0;title\\u0007b\\r\\n");
        // Somebody else's colours, and marks that only look like ours.
        assert_eq!(harmless("\x1b[31mred\x1b[0m"), "\\u001b[31mred\\u001b[0m");
        assert_eq!(harmless("\u{fdd3}\u{f0000}\u{f0001}x"), "\\ufdd3\u{f0000}\u{f0001}x");
    }

    #[test]
    fn a_name_with_a_line_break_is_one_row() {
        let evil = "H100\nnode-2  in service\u{202e}\x1b[2K";
        let rows = [vec!["node-1".to_owned(), evil.to_owned()]];
        let text = printed(120, &["Node", "GPU"], &rows);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("H100\\nnode-2  in service\\u202e\\u001b[2K"), "{text}");
    }

    #[test]
    fn json_means_the_same_and_moves_nothing() {
        let value = serde_json::json!({ "name": "a\u{202e}b\n\u{9b}31m" });
        for is_pretty in [true, false] {
            let text = harmless_json(&value, is_pretty).unwrap();
            assert!(!text.contains(['\u{202e}', '\u{9b}']), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
