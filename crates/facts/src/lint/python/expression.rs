//! Names, calls, arguments and values in a token stream.

use std::collections::{HashMap, HashSet};

use super::import::Imports;
use super::token::{Source, Token, TokenKind};
use crate::lint::step_count;

/// Longer dictionaries are not resolved by name: every use would rescan them.
const NAMED_LONGEST: usize = 2048;

/// A source with its imports and assignments.
pub(super) struct PythonModule<'t> {
    pub(super) source: Source<'t>,
    pub(super) imports: Imports<'t>,
    /// Token index of the dictionary last assigned to a name.
    assigned: HashMap<&'t str, usize>,
    /// All string literals.
    quoted: HashSet<&'t str>,
}

/// A dotted name somewhere in the code.
#[derive(Debug, Clone)]
pub(super) struct NameUse {
    /// Fully qualified; `*.name` for a method of an expression.
    pub(super) path: String,
    /// Number of parts in the source.
    pub(super) parts: usize,
    /// Token range.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) line: u32,
}

/// An argument of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Argument<'t> {
    pub(super) keyword: Option<&'t str>,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Value of an argument, if known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArgumentValue {
    /// A string.
    Text(String),
    /// A fully qualified name, or a number.
    Word(String),
    /// Anything else.
    Unknown,
}

impl<'t> PythonModule<'t> {
    pub(super) fn new(source: Source<'t>, imports: Imports<'t>) -> Self {
        let mut assigned = HashMap::new();
        for line in &source.lines {
            if let [name, equals, first, ..] = &source.tokens[line.start..line.end]
                && name.kind == TokenKind::Name
                && equals.is("=")
                && (first.is("{") || first.is_name("dict"))
            {
                assigned.insert(name.text, line.start + 2);
            }
        }
        let texts = source.tokens.iter().filter(|token| token.kind == TokenKind::Text);
        let quoted = texts.map(|token| token.text).collect();
        Self { source, imports, assigned, quoted }
    }

    /// Whether a module is imported or named in a string.
    pub(super) fn mentions(&self, module: &str) -> bool {
        self.imports.has(module) || self.quoted.contains(module)
    }

    /// The tokens of a line.
    pub(super) fn line(&self, line: usize) -> &[Token<'t>] {
        step_count::step();
        let line = self.source.lines[line];
        &self.source.tokens[line.start..line.end]
    }

