//! Shell scripts and command lines.

mod reader;
mod script;
mod version;
mod word;

use std::collections::BTreeSet;

use super::install::check_install;
use super::linter::{Access, Linter};
use super::{Language, line_number, scan as scan_text};
use crate::setting::SettingSource;
use script::{Pipeline, Script, ShellCommand, Word};

/// Reserved words before a command.
const RESERVED: [&str; 12] =
    ["if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "exec", "command"];

/// Programs that run the command after their own options.
const PREFIXES: [&str; 7] = ["sudo", "nohup", "env", "numactl", "timeout", "nice", "stdbuf"];

/// Commands that export `NAME=value` words.
const EXPORTS: [&str; 5] = ["export", "declare", "typeset", "readonly", "local"];

/// Programs and their options for `NAME=value`.
const PASSES: [(&str, &[&str]); 13] = [
    ("docker", &["-e", "--env"]),
    ("podman", &["-e", "--env"]),
    ("nerdctl", &["-e", "--env"]),
    ("kubectl", &["--env"]),
    ("singularity", &["--env"]),
    ("apptainer", &["--env"]),
    ("mpirun", &["-x"]),
    ("mpiexec", &["-x", "-genv"]),
    ("orterun", &["-x"]),
    ("prterun", &["-x"]),
    ("srun", &["--export"]),
    ("sbatch", &["--export"]),
    ("salloc", &["--export"]),
];

/// Programs whose option takes a comma-separated list.
const LISTS: [&str; 5] = ["srun", "sbatch", "salloc", "singularity", "apptainer"];

/// Scans a script that starts at line `first_line`.
pub(super) fn scan(linter: &mut Linter<'_>, text: &str, first_line: u32) {
    let script = reader::read(text, first_line);
    for (line, comment) in &script.comments {
        linter.comment(*line, comment);
        if let Some(options) = comment.strip_prefix("#SBATCH") {
            batch_options(linter, options, *line);
        }
    }
    let outside = linter.guarded;
    let enclosing = std::mem::replace(&mut linter.programs, programs(&script));
    let mut conditions = 0_u32;
    for pipeline in &script.pipelines {
        for command in &pipeline.commands {
            match command.words.first().map_or("", |word| word.text.as_str()) {
                "if" | "case" => conditions += 1,
                "fi" | "esac" => conditions = conditions.saturating_sub(1),
                _ => {}
            }
            linter.guarded = outside || conditions > 0;
            scan_command(linter, command);
        }
        version::scan(linter, pipeline);
        heredocs(linter, pipeline);
    }
    linter.guarded = outside;
    linter.programs = enclosing;
}

/// The names of the programs that a script runs.
fn programs(script: &Script) -> BTreeSet<String> {
    let commands = script.pipelines.iter().flat_map(|pipeline| &pipeline.commands);
    let program = |command: &ShellCommand| {
        let mut words = command.words.iter().map(|word| word.text.as_str());
        let own = words.find(|word| {
            let name = word.rsplit('/').next().unwrap_or(word);
            !RESERVED.contains(word) && !PREFIXES.contains(&name) && assignment(word).is_none()
        })?;
        Some(own.rsplit('/').next().unwrap_or(own).to_owned())
    };
    commands.filter_map(program).collect()
}

/// The words of a line in another language with shell quoting: `ENV A=b C="d e"`.
pub(super) fn words(text: &str, first_line: u32) -> Vec<(String, u32, bool)> {
    let script = reader::read(text, first_line);
    let commands = script.pipelines.into_iter().flat_map(|pipeline| pipeline.commands);
    commands
        .flat_map(|command| command.words)
        .map(|word| (word.text, word.line, word.dynamic))
        .collect()
}

/// Splits `NAME=value`.
pub(super) fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    // `NAME+=value` appends.
    let name = name.strip_suffix('+').unwrap_or(name);
    is_variable(name).then_some((name, value))
}

/// Whether a word is a valid variable name.
pub(super) fn is_variable(name: &str) -> bool {
    name.bytes().next().is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
        && name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric())
}

fn batch_options(linter: &mut Linter<'_>, options: &str, line: u32) {
    for option in options.split_whitespace() {
        if let Some(list) = option.strip_prefix("--export=") {
            exported(linter, list, line);
        }
    }
}

/// `ALL,A=b,C=d`
fn exported(linter: &mut Linter<'_>, list: &str, line: u32) {
    for (name, value) in list.split(',').filter_map(assignment) {
        linter.variable(SettingSource::Shell, line, name, static_value(value), Access::Set);
    }
}

fn static_value(value: &str) -> Option<&str> {
    (!value.contains(['$', '`'])).then_some(value)
}

fn set(linter: &mut Linter<'_>, word: &Word) -> bool {
    let Some((name, value)) = assignment(&word.text) else { return false };
    if word.dynamic {
        linter.partial_value(SettingSource::Shell, word.line, name, value);
    }
    let value = (!word.dynamic).then_some(value);
    linter.variable(SettingSource::Shell, word.line, name, value, Access::Set);
    true
}

