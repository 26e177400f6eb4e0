//! Finds settings that have no effect or do harm, in scripts and environments.
//!
//! ```text
//! text ─ Language ─┬─ python ──┐ calls, environment, version comparisons, loops
//!                  ├─ shell ───┤ assignments, commands, here-documents (which may be Python)
//!                  ├─ docker ──┤ ENV and ARG; RUN is shell
//!                  ├─ yaml ────┤ env entries; commands and block scalars are shell
//!                  ├─ env file ┤ NAME=value, Environment=
//!                  └─ notebook ┘ cells of Python and shell
//!                        │
//!                        └─> Linter (SettingFacts) ─ allow comments ─> Vec<Finding>
//! ```
//!
//! The language scanners find where settings are used; the texts of the findings are data. Comments
//! and docstrings are not code. Anything that cannot be read with certainty (a value from a
//! variable, a name built at run time) is skipped, except for rules that judge a known part of a
//! value: a false positive is worse than a missed finding.

mod allow;
mod claim;
mod docker;
mod env_file;
mod finding;
mod flag;
mod install;
mod language;
mod linter;
mod notebook;
mod power_claim;
mod python;
mod shell;
mod step_count;
mod typo;
mod value;
mod version;
mod yaml;

pub use finding::LintFinding;
pub use language::Language;

use crate::setting::{SettingFacts, SettingSource};
use linter::{Access, Linter};

/// All findings in a text, in line order; for a notebook, cell by cell.
pub fn lint(facts: &SettingFacts, language: Language, text: &str) -> Vec<LintFinding> {
    // Skip the byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if language == Language::Notebook {
        return notebook::lint(facts, text);
    }
    let mut linter = Linter::new(facts);
    scan(&mut linter, language, text, 1);
    linter.finish()
}

/// The line and description of a syntax error. Such a text was not parsed correctly, so its
/// settings are unknown. `None` means that no error was detected, not that the text is valid.
pub fn syntax_error(language: Language, text: &str) -> Option<(u32, String)> {
    (language == Language::Python).then(|| python::syntax_error(text)).flatten()
}

/// All findings in a process environment, sorted by variable name.
pub fn lint_environment<'a>(
    facts: &SettingFacts,
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<LintFinding> {
    let mut linter = Linter::new(facts);
    let mut variables: Vec<_> = variables.into_iter().collect();
    variables.sort_unstable();
    for (position, (name, value)) in (1..).zip(variables) {
        // Use the position as a line number, to keep the order and separate equal findings.
        linter.variable(SettingSource::Process, position, name, Some(value), Access::Set);
    }
    let mut findings = linter.finish();
    for finding in &mut findings {
        finding.line = None;
    }
    findings
}

/// Scans a text that starts at line `first_line` of the file.
fn scan(linter: &mut Linter<'_>, language: Language, text: &str, first_line: u32) {
    if !linter.enter() {
        return;
    }
    step_count::steps(text.len());
    match language {
        Language::Python => python::scan(linter, text, first_line),
        Language::Shell => shell::scan(linter, text, first_line),
        Language::Dockerfile => docker::scan(linter, text, first_line),
        Language::Yaml => yaml::scan(linter, text, first_line),
        Language::EnvFile => env_file::scan(linter, text, first_line),
        // A notebook embedded in another text has no line numbers, so it is skipped.
        Language::Notebook => {}
    }
    linter.leave();
}

/// A line number from a line count, saturating.
fn line_number(lines: usize) -> u32 {
    u32::try_from(lines).unwrap_or(u32::MAX)
}
