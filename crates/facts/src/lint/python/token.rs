//! Tokenises Python into logical lines.
//!
//! Not a full grammar: enough to separate code from comments and strings, to join calls over
//! several lines, and to find the block structure. Runs in linear time.

use crate::lint::step_count;

/// A token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'t> {
    pub(super) kind: TokenKind,
    /// For a string: the source text between the quotes.
    pub(super) text: &'t str,
    pub(super) line: u32,
}

/// Kind of token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A name or a keyword.
    Name,
    /// A number.
    Number,
    /// A plain string literal.
    Text,
    /// An f-string or t-string, whose value is unknown.
    Template,
    /// An operator or a bracket.
    Operator,
}

impl Token<'_> {
    pub(super) fn is(&self, operator: &str) -> bool {
        self.kind == TokenKind::Operator && self.text == operator
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        self.kind == TokenKind::Name && self.text == name
    }
}

/// A logical line: a simple statement or a block head.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogicalLine {
    /// Indentation in columns.
    pub(super) indent: usize,
    /// Index of its first token.
    pub(super) start: usize,
    /// One past its last token.
    pub(super) end: usize,
}

/// A replacement field of an f-string.
#[derive(Debug, Clone, Copy)]
pub(super) struct TemplateField<'t> {
    pub(super) text: &'t str,
    pub(super) line: u32,
}

/// A tokenised text.
#[derive(Debug, Default)]
pub(super) struct Source<'t> {
    pub(super) tokens: Vec<Token<'t>>,
    pub(super) lines: Vec<LogicalLine>,
    /// Index of the closing bracket for each opening one, or the number of tokens.
    pub(super) close: Vec<usize>,
    pub(super) comments: Vec<(u32, &'t str)>,
    pub(super) fields: Vec<TemplateField<'t>>,
    /// The first syntax error with its line.
    pub(super) syntax_error: Option<(u32, String)>,
    /// Whether an f-string in Python 3.12 syntax, and what follows it, may have been misread.
    pub(super) uncertain: bool,
}

/// Relevant multi-character operators, longest first.
const OPERATORS: [&str; 18] = [
    "**=", "//=", ">>=", "<<=", "...", "==", "!=", "<=", ">=", "->", ":=", "+=", "-=", "*=", "/=",
    "|=", "**", "//",
];

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    source: Source<'t>,
    /// Indices of open brackets.
    open: Vec<usize>,
    /// First token of the current logical line.
    start: usize,
    indent: usize,
    fresh: bool,
}

/// Tokenises a text that starts at line `first_line`.
pub(super) fn tokens(text: &str, first_line: u32) -> Source<'_> {
    let mut lexer = Lexer {
        text,
        at: 0,
        line: first_line,
        source: Source::default(),
        open: Vec::new(),
        start: 0,
        indent: 0,
        fresh: true,
    };
    while lexer.at < text.len() {
        lexer.step();
    }
    lexer.end_line();
    let count = lexer.source.tokens.len();
    if let Some(&open) = lexer.open.first() {
        let Token { text, line, .. } = lexer.source.tokens[open];
        lexer.syntax_error(line, || format!("`{text}` is not closed"));
    }
    lexer.source.close.resize(count, count);
    super::block::split_heads(&mut lexer.source);
    lexer.source
}

impl<'t> Lexer<'t> {
    fn step(&mut self) {
        step_count::step();
        let bytes = self.text.as_bytes();
        if self.fresh && self.open.is_empty() {
            self.measure_indent();
            if self.at >= bytes.len() {
                return;
            }
        }
        match bytes[self.at] {
            b'\n' => {
                self.at += 1;
                self.line = self.line.saturating_add(1);
                if self.open.is_empty() {
                    self.end_line();
                    self.fresh = true;
                }
            }
            b' ' | b'\t' | b'\r' | 0x0c => self.at += 1,
            b'\\' if bytes.get(self.at + 1) == Some(&b'\n') => {
                self.at += 2;
                self.line = self.line.saturating_add(1);
            }
            b'\\' if bytes[self.at + 1..].starts_with(b"\r\n") => {
                self.at += 3;
                self.line = self.line.saturating_add(1);
            }
            b'#' => self.comment(),
            b'"' | b'\'' => self.string(self.at, false),
            byte if byte.is_ascii_digit() => self.number(),
            byte if byte == b'_' || byte.is_ascii_alphabetic() || byte >= 0x80 => self.name(),
            b';' if self.open.is_empty() => {
                self.at += 1;
                self.end_line();
            }
            _ => self.operator(),
        }
    }

