//! Commands that Python code runs.

use super::expression::{NameUse, PythonModule};
use super::token::{LogicalLine, TokenKind};
use crate::lint::linter::Linter;
use crate::lint::{Language, scan as scan_text};

/// Functions that run their first argument in a shell.
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

/// Scans a string passed to a shell function.
pub(super) fn scan(linter: &mut Linter<'_>, module: &PythonModule<'_>, name_use: &NameUse) {
    if !SHELLS.contains(&name_use.path.as_str()) || !module.is(name_use.end, "(") {
        return;
    }
    if let Some(token) = module.token(name_use.end + 1)
        && matches!(token.kind, TokenKind::Text | TokenKind::Template)
    {
        scan_text(linter, Language::Shell, token.text, token.line);
    }
}

/// Scans any string or list that starts with `nvidia-smi`.
pub(super) fn line(linter: &mut Linter<'_>, module: &PythonModule<'_>, line: LogicalLine) {
    for at in line.start..line.end {
        let token = &module.source.tokens[at];
        if token.is("[") {
            list(linter, module, at);
        } else if matches!(token.kind, TokenKind::Text | TokenKind::Template)
            && token.text.starts_with("nvidia-smi ")
            && !is_shell_argument(module, at)
        {
            scan_text(linter, Language::Shell, token.text, token.line);
        }
    }
}

/// Whether [`scan`] already handled the string at `at`.
fn is_shell_argument(module: &PythonModule<'_>, at: usize) -> bool {
    if at < 2 || !module.is(at - 1, "(") {
        return false;
    }
    let mut start = at - 2;
    while start >= 2 && module.is(start - 1, ".") {
        start -= 2;
    }
    let name_use = module.use_at(start, at);
    SHELLS.contains(&name_use.path.as_str())
}

/// `["nvidia-smi", "--query-gpu=..", ..]`
fn list(linter: &mut Linter<'_>, module: &PythonModule<'_>, open: usize) {
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
            let is_literal = item.end == item.start + 1 && token.kind == TokenKind::Text;
            (token.line, if is_literal { token.text } else { "$" })
        })
        .collect();
    // Report the line of the option that can be wrong.
    let texts: Vec<&str> = words.iter().map(|(_, text)| *text).collect();
    let option = words.iter().find(|(_, text)| text.starts_with("--format") || *text == "-pl");
    let line = option.or(words.first()).map_or(0, |(line, _)| *line);
    linter.command(line, &texts);
}
