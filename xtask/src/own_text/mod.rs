//! Whether code reads our own sentences back. Reasons, errors and states are values; a sentence is output.
//!
//! ```text
//! crates/*/src, xtask/src ─ lexer ─> tokens without tests ─ rules ─> places ─ allowed.txt ─> problems
//! ```
//!
//! The rules see names and literals, and not types: a place that reads another program's text stands in `allowed.txt`
//! with what it reads. Comparing two values that hold sentences is not seen here.

mod lexer;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lexer::{Kind, Token};

/// Methods that look into a text.
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

/// Names of variables and fields that hold a sentence of ours or an error.
const SENTENCES: [&str; 6] = ["err", "error", "message", "reason", "sentence", "why"];

/// Methods after which a text is still the same text.
const SAME: [&str; 7] =
    ["as_deref", "as_ref", "as_str", "clone", "to_ascii_lowercase", "to_lowercase", "trim"];

/// A place that looks into a text which may be ours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    path: String,
    line: usize,
    /// `contains("a b")`, `why.ends_with`, `Result<_, String>`.
    what: String,
}

/// An exception: the path of a file or, with a slash at its end, a folder; a place's `what`, or `*`; and why.
#[derive(Debug)]
struct Allowed {
    path: String,
    what: String,
}

impl Allowed {
    fn covers(&self, place: &Place) -> bool {
        let is_there = match self.path.strip_suffix('/') {
            Some(_) => place.path.starts_with(&self.path),
            None => place.path == self.path,
        };
        is_there && (self.what == "*" || self.what == place.what)
    }
}

/// All problems of the repository below a root: places that nothing allows, and exceptions that nothing needs.
pub(crate) fn problems(root: &Path) -> anyhow::Result<Vec<String>> {
    let allowed = allowed(&read(&root.join("xtask/src/own_text/allowed.txt"))?)?;
    let mut sources = BTreeMap::new();
    for folder in source_folders(root)? {
        for path in rust_files(&folder)? {
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            sources.insert(name, lexer::tokens(&read(&path)?));
        }
    }
    let places = places_of(sources);
    let open = places.iter().filter(|place| !allowed.iter().any(|it| it.covers(place)));
    let mut problems: Vec<String> =
        open.map(|it| format!("{}:{}: reads a text back: {}", it.path, it.line, it.what)).collect();
    let stale = allowed.iter().filter(|it| !places.iter().any(|place| it.covers(place)));
    problems
        .extend(stale.map(|it| format!("allowed.txt: nothing needs `{} | {}`", it.path, it.what)));
    Ok(problems)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read `{}`", path.display()))
}

/// `path | what | reason` a line; `#` begins a comment.
fn allowed(text: &str) -> anyhow::Result<Vec<Allowed>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.splitn(3, " | ").collect::<Vec<_>>()[..] {
            [path, what, reason] if !reason.trim().is_empty() => {
                Ok(Allowed { path: path.to_owned(), what: what.to_owned() })
            }
            _ => anyhow::bail!("`{line}` is not `path | what | reason`"),
        })
        .collect()
}

fn source_folders(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut folders = vec![root.join("xtask/src")];
    for entry in fs::read_dir(root.join("crates"))? {
        folders.push(entry?.path().join("src"));
    }
    Ok(folders)
}

fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// The places of all sources, by path.
fn places_of(mut sources: BTreeMap<String, Vec<Token>>) -> Vec<Place> {
    let tests: BTreeSet<String> =
        sources.iter_mut().flat_map(|(path, tokens)| cut_tests(path, tokens)).collect();
    let is_test = |path: &str| {
        tests.iter().any(|it| path == format!("{it}.rs") || path.starts_with(&format!("{it}/")))
    };
    sources.retain(|path, _| !is_test(path));
    // A name that files give to other things too is only looked up in the file itself.
    let mut everywhere: BTreeMap<&str, bool> = BTreeMap::new();
    for (name, is_sentence) in sources.values().flat_map(|it| constants(it)) {
        *everywhere.entry(name).or_insert(true) &= is_sentence;
    }
    let mut places = Vec::new();
    for (path, tokens) in &sources {
        let mut known = everywhere.clone();
        known.extend(constants(tokens));
        let sentences = known.into_iter().filter_map(|(name, is)| is.then_some(name)).collect();
        for (line, what) in found(tokens, &sentences, is_library(path)) {
            places.push(Place { path: path.clone(), line, what });
        }
    }
    places.sort();
    places.dedup();
    places
}

fn is_library(path: &str) -> bool {
    !path.starts_with("crates/cli/") && !path.starts_with("xtask/")
}

/// Takes out items under `#[cfg(test)]`; modules among them are files, whose paths without `.rs` are given back.
fn cut_tests(path: &str, tokens: &mut Vec<Token>) -> Vec<String> {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let below = if ["mod", "lib", "main"].contains(&name) { folder } else { stem };
    let mut files = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let end = if tokens[at].is('#') { closing(tokens, at + 1) } else { at };
        let attribute = &tokens[at..end];
        let has = |name: &str| attribute.iter().any(|it| it.ident() == Some(name));
        if !(has("cfg") && has("test") && !has("not")) {
            at += 1;
            continue;
        }
        let ends = |it: &Token| it.is(';') || it.is('{');
        let body = tokens[end..].iter().position(ends).map_or(tokens.len(), |it| end + it);
        if let [.., module, name] = &tokens[end..body]
            && let (Some("mod"), Some(name)) = (module.ident(), name.ident())
        {
            files.push(format!("{below}/{name}"));
        }
        tokens.drain(at..closing(tokens, body).max(body + 1).min(tokens.len()));
    }
    files
}

