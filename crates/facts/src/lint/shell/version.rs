//! Versions compared by `bc`, `awk` and `[[ < ]]`.

use std::cell::OnceCell;

use super::script::{Pipeline, ShellCommand, Word};
use crate::lint::claim::{self, Mention};
use crate::lint::linter::Linter;
use crate::lint::step_count;
use crate::lint::version::{Meaning, is_version_text, meaning};
use crate::setting::CodePattern;

pub(super) fn scan(linter: &mut Linter<'_>, pipeline: &Pipeline) {
    claims(linter, pipeline);
    // Computed once per pipeline, for all its `bc` and `awk` commands.
    let compared = OnceCell::new();
    let mentions_version = OnceCell::new();
    for command in &pipeline.commands {
        let Some(first) = command.words.first() else { continue };
        let program = first.text.rsplit('/').next().unwrap_or(&first.text);
        match program {
            "bc" => {
                if let Some(word) = compared.get_or_init(|| compared_word(pipeline)) {
                    linter.report_pattern(CodePattern::VersionAsFloat, word.line);
                }
            }
            "awk" | "gawk" | "mawk" => {
                let mentions_version = *mentions_version.get_or_init(|| names_a_version(pipeline));
                if let Some(word) = awk_comparison(command).filter(|_| mentions_version) {
                    linter.report_pattern(CodePattern::VersionAsFloat, word.line);
                }
            }
            _ => {
                if let Some(word) = test_comparison(command) {
                    linter.report_pattern(CodePattern::VersionAsText, word.line);
                }
            }
        }
    }
}

/// Checks the versions that a pipeline claims to belong together, as in a message.
fn claims(linter: &mut Linter<'_>, pipeline: &Pipeline) {
    let words = pipeline.commands.iter().flat_map(|command| &command.words);
    let mentions: Vec<Mention<'_>> = words
        .flat_map(|word| {
            let all = claim::versions(&word.text);
            all.map(|version| Mention { version, line: word.line, value_of_last: false })
        })
        .collect();
    claim::check_claims(linter, &mentions);
}

/// `echo "$CUDA_VERSION < 12.8" | bc`, `bc <<< "..."`
fn compared_word(pipeline: &Pipeline) -> Option<&Word> {
    let words = pipeline.commands.iter().flat_map(|command| &command.words);
    words.into_iter().find(|word| has_order(&word.text) && names_version(&word.text))
}

/// `awk '$1 < 525.60'`; another word has to identify the column as a version.
fn awk_comparison(command: &ShellCommand) -> Option<&Word> {
    let mut words = command.words.iter().skip(1);
    words.find(|word| has_order(&word.text) && has_number(&word.text))
}

fn names_a_version(pipeline: &Pipeline) -> bool {
    let mut words = pipeline.commands.iter().flat_map(|command| &command.words);
    words.any(|word| word.text == "nvcc" || names_version(&word.text))
}

/// `[[ $CUDA_VERSION < 12.8 ]]`, `[ "$CUDA_VERSION" \< "12.8" ]`
fn test_comparison(command: &ShellCommand) -> Option<&Word> {
    let start = command.words.iter().position(|word| matches!(word.text.as_str(), "[[" | "["))?;
    command.words[start..].windows(3).find_map(|three| {
        let [left, operator, right] = three else { return None };
        let order = matches!(operator.text.as_str(), "<" | ">");
        let one = |version: &Word, number: &Word| {
            version.dynamic && names_version(&version.text) && is_version_text(&number.text)
        };
        (order && (one(left, right) || one(right, left))).then_some(operator)
    })
}

fn has_order(text: &str) -> bool {
    step_count::steps(text.len());
    text.contains(['<', '>'])
}

fn has_number(text: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).any(is_version_text)
}

/// Whether a word of the text names a version.
fn names_version(text: &str) -> bool {
    step_count::steps(text.len());
    let numbered = has_number(text) && has_order(text);
    let mut words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.any(|word| match meaning(word) {
        Meaning::Strong => true,
        Meaning::Weak => numbered,
        Meaning::None => false,
    })
}
