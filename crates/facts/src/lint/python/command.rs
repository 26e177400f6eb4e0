//! Commands that Python code runs.

use super::expression::{Module, NameUse};
use super::token::{LogicalLine, TokenKind};
use crate::lint::linter::Linter;
use crate::lint::{Language, scan as scan_text};

/// Functions whose first argument is a line for the shell.
const SHELLS: [&str; 9] = [
    "os.system",
    "os.popen",
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.Popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
];

/// A text given to a function that runs it.
pub(super) fn scan(linter: &mut Linter<'_>, module: &Module<'_>, found: &NameUse) {
    if !SHELLS.contains(&found.path.as_str()) || !module.is(found.end, "(") {
        return;
    }
    if let Some(token) = module.token(found.end + 1)
        && matches!(token.kind, TokenKind::Text | TokenKind::Template)
    {
        scan_text(linter, Language::Shell, token.text, token.line);
    }
}

/// `nvidia-smi` in a text or a list, wherever it stands.
pub(super) fn line(linter: &mut Linter<'_>, module: &Module<'_>, line: LogicalLine) {
    for at in line.start..line.end {
        let token = &module.source.tokens[at];
        if token.is("[") {
            list(linter, module, at);
        } else if matches!(token.kind, TokenKind::Text | TokenKind::Template)
            && token.text.starts_with("nvidia-smi ")
            && !given_to_shell(module, at)
        {
            scan_text(linter, Language::Shell, token.text, token.line);
        }
    }
}

/// Whether [`scan`] has seen the text at `at`.
fn given_to_shell(module: &Module<'_>, at: usize) -> bool {
    if at < 2 || !module.is(at - 1, "(") {
        return false;
    }
    let mut start = at - 2;
    while start >= 2 && module.is(start - 1, ".") {
        start -= 2;
    }
    let found = module.use_at(start, at);
    SHELLS.contains(&found.path.as_str())
}

/// `["nvidia-smi", "--query-gpu=..", ..]`
fn list(linter: &mut Linter<'_>, module: &Module<'_>, open: usize) {
    let program = module.token(open + 1);
    if !program
        .is_some_and(|token| token.kind == TokenKind::Text && token.text.ends_with("nvidia-smi"))
    {
        return;
    }
    let words: Vec<(u32, &str)> = module
        .arguments(open)
        .iter()
        .map(|item| {
            let token = &module.source.tokens[item.start];
            let known = item.end == item.start + 1 && token.kind == TokenKind::Text;
            (token.line, if known { token.text } else { "$" })
        })
        .collect();
    // The place is the option that is wrong, so the command is shown up to each line of it.
    let texts: Vec<&str> = words.iter().map(|(_, text)| *text).collect();
    let option = words.iter().find(|(_, text)| text.starts_with("--format") || *text == "-pl");
    let line = option.or(words.first()).map_or(0, |(line, _)| *line);
    linter.command(line, &texts);
}
