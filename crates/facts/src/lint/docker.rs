//! Dockerfiles.

use std::borrow::Cow;

use super::linter::{Access, BuildPart, Linter};
use super::{Language, line_number, scan as scan_text, shell, step_count};
use crate::setting::SettingSource;

/// Scans a Dockerfile that starts at line `first_line`.
pub(super) fn scan(linter: &mut Linter<'_>, text: &str, first_line: u32) {
    let instructions = instructions(text, first_line);
    let stages = Stages::of(&instructions);
    let outside = linter.build;
    for (at, (instruction, line)) in instructions.iter().enumerate() {
        linter.build = if stages.is_final(at) { BuildPart::None } else { BuildPart::Stage };
        read(linter, instruction, *line);
    }
    linter.build = outside;
}

/// The instructions with their lines.
fn instructions(text: &str, first_line: u32) -> Vec<(&str, u32)> {
    let mut instructions = Vec::new();
    let (mut at, mut line) = (0, first_line);
    while at < text.len() {
        let length = instruction_length(&text[at..]);
        let instruction = &text[at..at + length];
        instructions.push((instruction, line));
        line = line.saturating_add(shell::lines_before(instruction, instruction.len()));
        at += length;
    }
    instructions
}

/// A stage: `FROM base AS name`.
struct BuildStage<'t> {
    /// Index of its first instruction.
    start: usize,
    base: &'t str,
    name: Option<&'t str>,
    /// Whether its files are in the final image.
    is_final: bool,
}

/// The stages of a Dockerfile. The last stage, and the stages that it is based on, make the image.
struct Stages<'t>(Vec<BuildStage<'t>>);

impl<'t> Stages<'t> {
    fn of(instructions: &[(&'t str, u32)]) -> Self {
        let mut stages: Vec<_> = instructions
            .iter()
            .enumerate()
            .filter_map(|(start, (instruction, _))| {
                let mut words = instruction.split_whitespace();
                words.next().filter(|word| word.eq_ignore_ascii_case("FROM"))?;
                let mut words = words.filter(|word| !word.starts_with("--"));
                let base = words.next()?;
                let name = words.next().filter(|word| word.eq_ignore_ascii_case("AS"));
                let name = name.and_then(|_| words.next());
                Some(BuildStage { start, base, name, is_final: false })
            })
            .collect();
        let mut last = stages.len().checked_sub(1);
        while let Some(at) = last {
            step_count::step();
            stages[at].is_final = true;
            let base = stages[at].base;
            let is_base = |stage: &BuildStage<'_>| {
                stage.name.is_some_and(|name| name.eq_ignore_ascii_case(base))
            };
            last = stages[..at].iter().rposition(is_base);
        }
        Self(stages)
    }

    /// Whether an instruction belongs to the final image. Instructions before the first stage may
    /// belong to it.
    fn is_final(&self, instruction: usize) -> bool {
        let next = self.0.partition_point(|stage| stage.start <= instruction);
        next.checked_sub(1).is_none_or(|at| self.0[at].is_final)
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
            for (name, value, line, dynamic) in pairs(&shell::words(rest, line)) {
                set(linter, line, name, value, dynamic);
            }
        }
        "RUN" => {
            let stage = linter.build;
            if stage == BuildPart::None {
                linter.build = BuildPart::Image;
            }
            command(linter, rest, line);
            linter.build = stage;
        }
        "CMD" | "ENTRYPOINT" | "HEALTHCHECK" => command(linter, rest, line),
        _ => {}
    }
}

fn keyword_and_rest(instruction: &str) -> (&str, &str) {
    instruction.split_at(instruction.find(char::is_whitespace).unwrap_or(instruction.len()))
}

/// `ENV A=b C=d`, or the old `ENV A b c`.
fn environment(linter: &mut Linter<'_>, rest: &str, line: u32) {
    let words = shell::words(rest, line);
    let pairs = pairs(&words);
    for (name, value, line, dynamic) in &pairs {
        set(linter, *line, name, value, *dynamic);
    }
    if pairs.is_empty()
        && let Some((name, value)) = rest.trim().split_once(char::is_whitespace)
        && shell::is_variable(name)
    {
        set(linter, line, name, value.trim(), value.contains('$'));
    }
}

fn set(linter: &mut Linter<'_>, line: u32, name: &str, value: &str, dynamic: bool) {
    if dynamic {
        linter.partial_value(SettingSource::Image, line, name, value);
    }
    let value = (!dynamic).then_some(value);
    linter.variable(SettingSource::Image, line, name, value, Access::Set);
}

/// The assignments among words: name, value, line, and whether the value is known at run time only.
fn pairs(words: &[(String, u32, bool)]) -> Vec<(&str, &str, u32, bool)> {
    words
        .iter()
        .filter_map(|(word, line, dynamic)| {
            let (name, value) = shell::assignment(word)?;
            Some((name, value, *line, *dynamic))
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
    let script = without_comments(linter, rest, line);
    scan_text(linter, Language::Shell, &script, line);
}

/// A command without the comment lines inside it. The result has the same number of lines.
fn without_comments<'t>(linter: &mut Linter<'_>, command: &'t str, line: u32) -> Cow<'t, str> {
    let is_comment = |line: &str| line.trim_start().starts_with('#');
    if command.contains("<<") || !command.lines().skip(1).any(is_comment) {
        return Cow::Borrowed(command);
    }
    let mut script = String::with_capacity(command.len());
    for (at, text) in command.lines().enumerate() {
        if at > 0 && is_comment(text) {
            linter.comment(line.saturating_add(line_number(at)), text.trim());
            script.push('\\');
        } else {
            script.push_str(text);
        }
        script.push('\n');
    }
    Cow::Owned(script)
}

/// `["nvidia-smi", "-q"]`
pub(super) fn exec_form(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    text.starts_with('[').then(|| serde_json::from_str::<Vec<String>>(text).ok())?
}