/// The place behind the bracket that closes the one at `open`; `open` itself where none is.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_i32;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        depth += match token.kind {
            Kind::Punct('(' | '[' | '{') => 1,
            Kind::Punct(')' | ']' | '}') => -1,
            _ => 0,
        };
        if depth <= 0 {
            return if place == open { open } else { place + 1 };
        }
    }
    tokens.len()
}

/// Whether a literal is more than a name, a path or a mark of another format.
fn is_sentence(text: &str) -> bool {
    text.len() > 1 && text.contains(' ')
}

/// Constants, and whether each is a sentence: `const NAME: &str = "a sentence"`.
fn constants(tokens: &[Token]) -> BTreeMap<&str, bool> {
    let mut constants = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        let name = tokens.get(at + 1).and_then(Token::ident);
        if let (Some("const" | "static"), Some(name)) = (token.ident(), name) {
            let value = tokens[at..].iter().skip_while(|it| !it.is('=')).nth(1);
            let is_sentence =
                matches!(value.map(|it| &it.kind), Some(Kind::Text(text)) if is_sentence(text));
            constants.insert(name, is_sentence);
        }
    }
    constants
}

/// What looks into a text, by line.
fn found(tokens: &[Token], sentences: &BTreeSet<&str>, is_library: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let what = call(tokens, at, sentences)
            .or_else(|| comparison(tokens, at, sentences))
            .or_else(|| is_library.then(|| text_error(tokens, at)).flatten())
            .or_else(|| nvml_name(token));
        found.extend(what.map(|what| (token.line, what)));
    }
    found
}

/// `.method("a sentence")`, `.method(A_SENTENCE)`, `why.method(..)`.
fn call(tokens: &[Token], at: usize, sentences: &BTreeSet<&str>) -> Option<String> {
    let method = tokens[at].ident().filter(|name| METHODS.contains(name))?;
    if at < 2 || !tokens[at - 1].is('.') || !tokens.get(at + 1)?.is('(') {
        return None;
    }
    // What a closure does with it is looked at by itself.
    let argument = &tokens[at + 2..closing(tokens, at + 1) - 1];
    let argument = argument.iter().take_while(|it| !it.is('|'));
    for token in argument {
        match &token.kind {
            Kind::Text(text) if is_sentence(text) => return Some(format!("{method}(\"{text}\")")),
            Kind::Ident(name) if sentences.contains(name.as_str()) => {
                return Some(format!("{method}({name})"));
            }
            _ => {}
        }
    }
    sentence_before(tokens, at - 1).map(|receiver| format!("{receiver}.{method}"))
}

/// The sentence that the expression before a place ends in: `why`, `.text`, `to_string()`.
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
            let of = open.checked_sub(3).and_then(|it| tokens[it].ident()).unwrap_or_default();
            return Some(format!("{of}.to_string()"));
        }
        if !SAME.contains(&method) || open < 2 {
            return None;
        }
        end = open - 2;
    }
}

/// The bracket that the one at `close` closes.
fn opening(tokens: &[Token], close: usize) -> Option<usize> {
    let mut depth = 0;
    (0..=close).rev().find(|place| {
        depth += i32::from(tokens[*place].is(')')) - i32::from(tokens[*place].is('('));
        depth == 0
    })
}

/// `== "a sentence"`, `== Some(A_SENTENCE)`, `finding.text == ..`, `err.to_string() == ..`.
fn comparison(tokens: &[Token], at: usize, sentences: &BTreeSet<&str>) -> Option<String> {
    let [first, second, ..] = tokens.get(at..)? else { return None };
    let operator = match (&first.kind, &second.kind) {
        (Kind::Punct('='), Kind::Punct('=')) => "==",
        (Kind::Punct('!'), Kind::Punct('=')) => "!=",
        _ => return None,
    };
    for token in tokens[at + 2..].iter().take(3) {
        match &token.kind {
            Kind::Text(text) if is_sentence(text) => return Some(format!("{operator} \"{text}\"")),
            Kind::Ident(name) if sentences.contains(name.as_str()) => {
                return Some(format!("{operator} {name}"));
            }
            Kind::Ident(name) if name == "Some" => {}
            Kind::Punct('(' | '&' | '*') => {}
            _ => break,
        }
    }
    // A value of ours may be called `why`; what is `.text` or was made a text is none any more.
    let receiver = sentence_before(tokens, at)?;
    let of_value =
        receiver.split_once('.').map_or(receiver == "text", |(of, _)| SENTENCES.contains(&of));
    of_value.then(|| format!("{receiver} {operator}"))
}

/// `Result<.., String>`.
fn text_error(tokens: &[Token], at: usize) -> Option<String> {
    let is_result = tokens[at].ident() == Some("Result") && tokens.get(at + 1)?.is('<');
    if !is_result {
        return None;
    }
    let (mut depth, mut first, mut argument) = (0, true, Vec::new());
    for (place, token) in tokens.iter().enumerate().skip(at + 1) {
        // The arrow of a function type closes nothing.
        let is_arrow = token.is('>') && tokens[place - 1].is('-');
        match token.kind {
            Kind::Punct('<' | '(' | '[') => depth += 1,
            Kind::Punct('>' | ')' | ']') if !is_arrow => depth -= 1,
            Kind::Punct(',') if depth == 1 => {
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

/// A status of NVML by its name: it is a number.
fn nvml_name(token: &Token) -> Option<String> {
    match &token.kind {
        Kind::Text(text) if text.starts_with("NVML_ERROR_") => Some(format!("\"{text}\"")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
