//! Settings in scripts and environments that do nothing, or harm.
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
//! The languages find places; what is said about a place is data. A comment or a docstring is not
//! code. What cannot be read with certainty (a value from a variable, a name built at run time) is
//! left alone: a finding on a good setting is worse than a bad setting that is missed.

mod allow;
mod claim;
mod docker;
mod env_file;
mod finding;
mod language;
mod linter;
mod notebook;
mod power_claim;
mod python;
mod shell;
mod step_count;
mod typo;
mod version;
mod yaml;

pub use finding::Finding;
pub use language::Language;

use crate::setting::{SettingFacts, SettingSource};
use linter::{Access, Linter};

/// Everything that is wrong in a text, in the order of its lines.
pub fn lint(facts: &SettingFacts, language: Language, text: &str) -> Vec<Finding> {
    // A byte order mark is no part of the first word.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if language == Language::Notebook {
        return notebook::lint(facts, text);
    }
    let mut linter = Linter::new(facts);
    scan(&mut linter, language, text, 1);
    linter.finish()
}

/// The line of something that cannot be in such a text, and what it is: then it was not read as what it is, and nobody
/// knows what it sets. None: no such thing was seen, which is all that can be said without a grammar.
pub fn syntax_error(language: Language, text: &str) -> Option<(u32, String)> {
    (language == Language::Python).then(|| python::syntax_error(text)).flatten()
}

/// Everything that is wrong in the environment of a process, in the order of the names.
pub fn lint_environment<'a>(
    facts: &SettingFacts,
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<Finding> {
    let mut linter = Linter::new(facts);
    let mut variables: Vec<_> = variables.into_iter().collect();
    variables.sort_unstable();
    for (position, (name, value)) in (1..).zip(variables) {
        // The position keeps the order and sets equal findings apart; it is no line.
        linter.variable(SettingSource::Process, position, name, Some(value), Access::Set);
    }
    let mut findings = linter.finish();
    for finding in &mut findings {
        finding.line = None;
    }
    findings
}

/// Reads a text whose first line is line `first_line` of the file.
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
        // A notebook inside of another text has no lines of its own.
        Language::Notebook => {}
    }
    linter.leave();
}

/// A line number from a count of lines; a file has no four thousand million of them.
fn line_number(lines: usize) -> u32 {
    u32::try_from(lines).unwrap_or(u32::MAX)
}
