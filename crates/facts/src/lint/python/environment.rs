//! Environment variables set and read by Python code.

use super::expression::{Argument, NameUse, PythonModule};
use super::token::{LogicalLine, TokenKind};
use crate::lint::linter::{Access, Linter};
use crate::setting::SettingSource;

/// Keyword arguments and dictionary keys that hold an environment.
const ENVIRONMENTS: [&str; 6] = ["env", "environ", "environment", "env_vars", "extra_env", "envs"];

/// Scans one name: `os.environ[..]`, `os.getenv(..)`, `env=..`.
pub(super) fn scan(linter: &mut Linter<'_>, module: &PythonModule<'_>, name_use: &NameUse) {
    let path = name_use.path.as_str();
    if path == "os.environ" && module.is(name_use.end, "[") {
        return subscript(linter, module, name_use);
    }
    if path == "os.environ" && membership(module, name_use) {
        let key = &module.source.tokens[membership_key(module, name_use)];
        return linter.variable(SettingSource::Python, key.line, key.text, None, Access::Read);
    }
    if !module.is(name_use.end, "(") {
        return;
    }
    let method = path.rsplit('.').next().unwrap_or(path);
    let arguments = || module.arguments(name_use.end);
    match (path, method) {
        ("os.environ.get" | "os.getenv" | "os.environ.__getitem__", _) => {
            first_name(linter, module, &arguments(), Access::Read);
        }
        ("os.environ.setdefault" | "os.putenv" | "os.environ.__setitem__", _) | (_, "setenv") => {
            first_name(linter, module, &arguments(), Access::Set);
        }
        ("os.environ.update", _) => {
            for argument in arguments() {
                update(linter, module, argument);
            }
        }
        (_, "dict") if path.ends_with("patch.dict") || path == "dict" => {
            copy(linter, module, &arguments());
        }
        _ => {
            let environment = |argument: &Argument<'_>| {
                argument.keyword.is_some_and(|keyword| ENVIRONMENTS.contains(&keyword))
            };
            for argument in arguments().iter().filter(|argument| environment(argument)) {
                set_entries(linter, module, argument.start, argument.end);
            }
        }
    }
}

/// Scans a whole line: `env = {..}`, `env["X"] = ..`, `{**os.environ, "X": ..}`,
/// `"env_vars": {..}`.
pub(super) fn line(linter: &mut Linter<'_>, module: &PythonModule<'_>, line: LogicalLine) {
    let tokens = &module.source.tokens;
    for at in line.start..line.end {
        let token = &tokens[at];
        let next = at + 1;
        if token.is("{") && inherits(module, at) {
            set_entries(linter, module, at, module.close(at));
        } else if token.kind == TokenKind::Name && names_environment(token.text) {
            // `os.environ[..]` was already scanned as a name.
            let attribute = at > line.start && tokens[at - 1].is(".") && token.text == "environ";
            if module.is(next, "[") && !attribute {
                assigned_item(linter, module, next);
            } else if at == line.start
                && module.is(next, "=")
                && module.is(next + 1, "{")
                && !inherits(module, next + 1)
            {
                set_entries(linter, module, next + 1, module.close(next + 1));
            }
        } else if token.kind == TokenKind::Text
            && ENVIRONMENTS.contains(&token.text)
            && module.is(next, ":")
            && module.is(next + 1, "{")
            && !inherits(module, next + 1)
        {
            set_entries(linter, module, next + 1, module.close(next + 1));
        }
    }
}

fn names_environment(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["env", "environ", "env_vars", "environment"].iter().any(|ending| {
        name.strip_suffix(ending).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
    })
}

/// Whether a dictionary starts with `**os.environ`. Later items are not checked.
fn inherits(module: &PythonModule<'_>, open: usize) -> bool {
    module.is(open + 1, "**")
        && module.token(open + 2).is_some_and(|token| token.kind == TokenKind::Name)
        && module.use_at(open + 2, module.close(open)).path.starts_with("os.environ")
}

