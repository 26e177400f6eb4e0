//! Rules that find code which inspects text.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{Token, TokenKind, group_end};

/// Methods that inspect a text.
const METHODS: [&str; 15] = [
    "contains",
    "ends_with",
    "eq_ignore_ascii_case",
    "find",
    "matches",
    "rfind",
    "rsplit",
    "rsplit_once",
    "split",
    "split_once",
    "starts_with",
    "strip_prefix",
    "strip_suffix",
    "trim_end_matches",
    "trim_start_matches",
];

/// Methods that rewrite a text; the first argument is the pattern.
const REWRITES: [&str; 2] = ["replace", "replacen"];

/// Names of variables and fields that usually hold a message or an error.
const SENTENCES: [&str; 6] = ["err", "error", "message", "reason", "sentence", "why"];

/// Methods whose result is the same text, up to case and surrounding space.
const SAME: [&str; 7] =
    ["as_deref", "as_ref", "as_str", "clone", "to_ascii_lowercase", "to_lowercase", "trim"];

/// Whether a literal is more than a name, a path or a format marker.
fn is_sentence(text: &str) -> bool {
    text.len() > 1 && text.contains(' ')
}

/// Constants, and whether each is a message: `const NAME: &str = "a sentence"`.
pub(super) fn constants(tokens: &[Token]) -> BTreeMap<&str, bool> {
    let mut constants = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        let name = tokens.get(at + 1).and_then(Token::ident);
        if let (Some("const" | "static"), Some(name)) = (token.ident(), name) {
            let value = tokens[at..].iter().skip_while(|token| !token.is('=')).nth(1);
            let is_sentence = matches!(value.map(|token| &token.kind), Some(TokenKind::Text(text)) if is_sentence(text));
            constants.insert(name, is_sentence);
        }
    }
    constants
}

/// Finds code that inspects text. Returns the line and what was found.
pub(super) fn scan(
    tokens: &[Token],
    sentences: &BTreeSet<&str>,
    is_library: bool,
) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let what = call(tokens, at, sentences)
            .or_else(|| comparison(tokens, at, sentences))
            .or_else(|| pattern(tokens, at))
            .or_else(|| is_library.then(|| text_error(tokens, at)).flatten())
            .or_else(|| nvml_name(token));
        found.extend(what.map(|what| (token.line, what)));
    }
    found
}

/// `.method("a sentence")`, `.method(A_SENTENCE)`, `why.method(..)`, `.replace("a sentence", ..)`.
fn call(tokens: &[Token], at: usize, sentences: &BTreeSet<&str>) -> Option<String> {
    let is_rewrite = |name: &&str| REWRITES.contains(name);
    let method = tokens[at].ident().filter(|name| METHODS.contains(name) || is_rewrite(name))?;
    if at < 2 || !tokens[at - 1].is('.') || !tokens.get(at + 1)?.is('(') {
        return None;
    }
    // Closures are scanned separately.
    let argument = &tokens[at + 2..group_end(tokens, at + 1) - 1];
    let argument = argument.iter().take_while(|token| !token.is('|'));
    let argument = argument.take_while(|token| !is_rewrite(&method) || !token.is(','));
    for token in argument {
        match &token.kind {
            TokenKind::Text(text) if is_sentence(text) => {
                return Some(format!("{method}(\"{text}\")"));
            }
            TokenKind::Ident(name) if sentences.contains(name.as_str()) => {
                return Some(format!("{method}({name})"));
            }
            _ => {}
        }
    }
    let receiver = sentence_before(tokens, at - 1).filter(|_| !is_rewrite(&method));
    receiver.map(|receiver| format!("{receiver}.{method}"))
}

/// The message expression that ends before `end`: `why`, `.text`, `to_string()`.
fn sentence_before(tokens: &[Token], mut end: usize) -> Option<String> {
    loop {
        let last = tokens.get(end.checked_sub(1)?)?;
        if let Some(name) = last.ident() {
            let is_field = end >= 2 && tokens[end - 2].is('.');
            let is_sentence = SENTENCES.contains(&name) || (is_field && name == "text");
            return is_sentence.then(|| name.to_owned());
        }
        let open = last.is(')').then(|| opening(tokens, end - 1)).flatten()?;
        let method = tokens.get(open.checked_sub(1)?)?.ident()?;
        if method == "to_string" {
            let value =
                open.checked_sub(3).and_then(|index| tokens[index].ident()).unwrap_or_default();
            return Some(format!("{value}.to_string()"));
        }
        if !SAME.contains(&method) || open < 2 {
            return None;
        }
        end = open - 2;
    }
}

