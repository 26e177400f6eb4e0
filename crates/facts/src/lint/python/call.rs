//! Nonexistent calls and invalid arguments.

use super::expression::{Argument, ArgumentValue, NameUse, PythonModule};
use super::token::{Token, TokenKind};
use crate::lint::linter::{Linter, MessageArgs};
use crate::lint::typo;
use crate::setting::{ArgumentTest, BadArgument, CallRule};

/// Reports imports of removed names.
pub(super) fn imports(linter: &mut Linter<'_>, module: &PythonModule<'_>) {
    let facts = linter.facts;
    for rule in facts.call.iter().filter(|rule| rule.mention) {
        let mut last = None;
        for (path, line) in &module.imports.paths {
            // `from a.b import c, d` is one mention of `a.b`.
            if is_path_or_child(path, &rule.paths) && last != Some(*line) {
                last = Some(*line);
                linter.report(
                    &rule.verdict,
                    *line,
                    MessageArgs { name: path, ..MessageArgs::default() },
                );
            }
        }
    }
}

fn is_path_or_child(path: &str, rule_paths: &[String]) -> bool {
    rule_paths.iter().any(|rule_path| {
        path.strip_prefix(rule_path.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Applies the call rules to one name.
pub(super) fn scan(linter: &mut Linter<'_>, module: &PythonModule<'_>, name_use: &NameUse) {
    let facts = linter.facts;
    for rule in
        facts.call.iter().filter(|rule| rule.paths.iter().any(|path| matches_path(path, name_use)))
    {
        let called = module.is(name_use.end, "(");
        let is_use = called || rule.mention && name_use.parts > 1;
        let imported =
            rule.imports.is_empty() || rule.imports.iter().any(|name| module.imports.has(name));
        let excused = || {
            rule.unless_guarded && linter.guarded
                || rule.unless_mentioned.iter().any(|name| module.mentions(name))
        };
        if !is_use || !imported || excused() {
            continue;
        }
        match &rule.argument {
            None => {
                let args = MessageArgs { name: &name_use.path, ..MessageArgs::default() };
                linter.report(&rule.verdict, name_use.line, args);
            }
            Some(test) if called => argument(linter, module, rule, test, name_use.end),
            Some(_) => {}
        }
    }
}

/// Whether a rule's path matches: exactly, or `*.name` for any method.
fn matches_path(path: &str, name_use: &NameUse) -> bool {
    match path.strip_prefix("*.") {
        Some(method) => name_use.path.rsplit_once('.').is_some_and(|(_, last)| last == method),
        None => name_use.path == path,
    }
}

fn argument(
    linter: &mut Linter<'_>,
    module: &PythonModule<'_>,
    rule: &CallRule,
    test: &ArgumentTest,
    open: usize,
) {
    let arguments = module.arguments(open);
    let has_keyword = |name: &String| arguments.iter().any(|a| a.keyword == Some(name.as_str()));
    let together = rule.also.iter().all(|test| !mistakes_in(module, test, &arguments).is_empty());
    if rule.unless_keyword.as_ref().is_some_and(has_keyword) || !together {
        return;
    }
    for Mistake { name, near, line } in mistakes_in(module, test, &arguments) {
        linter.report(&rule.verdict, line, MessageArgs { name: &name, value: &name, near: &near });
    }
}

/// A wrong argument.
struct Mistake {
    name: String,
    near: String,
    line: u32,
}

/// Mistakes in the argument that `test` checks.
fn mistakes_in(
    module: &PythonModule<'_>,
    test: &ArgumentTest,
    all: &[Argument<'_>],
) -> Vec<Mistake> {
    let keyword = all.iter().find(|argument| argument.keyword == Some(test.keyword.as_str()));
    let positional = test
        .position
        .and_then(|position| all.get(position))
        .filter(|argument| argument.keyword.is_none());
    let Some(at) = keyword.or(positional) else { return Vec::new() };
    let line = module.token(at.start).map_or(0, |token| token.line);
    let one = |name: String, near: &str| vec![Mistake { name, near: near.to_owned(), line }];
    match (&test.wrong, module.value(at.start, at.end)) {
        (BadArgument::Present, _) => one(test.keyword.clone(), ""),
        (BadArgument::Number, _) => {
            number(module, *at).map_or_else(Vec::new, |literal| one(literal, ""))
        }
        (BadArgument::Dictionary, _) if is_dictionary(module, *at) => one(test.keyword.clone(), ""),
        (BadArgument::Text, ArgumentValue::Text(word)) => one(word, ""),
        (BadArgument::Is(words), ArgumentValue::Text(word) | ArgumentValue::Word(word))
            if words.contains(&word) =>
        {
            one(word, "")
        }
        (BadArgument::BeginsWith(beginnings), ArgumentValue::Word(word))
            if beginnings.iter().any(|beginning| word.starts_with(beginning.as_str())) =>
        {
            one(word, "")
        }
        (BadArgument::TextNotOneOf(words), ArgumentValue::Text(word)) if !words.contains(&word) => {
            let near = typo::correction(&word, "", words.iter().map(String::as_str));
            let near = near.unwrap_or("default").to_owned();
            one(word, &near)
        }
        (BadArgument::KeyNotOneOf(words), _) => wrong_keys(module, *at, |key| !words.contains(key)),
        (BadArgument::KeyFakeOrNear { fake, real }, _) => wrong_keys(module, *at, |key| {
            let is_typo = || typo::correction(key, "", real.iter().map(String::as_str)).is_some();
            fake.contains(key) || !real.contains(key) && is_typo()
        }),
        _ => Vec::new(),
    }
}

fn wrong_keys(
    module: &PythonModule<'_>,
    at: Argument<'_>,
    is_wrong: impl Fn(&String) -> bool,
) -> Vec<Mistake> {
    let keys = module.entries(at.start, at.end).into_iter();
    keys.filter(|(key, ..)| is_wrong(key))
        .map(|(name, line, ..)| Mistake { name, near: String::new(), line })
        .collect()
}

/// A constant expression: `1800`, `30 * 60`.
fn number(module: &PythonModule<'_>, at: Argument<'_>) -> Option<String> {
    let tokens = module.source.tokens.get(at.start..at.end)?;
    let is_number = |token: &Token<'_>| token.kind == TokenKind::Number;
    let is_operator = |token: &Token<'_>| ["+", "-", "*", "/", "//"].iter().any(|o| token.is(o));
    let literal = || tokens.iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
    (tokens.iter().any(is_number) && tokens.iter().all(|t| is_number(t) || is_operator(t)))
        .then(literal)
}

/// Whether the argument is just `{..}` or `dict(..)`.
fn is_dictionary(module: &PythonModule<'_>, at: Argument<'_>) -> bool {
    let called = module.token(at.start).is_some_and(|token| token.is_name("dict"));
    let open = if called { at.start + 1 } else { at.start };
    module.is(open, if called { "(" } else { "{" }) && module.close(open) + 1 == at.end
}
