//! Parses one shell word with quotes, escapes and substitutions.

use super::reader::SourceReader;
use super::script::Word;
use crate::lint::step_count;

/// Substitutions up to this many bytes stay in their word as written.
const SHORT: usize = 200;

impl SourceReader<'_> {
    /// Parses one word, up to an unquoted blank or operator.
    pub(super) fn word(&mut self) -> Word {
        let mut word = Word { line: self.line, ..Word::default() };
        let start = self.at;
        while let Some(byte) = self.peek() {
            step_count::step();
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | b';' | b'|' | b'&' | b'<' | b'>' | b'(' | b')' => {
                    // In a test, `<` is a word. The parentheses of `name()` are words too.
                    if self.at == start {
                        word.text.push(char::from(byte));
                        self.bump();
                    }
                    break;
                }
                b'\\' => self.escape(&mut word),
                b'\'' => {
                    word.quoted = true;
                    self.at += 1;
                    self.until(b'\'', &mut word);
                }
                b'"' => {
                    word.quoted = true;
                    self.at += 1;
                    self.double_quotes(&mut word);
                }
                // End of the enclosing substitution.
                b'`' if self.closing == Some(b'`') && self.at > start => break,
                b'$' | b'`' => self.dollar(&mut word),
                _ => self.plain(&mut word),
            }
        }
        word
    }

    /// Consumes one literal character.
    fn plain(&mut self, word: &mut Word) {
        if let Some(letter) = self.rest().chars().next() {
            word.text.push(letter);
            if letter == '\n' {
                self.line = self.line.saturating_add(1);
            }
            self.at += letter.len_utf8();
        }
    }

    fn escape(&mut self, word: &mut Word) {
        self.at += 1;
        match self.peek() {
            Some(b'\n') => self.bump(),
            Some(_) => self.plain(word),
            None => {}
        }
    }

    fn until(&mut self, quote: u8, word: &mut Word) {
        let rest = self.rest();
        let end = memchr::memchr(quote, rest.as_bytes()).unwrap_or(rest.len());
        let text = rest[..end].to_owned();
        let lines = memchr::memchr_iter(b'\n', text.as_bytes()).count();
        self.line = self.line.saturating_add(crate::lint::line_number(lines));
        self.at = (self.at + end + 1).min(self.text.len());
        word.text.push_str(&text);
    }

    fn double_quotes(&mut self, word: &mut Word) {
        while let Some(byte) = self.peek() {
            step_count::step();
            match byte {
                b'"' => {
                    self.at += 1;
                    return;
                }
                b'\\'
                    if self.rest().len() > 1
                        && b"$`\"\\\n".contains(&self.text.as_bytes()[self.at + 1]) =>
                {
                    self.escape(word);
                }
                b'$' | b'`' => self.dollar(word),
                _ => self.plain(word),
            }
        }
    }

    /// Parses `$NAME`, `${NAME:-x}`, `$(command)` or a backquoted command, kept in the word as
    /// written.
    fn dollar(&mut self, word: &mut Word) {
        word.dynamic = true;
        let from = self.at;
        let rest = self.rest();
        if rest.starts_with("$(") {
            self.at += 2;
            self.nested(b')');
        } else if rest.starts_with("${") {
            self.at += 2;
            while let Some(byte) = self.peek() {
                self.bump();
                if byte == b'}' {
                    break;
                }
            }
        } else if rest.starts_with('`') {
            self.at += 1;
            self.nested(b'`');
        } else {
            self.at += 1;
        }
        // Keep only short substitutions: their commands were parsed separately.
        let end = (from..=self.at.min(self.text.len()))
            .rev()
            .find(|&end| self.text.is_char_boundary(end));
        let source = &self.text[from..end.unwrap_or(from)];
        word.text.push_str(if source.len() <= SHORT { source } else { "$()" });
    }
}