    pub(super) fn token(&self, at: usize) -> Option<&Token<'t>> {
        self.source.tokens.get(at)
    }

    pub(super) fn is(&self, at: usize, operator: &str) -> bool {
        self.token(at).is_some_and(|token| token.is(operator))
    }

    /// Index of the bracket that closes `open`.
    pub(super) fn close(&self, open: usize) -> usize {
        self.source.close[open].min(self.source.tokens.len())
    }

    /// The dotted names from `start` to `end`, outermost first.
    pub(super) fn uses(&self, start: usize, end: usize) -> Vec<NameUse> {
        let mut uses = Vec::new();
        let mut at = start;
        while at < end {
            step_count::step();
            let token = &self.source.tokens[at];
            if token.kind != TokenKind::Name {
                at += 1;
                continue;
            }
            let name_use = self.use_at(at, end);
            at = name_use.end;
            uses.push(name_use);
        }
        uses
    }

    /// The dotted name that begins at `start`.
    pub(super) fn use_at(&self, start: usize, limit: usize) -> NameUse {
        let tokens = &self.source.tokens;
        let mut dotted = tokens[start].text.to_owned();
        let (mut end, mut parts) = (start + 1, 1);
        while end + 1 < limit && tokens[end].is(".") && tokens[end + 1].kind == TokenKind::Name {
            dotted.push('.');
            dotted.push_str(tokens[end + 1].text);
            parts += 1;
            step_count::step();
            end += 2;
        }
        let method = start > 0 && tokens[start - 1].is(".");
        let path = if method { format!("*.{dotted}") } else { self.imports.resolve(&dotted) };
        NameUse { path, parts, start, end, line: tokens[start].line }
    }

    /// The arguments of the call, or the items of the bracket, at `open`. Skips nested brackets, so
    /// that nested calls stay linear in total.
    pub(super) fn arguments(&self, open: usize) -> Vec<Argument<'t>> {
        let close = self.close(open);
        let mut arguments = Vec::new();
        let mut start = open + 1;
        let mut at = open + 1;
        while at <= close {
            step_count::step();
            let token = self.token(at);
            let ends = at == close || token.is_some_and(|token| token.is(","));
            if ends {
                if at > start {
                    arguments.push(self.argument(start, at));
                }
                start = at + 1;
            } else if token.is_some_and(|token| ["(", "[", "{"].iter().any(|open| token.is(open))) {
                at = self.close(at);
            }
            at += 1;
        }
        arguments
    }

    fn argument(&self, start: usize, end: usize) -> Argument<'t> {
        let tokens = &self.source.tokens;
        if end - start > 2 && tokens[start].kind == TokenKind::Name && tokens[start + 1].is("=") {
            return Argument { keyword: Some(tokens[start].text), start: start + 2, end };
        }
        Argument { keyword: None, start, end }
    }

    /// The value of the tokens from `start` to `end`.
    pub(super) fn value(&self, start: usize, end: usize) -> ArgumentValue {
        let Some(tokens) = self.source.tokens.get(start..end) else {
            return ArgumentValue::Unknown;
        };
        match tokens {
            // Parentheses around a long string, one level deep.
            [open, .., close] if open.is("(") && close.is(")") && !tokens[1].is("(") => {
                self.value(start + 1, end - 1)
            }
            [] => ArgumentValue::Unknown,
            [only] if only.kind == TokenKind::Number => ArgumentValue::Word(only.text.to_owned()),
            // Adjacent string literals are concatenated.
            all if all.iter().all(|token| token.kind == TokenKind::Text) => {
                ArgumentValue::Text(all.iter().map(|token| token.text).collect())
            }
            [first, ..] if first.kind == TokenKind::Name => {
                let name_use = self.use_at(start, end);
                if name_use.end == end {
                    ArgumentValue::Word(name_use.path)
                } else {
                    ArgumentValue::Unknown
                }
            }
            _ => ArgumentValue::Unknown,
        }
    }

    /// The text of a string or number literal; `None` for anything else.
    pub(super) fn text(&self, start: usize, end: usize) -> Option<String> {
        match self.value(start, end) {
            ArgumentValue::Text(text) => Some(text),
            ArgumentValue::Word(word) => word.parse::<f64>().is_ok().then_some(word),
            ArgumentValue::Unknown => None,
        }
    }

    /// The entries of a dictionary: a literal, `dict(a=1)`, or a name to which a dictionary was
    /// assigned.
    ///
    /// Each entry is the key, its line and the token range of the value.
    pub(super) fn entries(&self, start: usize, end: usize) -> Vec<(String, u32, usize, usize)> {
        let Some(first) = self.token(start) else { return Vec::new() };
        if first.kind == TokenKind::Name && end == start + 1 {
            return match self.assigned.get(first.text) {
                Some(&at) if at != start && self.is_short(at) => self.dictionary(at),
                _ => Vec::new(),
            };
        }
        self.dictionary(start)
    }

    /// Whether the dictionary at `at` is short enough to scan for every use of its name.
    fn is_short(&self, at: usize) -> bool {
        let open = if self.is(at, "{") { at } else { at + 1 };
        self.source.close.get(open).is_some_and(|close| close.saturating_sub(at) <= NAMED_LONGEST)
    }

    fn dictionary(&self, at: usize) -> Vec<(String, u32, usize, usize)> {
        let Some(first) = self.token(at) else { return Vec::new() };
        let call = first.is_name("dict") && self.is(at + 1, "(");
        if !call && !first.is("{") {
            return Vec::new();
        }
        let arguments = self.arguments(if call { at + 1 } else { at });
        arguments
            .into_iter()
            .filter_map(|argument| {
                if let Some(keyword) = argument.keyword {
                    let line = self.source.tokens[argument.start - 2].line;
                    return Some((keyword.to_owned(), line, argument.start, argument.end));
                }
                let key =
                    self.token(argument.start).filter(|token| token.kind == TokenKind::Text)?;
                let value = argument.start + 2;
                (self.is(argument.start + 1, ":") && value <= argument.end)
                    .then(|| (key.text.to_owned(), key.line, value, argument.end))
            })
            .collect()
    }
}