fn scan_command(linter: &mut Linter<'_>, command: &ShellCommand) {
    let words = strip_prefixes(linter, &command.words);
    let Some(first) = words.first() else { return };
    let program = first.text.rsplit('/').next().unwrap_or(&first.text);
    match program {
        "setenv" => {
            if let [_, name, value] = words {
                let value = (!value.dynamic).then_some(value.text.as_str());
                linter.variable(SettingSource::Shell, name.line, &name.text, value, Access::Set);
            }
        }
        _ if EXPORTS.contains(&program) => {
            for word in &words[1..] {
                set(linter, word);
            }
        }
        _ => {}
    }
    passed_variables(linter, program, words);
    env_after_launcher(linter, program, words);
    inner_code(linter, program, words);
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    linter.command(line_of_option(words), &texts);
    let lines = words.iter().map(|word| word.line);
    check_install(linter, &texts.iter().copied().zip(lines).collect::<Vec<_>>());
}

/// The command without reserved words, assignments and prefixes such as `sudo -E env A=b`.
fn strip_prefixes<'w>(linter: &mut Linter<'_>, words: &'w [Word]) -> &'w [Word] {
    let mut options = false;
    let own = words.iter().position(|word| {
        let text = word.text.as_str();
        if PREFIXES.contains(&text.rsplit('/').next().unwrap_or(text)) {
            options = true;
            return false;
        }
        let number = || text.starts_with(|c: char| c.is_ascii_digit());
        let option = options && (text.starts_with('-') || number());
        !(RESERVED.contains(&text) || option || set(linter, word))
    });
    &words[own.unwrap_or(words.len())..]
}

/// Line of the option that can be wrong, else of the command.
fn line_of_option(words: &[Word]) -> u32 {
    let option = words.iter().find(|word| word.text.starts_with("--format") || word.text == "-pl");
    option.or(words.first()).map_or(0, |word| word.line)
}

/// `docker run -e A=b`, `mpirun -x A=b`, `srun --export=ALL,A=b`
fn passed_variables(linter: &mut Linter<'_>, program: &str, words: &[Word]) {
    let Some((_, options)) = PASSES.iter().find(|(name, _)| *name == program) else { return };
    for (at, word) in words.iter().enumerate() {
        for option in *options {
            let value = if word.text == *option {
                words.get(at + 1).map(|next| (next.text.as_str(), next.line))
            } else {
                let joined = word.text.strip_prefix(option).and_then(|rest| rest.strip_prefix('='));
                joined.map(|value| (value, word.line))
            };
            let Some((value, line)) = value else { continue };
            if LISTS.contains(&program) {
                exported(linter, value, line);
            } else if let Some((name, value)) = assignment(value) {
                linter.variable(SettingSource::Shell, line, name, static_value(value), Access::Set);
            }
        }
    }
}

/// `srun --export=ALL env A=b python`, `docker exec NAME env A=b python`
fn env_after_launcher(linter: &mut Linter<'_>, program: &str, words: &[Word]) {
    if !PASSES.iter().any(|(name, _)| *name == program) {
        return;
    }
    let is_env = |word: &Word| word.text.rsplit('/').next() == Some("env");
    let Some(at) = words.iter().skip(1).position(is_env) else { return };
    let options = |word: &&Word| word.text.starts_with('-');
    for word in words[at + 2..].iter().skip_while(options) {
        if !set(linter, word) {
            return;
        }
    }
}

/// The language that a program reads from stdin or `-c`.
fn language_of(program: &str) -> Option<Language> {
    match program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
        "python" | "pypy" => Some(Language::Python),
        "bash" | "sh" | "zsh" | "dash" | "ssh" => Some(Language::Shell),
        _ => None,
    }
}

/// `python -c "..."`, `bash -lc "..."`
fn inner_code(linter: &mut Linter<'_>, program: &str, words: &[Word]) {
    // The program may be an argument of a launcher: `docker run image python -c ..`,
    // `srun bash -c ..`.
    let position = std::iter::once(program)
        .chain(words.iter().skip(1).map(|word| word.text.as_str()))
        .position(|word| language_of(word.rsplit('/').next().unwrap_or(word)).is_some());
    let Some(at) = position else { return };
    let name = words[at].text.rsplit('/').next().unwrap_or_default();
    let Some(language) = language_of(name) else { return };
    let flag = words[at + 1..].iter().position(|word| {
        word.text.starts_with('-') && !word.text.starts_with("--") && word.text.ends_with('c')
    });
    if let Some(code) = flag.and_then(|flag| words.get(at + 1 + flag + 1)) {
        scan_text(linter, language, &code.text, code.line);
    }
}

fn heredocs(linter: &mut Linter<'_>, pipeline: &Pipeline) {
    if pipeline.heredocs.is_empty() {
        return;
    }
    let by_program = pipeline.commands.iter().rev().find_map(|command| {
        command.words.iter().find_map(|word| language_of(word.text.rsplit('/').next()?))
    });
    let by_target = pipeline.commands.iter().find_map(|command| {
        let tee = command.words.first().is_some_and(|word| word.text.ends_with("tee"));
        let file = command.words.last().filter(|_| tee).map(|word| word.text.as_str());
        Language::by_name(command.target.as_deref().or(file)?)
    });
    for (text, line) in &pipeline.heredocs {
        let by_content =
            || Language::by_content(text.as_bytes()).filter(|_| text.starts_with("#!"));
        if let Some(language) = by_program.or(by_target).or_else(by_content) {
            scan_text(linter, language, text, *line);
        }
    }
}

/// Number of newlines in a text before `at`.
pub(super) fn lines_before(text: &str, at: usize) -> u32 {
    line_number(memchr::memchr_iter(b'\n', &text.as_bytes()[..at]).count())
}
