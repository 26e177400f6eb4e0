//! Checks that no code parses messages that Farrier itself writes. Code compares reasons, errors
//! and states as values, and writes text only as output.
//!
//! ```text
//! crates/*/src, xtask/src ─ lexer ─> tokens ─ rules ─> matches ─ allowed.txt ─> problems
//! ```
//!
//! The rules see names and literals but no types. `allowed.txt` lists code that may parse text,
//! such as output of other programs. The rules do not detect comparisons of two variables that hold
//! messages.

mod lexer;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lexer::{Token, group_end};
use rules::{constants, scan};

/// Code that inspects a text which may be a message of Farrier itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TextMatch {
    path: String,
    line: usize,
    /// The match, such as `contains("a b")`, `why.ends_with` or `Result<_, String>`.
    what: String,
}

/// An exception: the path of a file or, with a trailing slash, of a folder, and the `what` that is
/// allowed there. `*` allows everything.
#[derive(Debug)]
struct Exception {
    path: String,
    what: String,
}

impl Exception {
    fn covers(&self, text_match: &TextMatch) -> bool {
        let is_there = match self.path.strip_suffix('/') {
            Some(_) => text_match.path.starts_with(&self.path),
            None => text_match.path == self.path,
        };
        is_there && (self.what == "*" || self.what == text_match.what)
    }
}

/// All problems of the repository: matches without an exception, and unused exceptions.
pub(crate) fn problems(root: &Path) -> anyhow::Result<Vec<String>> {
    let allowed = allowed(&read(&root.join("xtask/src/own_text/allowed.txt"))?)?;
    let mut sources = BTreeMap::new();
    for folder in source_folders(root)? {
        for path in rust_files(&folder)? {
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            sources.insert(name, lexer::tokens(&read(&path)?));
        }
    }
    let matches = find_matches(sources);
    let unexpected = matches
        .iter()
        .filter(|text_match| !allowed.iter().any(|exception| exception.covers(text_match)));
    let mut problems: Vec<String> = unexpected
        .map(|text_match| {
            format!(
                "{}:{}: parses a message: {}",
                text_match.path, text_match.line, text_match.what
            )
        })
        .collect();
    let stale = allowed
        .iter()
        .filter(|exception| !matches.iter().any(|text_match| exception.covers(text_match)));
    problems.extend(stale.map(|exception| {
        format!("allowed.txt: unused exception `{} | {}`", exception.path, exception.what)
    }));
    Ok(problems)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read `{}`", path.display()))
}

/// Parses `path | what | reason` lines; `#` starts a comment.
fn allowed(text: &str) -> anyhow::Result<Vec<Exception>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.splitn(3, " | ").collect::<Vec<_>>()[..] {
            [path, what, reason] if !reason.trim().is_empty() => {
                Ok(Exception { path: path.to_owned(), what: what.to_owned() })
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
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// The matches in all sources, by path.
fn find_matches(mut sources: BTreeMap<String, Vec<Token>>) -> Vec<TextMatch> {
    let tests: BTreeSet<String> =
        sources.iter_mut().flat_map(|(path, tokens)| strip_tests(path, tokens)).collect();
    let is_test = |path: &str| {
        tests
            .iter()
            .any(|test| path == format!("{test}.rs") || path.starts_with(&format!("{test}/")))
    };
    sources.retain(|path, _| !is_test(path));
    // Several files may define a constant of the same name. It may be a message in some of these
    // files and not in others. Such a name counts as a message only in the files where it is a
    // message.
    let mut everywhere: BTreeMap<&str, bool> = BTreeMap::new();
    for (name, is_sentence) in sources.values().flat_map(|tokens| constants(tokens)) {
        *everywhere.entry(name).or_insert(true) &= is_sentence;
    }
    let mut matches = Vec::new();
    for (path, tokens) in &sources {
        let mut constants_in_scope = everywhere.clone();
        constants_in_scope.extend(constants(tokens));
        let sentences =
            constants_in_scope.into_iter().filter_map(|(name, is)| is.then_some(name)).collect();
        for (line, what) in scan(tokens, &sentences, is_library(path)) {
            matches.push(TextMatch { path: path.clone(), line, what });
        }
    }
    matches.sort();
    matches.dedup();
    matches
}

fn is_library(path: &str) -> bool {
    !path.starts_with("crates/cli/") && !path.starts_with("xtask/")
}

/// Removes items under `#[cfg(test)]`. Returns the paths, without `.rs`, of test modules in
/// separate files.
fn strip_tests(path: &str, tokens: &mut Vec<Token>) -> Vec<String> {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let below = if ["mod", "lib", "main"].contains(&name) { folder } else { stem };
    let mut files = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let end = if tokens[at].is('#') { group_end(tokens, at + 1) } else { at };
        let attribute = &tokens[at..end];
        let has = |name: &str| attribute.iter().any(|token| token.ident() == Some(name));
        if !(has("cfg") && has("test") && !has("not")) {
            at += 1;
            continue;
        }
        let ends = |token: &Token| token.is(';') || token.is('{');
        let body = tokens[end..].iter().position(ends).map_or(tokens.len(), |offset| end + offset);
        if let [.., module, name] = &tokens[end..body]
            && let (Some("mod"), Some(name)) = (module.ident(), name.ident())
        {
            files.push(format!("{below}/{name}"));
        }
        tokens.drain(at..group_end(tokens, body).max(body + 1).min(tokens.len()));
    }
    files
}

#[cfg(test)]
mod tests;