/// The bracket that is closed at `close`.
fn opening(tokens: &[Token], close: usize) -> Option<usize> {
    let mut depth = 0;
    (0..=close).rev().find(|index| {
        depth += i32::from(tokens[*index].is(')')) - i32::from(tokens[*index].is('('));
        depth == 0
    })
}

/// `== "a sentence"`, `== Some(A_SENTENCE)`, `finding.text == ..`, `err.to_string() == ..`.
fn comparison(tokens: &[Token], at: usize, sentences: &BTreeSet<&str>) -> Option<String> {
    let [first, second, ..] = tokens.get(at..)? else { return None };
    let operator = match (&first.kind, &second.kind) {
        (TokenKind::Punct('='), TokenKind::Punct('=')) => "==",
        (TokenKind::Punct('!'), TokenKind::Punct('=')) => "!=",
        _ => return None,
    };
    for token in tokens[at + 2..].iter().take(3) {
        match &token.kind {
            TokenKind::Text(text) if is_sentence(text) => {
                return Some(format!("{operator} \"{text}\""));
            }
            TokenKind::Ident(name) if sentences.contains(name.as_str()) => {
                return Some(format!("{operator} {name}"));
            }
            TokenKind::Ident(name) if name == "Some" => {}
            TokenKind::Punct('(' | '&' | '*') => {}
            _ => break,
        }
    }
    // A variable called `why` may be a typed value, but `.text` and `to_string()` are text.
    let receiver = sentence_before(tokens, at)?;
    let is_text = receiver
        .split_once('.')
        .map_or(receiver == "text", |(value, _)| SENTENCES.contains(&value));
    is_text.then(|| format!("{receiver} {operator}"))
}

/// `"a sentence" => ..`, `"a sentence" | ..`, `"a sentence" if ..`, `matches!(text, "a sentence")`.
fn pattern(tokens: &[Token], at: usize) -> Option<String> {
    let TokenKind::Text(text) = &tokens[at].kind else { return None };
    let after = |by: usize| tokens.get(at + by);
    let is = |by: usize, mark| after(by).is_some_and(|token| token.is(mark));
    let is_arm = is(1, '=') && is(2, '>');
    let is_alternative = is(1, '|') && !is(2, '|');
    let is_guarded = after(1).and_then(Token::ident) == Some("if");
    let is_last_of_matches = is(1, ')') && is_in_matches(tokens, at + 1);
    let is_pattern = is_arm || is_alternative || is_guarded || is_last_of_matches;
    (is_pattern && is_sentence(text)).then(|| format!("match \"{text}\""))
}

/// Whether the bracket at `close` ends a `matches!`.
fn is_in_matches(tokens: &[Token], close: usize) -> bool {
    let name = opening(tokens, close).and_then(|open| open.checked_sub(2));
    name.is_some_and(|index| tokens[index].ident() == Some("matches") && tokens[index + 1].is('!'))
}

/// `Result<.., String>`.
fn text_error(tokens: &[Token], at: usize) -> Option<String> {
    let is_result = tokens[at].ident() == Some("Result") && tokens.get(at + 1)?.is('<');
    if !is_result {
        return None;
    }
    let (mut depth, mut first, mut argument) = (0, true, Vec::new());
    for (index, token) in tokens.iter().enumerate().skip(at + 1) {
        // The arrow of a function type is not a closing bracket.
        let is_arrow = token.is('>') && tokens[index - 1].is('-');
        match token.kind {
            TokenKind::Punct('<' | '(' | '[') => depth += 1,
            TokenKind::Punct('>' | ')' | ']') if !is_arrow => depth -= 1,
            TokenKind::Punct(',') if depth == 1 => {
                first = false;
                argument.clear();
            }
            _ => argument.push(token.ident()),
        }
        if depth == 0 {
            break;
        }
    }
    (!first && argument == [Some("String")]).then(|| "Result<_, String>".to_owned())
}

/// An NVML status by name; statuses should be compared as numbers.
fn nvml_name(token: &Token) -> Option<String> {
    match &token.kind {
        TokenKind::Text(text) if text.starts_with("NVML_ERROR_") => Some(format!("\"{text}\"")),
        _ => None,
    }
}
