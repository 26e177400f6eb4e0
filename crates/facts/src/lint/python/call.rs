//! Calls that do not exist, and arguments that they do not take.

use super::expression::{Argument, Module, Use, Value};
use crate::lint::judge::{Judge, Written};
use crate::lint::near;
use crate::setting::{ArgumentTest, CallRule, Wrong};

/// A name that is gone is wrong where it is imported.
pub(super) fn imports(judge: &mut Judge<'_>, module: &Module<'_>) {
    let facts = judge.facts;
    for rule in facts.call.iter().filter(|rule| rule.mention) {
        let mut last = None;
        for (path, line) in &module.imports.paths {
            // `from a.b import c, d` is one mention of `a.b`.
            if is_or_is_in(path, &rule.paths) && last != Some(*line) {
                last = Some(*line);
                judge.say(&rule.verdict, *line, Written { name: path, ..Written::default() });
            }
        }
    }
}

fn is_or_is_in(path: &str, rule_paths: &[String]) -> bool {
    rule_paths.iter().any(|wanted| {
        path.strip_prefix(wanted.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Holds the rules against one name.
pub(super) fn scan(judge: &mut Judge<'_>, module: &Module<'_>, found: &Use) {
    let facts = judge.facts;
    for rule in facts.call.iter().filter(|rule| rule.paths.iter().any(|path| is_at(path, found))) {
        let called = module.is(found.end, "(");
        let wanted = called || rule.mention && found.parts > 1;
        let imported =
            rule.imports.is_empty() || rule.imports.iter().any(|name| module.imports.has(name));
        if !wanted || !imported {
            continue;
        }
        match &rule.argument {
            None => {
                let written = Written { name: &found.path, ..Written::default() };
                judge.say(&rule.verdict, found.line, written);
            }
            Some(test) if called => argument(judge, module, rule, test, found.end),
            Some(_) => {}
        }
    }
}

/// Whether a rule's path is meant: exactly, or `*.name` for a method of anything.
fn is_at(path: &str, found: &Use) -> bool {
    match path.strip_prefix("*.") {
        Some(method) => found.path.rsplit_once('.').is_some_and(|(_, last)| last == method),
        None => found.path == path,
    }
}

fn argument(
    judge: &mut Judge<'_>,
    module: &Module<'_>,
    rule: &CallRule,
    test: &ArgumentTest,
    open: usize,
) {
    let arguments = module.arguments(open);
    let keyword = |name: &str| arguments.iter().find(|argument| argument.keyword == Some(name));
    if rule.unless_keyword.as_deref().is_some_and(|name| keyword(name).is_some()) {
        return;
    }
    let placed = test
        .position
        .and_then(|position| arguments.get(position))
        .filter(|argument| argument.keyword.is_none());
    if let Some(argument) = keyword(&test.keyword).or(placed) {
        judge_argument(judge, module, rule, &test.wrong, *argument);
    }
}

fn judge_argument(
    judge: &mut Judge<'_>,
    module: &Module<'_>,
    rule: &CallRule,
    wrong: &Wrong,
    at: Argument<'_>,
) {
    let line = module.token(at.start).map_or(0, |token| token.line);
    let value = module.value(at.start, at.end);
    let mut say = |name: &str, near: &str, line: u32| {
        judge.say(&rule.verdict, line, Written { name, value: name, near });
    };
    match wrong {
        Wrong::Is(words) => {
            if let Value::Text(word) | Value::Word(word) = &value
                && words.contains(word)
            {
                say(word, "", line);
            }
        }
        Wrong::BeginsWith(beginnings) => {
            if let Value::Word(word) = &value
                && beginnings.iter().any(|beginning| word.starts_with(beginning.as_str()))
            {
                say(word, "", line);
            }
        }
        Wrong::TextNotOneOf(words) => {
            if let Value::Text(word) = &value
                && !words.contains(word)
            {
                let names = words.iter().map(String::as_str);
                say(word, near::slip(word, "", names).unwrap_or("default"), line);
            }
        }
        Wrong::KeyNotOneOf(words) => {
            for (key, line, ..) in module.entries(at.start, at.end) {
                if !words.contains(&key) {
                    say(&key, "", line);
                }
            }
        }
        Wrong::KeyFakeOrNear { fake, real } => {
            for (key, line, ..) in module.entries(at.start, at.end) {
                let slip = || near::slip(&key, "", real.iter().map(String::as_str)).is_some();
                if fake.contains(&key) || !real.contains(&key) && slip() {
                    say(&key, "", line);
                }
            }
        }
    }
}
