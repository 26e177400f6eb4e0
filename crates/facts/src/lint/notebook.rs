//! Jupyter notebooks: code cells with their own line numbers.

use serde_json::Value;

use super::finding::LintFinding;
use super::linter::{Access, Linter};
use super::{Language, line_number, scan, shell};
use crate::setting::{SettingFacts, SettingSource};

/// All findings in the code cells; none if the text is not a notebook.
pub(super) fn lint(facts: &SettingFacts, text: &str) -> Vec<LintFinding> {
    let Ok(notebook) = serde_json::from_str::<Value>(text) else { return Vec::new() };
    let language = notebook.pointer("/metadata/kernelspec/language").and_then(Value::as_str);
    let cells = notebook.get("cells").and_then(Value::as_array);
    let (Some(cells), "python") = (cells, language.unwrap_or("python")) else { return Vec::new() };
    let code = cells.iter().filter(|cell| cell.get("cell_type").is_some_and(|kind| kind == "code"));
    let mut findings = Vec::new();
    for (number, cell) in (1..).zip(code) {
        let Some(source) = cell.get("source").map(joined) else { continue };
        let mut linter = Linter::new(facts);
        scan_cell(&mut linter, &source);
        findings.extend(
            linter
                .finish()
                .into_iter()
                .map(|finding| LintFinding { cell: Some(number), ..finding }),
        );
    }
    findings
}

/// The text of a cell: a string, or one string per line.
fn joined(source: &Value) -> String {
    match source {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

fn scan_cell(linter: &mut Linter<'_>, source: &str) {
    let first = source.lines().next().unwrap_or_default().trim();
    if let Some(magic) = first.strip_prefix("%%") {
        let language = match magic.split_whitespace().next() {
            Some("bash" | "sh" | "script") => Language::Shell,
            Some("time" | "timeit" | "capture") => Language::Python,
            _ => return,
        };
        let body = source.split_once('\n').map_or("", |(_, body)| body);
        return scan(linter, language, body, 2);
    }
    let mut python = String::with_capacity(source.len());
    for (at, line) in source.split_inclusive('\n').enumerate() {
        let number = line_number(at + 1);
        let trimmed = line.trim();
        if let Some(command) = trimmed.strip_prefix('!') {
            scan(linter, Language::Shell, command, number);
        } else if let Some(magic) = trimmed.strip_prefix('%') {
            set_by_magic(linter, magic, number);
        } else {
            python.push_str(line);
            continue;
        }
        // Keep an empty line so that later line numbers stay correct.
        python.push('\n');
    }
    scan(linter, Language::Python, &python, 1);
}

/// `%env NAME=value`, `%env NAME value`, `%set_env ..`
fn set_by_magic(linter: &mut Linter<'_>, magic: &str, line: u32) {
    let Some(rest) = magic.strip_prefix("env ").or_else(|| magic.strip_prefix("set_env ")) else {
        return;
    };
    let rest = rest.trim();
    let pair = shell::assignment(rest).or_else(|| rest.split_once(char::is_whitespace));
    if let Some((name, value)) = pair.filter(|(name, _)| shell::is_variable(name)) {
        linter.variable(SettingSource::Python, line, name, Some(value.trim()), Access::Set);
    }
}
