//! Dockerfiles.

use super::linter::{Access, Linter};
use super::{Language, scan as scan_text, shell, step_count};
use crate::setting::SettingSource;

/// Scans a Dockerfile that starts at line `first_line`.
pub(super) fn scan(linter: &mut Linter<'_>, text: &str, first_line: u32) {
    let mut at = 0;
    let mut line = first_line;
    while at < text.len() {
        let length = instruction_length(&text[at..]);
        let instruction = &text[at..at + length];
        read(linter, instruction, line);
        line = line.saturating_add(shell::lines_before(instruction, instruction.len()));
        at += length;
    }
}

/// Length of an instruction, including continuation lines, comments between them and
/// here-documents.
fn instruction_length(text: &str) -> usize {
    let mut length = 0;
    let mut continued = false;
    let mut heredoc: Option<&str> = None;
    for physical in text.split_inclusive('\n') {
        length += physical.len();
        step_count::steps(physical.len());
        let line = physical.trim();
        if let Some(delimiter) = heredoc {
            if line == delimiter {
                return length;
            }
            continue;
        }
        if continued && (line.starts_with('#') || line.is_empty()) {
            continue;
        }
        heredoc = heredoc_delimiter(line);
        continued = line.ends_with('\\') && !line.starts_with('#');
        if !continued && heredoc.is_none() {
            return length;
        }
    }
    length
}

/// `RUN <<EOF`, `COPY <<"EOF" /file`. A shell `<<` inside RUN looks the same.
fn heredoc_delimiter(line: &str) -> Option<&str> {
    let instruction = line.split_whitespace().next()?;
    if !["RUN", "COPY", "ADD"].iter().any(|name| instruction.eq_ignore_ascii_case(name)) {
        return None;
    }
    let (before, after) = line.split_once("<<")?;
    let after = after.strip_prefix('-').unwrap_or(after);
    let word = after.trim_start_matches(['"', '\'']);
    let end = word.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(word.len());
    let here_string = after.starts_with('<') || before.ends_with('<');
    (end > 0 && !here_string).then(|| &word[..end])
}

fn read(linter: &mut Linter<'_>, instruction: &str, line: u32) {
    let trimmed = instruction.trim_start();
    let line =
        line.saturating_add(shell::lines_before(instruction, instruction.len() - trimmed.len()));
    if trimmed.starts_with('#') {
        linter.comment(line, trimmed.trim_end());
        return;
    }
    let (keyword, rest) = keyword_and_rest(trimmed);
    // ONBUILD cannot be nested, so remove it only once.
    let (keyword, rest) = if keyword.eq_ignore_ascii_case("ONBUILD") {
        keyword_and_rest(rest.trim_start())
    } else {
        (keyword, rest)
    };
    match keyword.to_ascii_uppercase().as_str() {
        "ENV" => environment(linter, rest, line),
        "ARG" => {
            for (name, value, line) in pairs(rest, line) {
                linter.variable(SettingSource::Image, line, &name, value.as_deref(), Access::Set);
            }
        }
        "RUN" | "CMD" | "ENTRYPOINT" | "HEALTHCHECK" => command(linter, rest, line),
        _ => {}
    }
}

fn keyword_and_rest(instruction: &str) -> (&str, &str) {
    instruction.split_at(instruction.find(char::is_whitespace).unwrap_or(instruction.len()))
}

/// `ENV A=b C=d`, or the old `ENV A b c`.
fn environment(linter: &mut Linter<'_>, rest: &str, line: u32) {
    let pairs = pairs(rest, line);
    for (name, value, line) in &pairs {
        linter.variable(SettingSource::Image, *line, name, value.as_deref(), Access::Set);
    }
    if pairs.is_empty()
        && let Some((name, value)) = rest.trim().split_once(char::is_whitespace)
        && shell::is_variable(name)
    {
        let value = Some(value.trim()).filter(|value| !value.contains('$'));
        linter.variable(SettingSource::Image, line, name, value, Access::Set);
    }
}

fn pairs(rest: &str, line: u32) -> Vec<(String, Option<String>, u32)> {
    shell::words(rest, line)
        .into_iter()
        .filter_map(|(word, line, dynamic)| {
            let (name, value) = shell::assignment(&word)?;
            let value = (!dynamic).then(|| value.to_owned());
            Some((name.to_owned(), value, line))
        })
        .collect()
}

fn command(linter: &mut Linter<'_>, rest: &str, line: u32) {
    let start = rest.len() - rest.trim_start().len();
    let line = line.saturating_add(shell::lines_before(rest, start));
    let rest = rest.trim_start();
    if let Some(words) = exec_form(rest) {
        let quoted: Vec<String> =
            words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
        return scan_text(linter, Language::Shell, &quoted.join(" "), line);
    }
    // `RUN --mount=.. <<EOF`: without a program the here-document itself is the script.
    let first = rest.lines().next().unwrap_or_default();
    let flags = |text: &str| {
        text.split_whitespace().all(|word| word.starts_with("--") || word.starts_with("<<"))
    };
    if heredoc_delimiter(&format!("RUN {first}")).is_some() && flags(first) {
        if let Some((_, body)) = rest.split_once('\n') {
            let language = Language::by_content(body.as_bytes()).filter(|_| body.starts_with("#!"));
            scan_text(linter, language.unwrap_or(Language::Shell), body, line.saturating_add(1));
        }
        return;
    }
    scan_text(linter, Language::Shell, rest, line);
}

/// `["nvidia-smi", "-q"]`
pub(super) fn exec_form(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    text.starts_with('[').then(|| serde_json::from_str::<Vec<String>>(text).ok())?
}