/// `os.environ["X"]`, read or set; `del os.environ["X"]` is neither.
fn subscript(linter: &mut Linter<'_>, module: &PythonModule<'_>, name_use: &NameUse) {
    let open = name_use.end;
    let close = module.close(open);
    let Some(key) = module.token(open + 1) else { return };
    let deleted = name_use.start > 0 && module.source.tokens[name_use.start - 1].is_name("del");
    if key.kind != TokenKind::Text || close != open + 2 || deleted {
        return;
    }
    if module.is(close + 1, "=") {
        return assigned_item(linter, module, open);
    }
    linter.variable(SettingSource::Python, key.line, key.text, None, Access::Read);
}

/// `["X"] = value`
fn assigned_item(linter: &mut Linter<'_>, module: &PythonModule<'_>, open: usize) {
    let close = module.close(open);
    let Some(key) = module.token(open + 1).filter(|key| key.kind == TokenKind::Text) else {
        return;
    };
    if close != open + 2 || !module.is(close + 1, "=") {
        return;
    }
    let lines = &module.source.lines;
    let here = lines.partition_point(|line| line.end <= open);
    let end = lines.get(here).map_or(close + 2, |line| line.end);
    let value = module.text(close + 2, end);
    linter.variable(SettingSource::Python, key.line, key.text, value.as_deref(), Access::Set);
}

/// `"X" in os.environ`, `"X" not in os.environ`
fn membership(module: &PythonModule<'_>, name_use: &NameUse) -> bool {
    name_use.start >= 2
        && module.source.tokens[name_use.start - 1].is_name("in")
        && module.source.tokens[membership_key(module, name_use)].kind == TokenKind::Text
}

fn membership_key(module: &PythonModule<'_>, name_use: &NameUse) -> usize {
    let not = module.source.tokens[name_use.start - 2].is_name("not");
    name_use.start.saturating_sub(if not { 3 } else { 2 })
}

fn first_name(
    linter: &mut Linter<'_>,
    module: &PythonModule<'_>,
    arguments: &[Argument<'_>],
    access: Access,
) {
    let Some(first) = arguments.first() else { return };
    let Some(key) = module.token(first.start).filter(|key| key.kind == TokenKind::Text) else {
        return;
    };
    let value = arguments.get(1).and_then(|second| module.text(second.start, second.end));
    if first.end == first.start + 1 {
        linter.variable(SettingSource::Python, key.line, key.text, value.as_deref(), access);
    }
}

fn update(linter: &mut Linter<'_>, module: &PythonModule<'_>, argument: Argument<'_>) {
    match argument.keyword {
        Some(name) => {
            let line = module.source.tokens[argument.start].line;
            let value = module.text(argument.start, argument.end);
            linter.variable(SettingSource::Python, line, name, value.as_deref(), Access::Set);
        }
        None => set_entries(linter, module, argument.start, argument.end),
    }
}

/// `dict(os.environ, X="1")`, `patch.dict(os.environ, {..})`
fn copy(linter: &mut Linter<'_>, module: &PythonModule<'_>, arguments: &[Argument<'_>]) {
    let Some((first, rest)) = arguments.split_first() else { return };
    let base = &module.source.tokens[first.start];
    let environment = match base.kind {
        TokenKind::Text => base.text == "os.environ",
        TokenKind::Name => module.use_at(first.start, first.end).path == "os.environ",
        _ => false,
    };
    if environment {
        for argument in rest {
            update(linter, module, *argument);
        }
    }
}

fn set_entries(linter: &mut Linter<'_>, module: &PythonModule<'_>, start: usize, end: usize) {
    for (name, line, from, to) in module.entries(start, end) {
        let value = module.text(from, to);
        linter.variable(SettingSource::Python, line, &name, value.as_deref(), Access::Set);
    }
}