    fn measure_indent(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        let mut columns = 0;
        for byte in rest {
            match byte {
                b' ' => columns += 1,
                // As in Python: a tab advances to the next multiple of eight.
                b'\t' => columns = (columns / 8 + 1) * 8,
                _ => break,
            }
            self.at += 1;
        }
        self.indent = columns;
        self.fresh = false;
    }

    fn end_line(&mut self) {
        let end = self.source.tokens.len();
        if end > self.start {
            self.source.lines.push(LogicalLine { indent: self.indent, start: self.start, end });
        }
        self.start = end;
    }

    fn push(&mut self, kind: TokenKind, text: &'t str, line: u32) {
        self.source.tokens.push(Token { kind, text, line });
        self.source.close.push(usize::MAX);
    }

    fn comment(&mut self) {
        let rest = &self.text[self.at..];
        let end = memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len());
        self.source.comments.push((self.line, rest[..end].trim_end()));
        self.at += end;
    }

    fn number(&mut self) {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '_'))
            .unwrap_or(rest.len());
        self.push(TokenKind::Number, &rest[..end], self.line);
        self.at += end;
    }

    fn name(&mut self) {
        let rest = &self.text[self.at..];
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii()))
            .unwrap_or(rest.len());
        let word = &rest[..end];
        let quoted = rest[end..].starts_with(['"', '\'']);
        if quoted && end <= 2 && word.bytes().all(|b| b"rRbBfFuUtT".contains(&b)) {
            let template = word.bytes().any(|b| b"fFtT".contains(&b));
            return self.string(self.at + end, template);
        }
        self.push(TokenKind::Name, word, self.line);
        self.at += end;
    }

    fn operator(&mut self) {
        let rest = &self.text[self.at..];
        let long = OPERATORS.iter().find(|operator| rest.starts_with(**operator));
        let length = long.map_or(1, |operator| operator.len());
        let here = self.source.tokens.len();
        let text = &rest[..length];
        self.push(TokenKind::Operator, text, self.line);
        match text {
            "(" | "[" | "{" => self.open.push(here),
            ")" | "]" | "}" => {
                let open = self.open.pop();
                if let Some(open) = open {
                    self.source.close[open] = here;
                }
                let opened = open.map_or("", |open| self.source.tokens[open].text);
                if !matches!((opened, text), ("(", ")") | ("[", "]") | ("{", "}")) {
                    self.syntax_error(self.line, || {
                        format!("`{text}` has no matching open bracket")
                    });
                }
            }
            "$" | "?" | "`" | "!" => {
                self.syntax_error(self.line, || format!("`{text}` is not Python syntax"));
            }
            _ => {}
        }
        self.at += length;
    }

    /// Records the first syntax error.
    fn syntax_error(&mut self, line: u32, what: impl FnOnce() -> String) {
        if self.source.syntax_error.is_none() {
            self.source.syntax_error = Some((line, what()));
        }
    }

    /// Reads a string with the opening quote at `quote_at`.
    fn string(&mut self, quote_at: usize, template: bool) {
        let bytes = self.text.as_bytes();
        let quote = bytes[quote_at];
        let triple = bytes[quote_at..].starts_with(&[quote; 3]);
        let from = quote_at + if triple { 3 } else { 1 };
        let first_line = self.line;
        let (end, after) = self.string_end(from, quote, triple, template);
        if after == end {
            // The string is not closed on its line. An f-string may still be valid: since Python
            // 3.12, its fields may span lines.
            self.source.uncertain |= template;
            self.syntax_error(first_line, || "a string is not closed".to_owned());
        }
        let text = &self.text[from..end];
        let kind = if template { TokenKind::Template } else { TokenKind::Text };
        self.push(kind, text, first_line);
        if template {
            fields(text, first_line, &mut self.source.fields);
        }
        self.at = after;
    }

    /// End of the text and start of the following code. Counts lines.
    fn string_end(
        &mut self,
        from: usize,
        quote: u8,
        triple: bool,
        template: bool,
    ) -> (usize, usize) {
        let bytes = self.text.as_bytes();
        let mut at = from;
        let mut braces = 0_u32;
        while at < bytes.len() {
            step_count::step();
            match bytes[at] {
                b'\\' => {
                    if bytes.get(at + 1) == Some(&b'\n') {
                        self.line = self.line.saturating_add(1);
                    }
                    at += 1;
                    // Skip the escaped character if it has one byte. Only quotes and newlines
                    // matter here.
                    at += usize::from(bytes.get(at).is_some_and(u8::is_ascii));
                }
                b'\n' if !triple => return (at, at),
                b'\n' => {
                    self.line = self.line.saturating_add(1);
                    at += 1;
                }
                b'{' if template && bytes.get(at + 1) == Some(&b'{') && braces == 0 => at += 2,
                b'{' if template => {
                    braces += 1;
                    at += 1;
                }
                b'}' if template => {
                    braces = braces.saturating_sub(1);
                    at += 1;
                }
                // Since Python 3.12, f-string fields may reuse the same quotes.
                byte if byte == quote && !triple && braces > 0 => {
                    let inner = memchr::memchr2(quote, b'\n', &bytes[at + 1..]);
                    match inner.map(|length| at + 1 + length) {
                        Some(close) if bytes[close] == quote => at = close + 1,
                        _ => return (at, at + 1),
                    }
                }
                byte if byte == quote && !triple => return (at, at + 1),
                byte if byte == quote && bytes[at..].starts_with(&[quote; 3]) => {
                    return (at, at + 3);
                }
                _ => at += 1,
            }
        }
        (bytes.len(), bytes.len())
    }
}

/// Collects the code between single braces of an f-string.
fn fields<'t>(text: &'t str, first_line: u32, fields: &mut Vec<TemplateField<'t>>) {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut from) = (0, 0_u32, 0);
    let (mut line, mut start) = (first_line, first_line);
    while at < bytes.len() {
        step_count::step();
        match bytes[at] {
            b'{' if depth == 0 && bytes.get(at + 1) == Some(&b'{') => at += 1,
            b'{' => {
                if depth == 0 {
                    from = at + 1;
                    start = line;
                }
                depth += 1;
            }
            b'}' if depth == 1 => {
                depth = 0;
                fields.push(TemplateField { text: &text[from..at], line: start });
            }
            b'}' => depth = depth.saturating_sub(1),
            b'\n' => line = line.saturating_add(1),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        tokens(text, 1).tokens.iter().map(|token| token.text.to_owned()).collect()
    }

    #[test]
    fn separates_comments_and_strings_from_code() {
        assert_eq!(words("x = 'a # b'  # c\n"), ["x", "=", "a # b"]);
        assert_eq!(words("'''doc\nx = 1\n'''\ny"), ["doc\nx = 1\n", "y"]);
        assert_eq!(words(r#"a = "say \"x\"" + rb'\'"#), ["a", "=", r#"say \"x\""#, "+", r"\'"]);
        assert_eq!(words("open 'to the end\nnext"), ["open", "to the end", "next"]);
    }

    #[test]
    fn multi_line_call_is_one_logical_line() {
        let source = tokens("f(a,\n  b)\nc; d\n", 1);
        assert_eq!(source.lines.len(), 3);
        assert_eq!(source.close[1], 5);
        assert_eq!(source.tokens[4].line, 2);
    }

    #[test]
    fn f_strings_contain_code() {
        let source = tokens("f\"{{no}} {a.b()} \n", 1);
        assert_eq!(source.fields.len(), 1);
        assert_eq!(source.fields[0].text, "a.b()");
        let source = tokens("print(f\"{x[\"a\"]} {y}\", z)\n", 1);
        assert_eq!(source.fields.len(), 2);
        assert_eq!(source.tokens.last().unwrap().text, ")");
    }
}
