//! Versions compared by `bc`, `awk` and `[[ < ]]`.

use super::word::{Command, Pipeline, Word};
use crate::lint::claim::{self, Mention};
use crate::lint::judge::Judge;
use crate::lint::version::{Meaning, is_version_text, meaning};
use crate::setting::Shape;

pub(super) fn scan(judge: &mut Judge<'_>, pipeline: &Pipeline) {
    claims(judge, pipeline);
    for command in &pipeline.commands {
        let Some(first) = command.words.first() else { continue };
        let program = first.text.rsplit('/').next().unwrap_or(&first.text);
        match program {
            "bc" => {
                if let Some(word) = compared_word(pipeline) {
                    judge.shape(Shape::VersionAsFloat, word.line);
                }
            }
            "awk" | "gawk" | "mawk" => {
                if let Some(word) = awk_comparison(pipeline, command) {
                    judge.shape(Shape::VersionAsFloat, word.line);
                }
            }
            _ => {
                if let Some(word) = test_comparison(command) {
                    judge.shape(Shape::VersionAsText, word.line);
                }
            }
        }
    }
}

/// The versions that a pipeline ties together, as in a message.
fn claims(judge: &mut Judge<'_>, pipeline: &Pipeline) {
    let words = pipeline.commands.iter().flat_map(|command| &command.words);
    let mentions: Vec<Mention<'_>> = words
        .flat_map(|word| {
            let all = claim::versions(&word.text);
            all.map(|version| Mention { version, line: word.line, value_of_last: false })
        })
        .collect();
    claim::judge(judge, &mentions);
}

/// `echo "$CUDA_VERSION < 12.8" | bc`, `bc <<< "..."`
fn compared_word(pipeline: &Pipeline) -> Option<&Word> {
    let words = pipeline.commands.iter().flat_map(|command| &command.words);
    words.into_iter().find(|word| has_order(&word.text) && names_version(&word.text))
}

/// `awk '$1 < 525.60'` where the line says that the column is a version.
fn awk_comparison<'p>(pipeline: &'p Pipeline, command: &'p Command) -> Option<&'p Word> {
    let program = command
        .words
        .iter()
        .skip(1)
        .find(|word| has_order(&word.text) && has_number(&word.text))?;
    let mut words = pipeline.commands.iter().flat_map(|command| &command.words);
    let named = words.any(|word| word.text == "nvcc" || names_version(&word.text));
    named.then_some(program)
}

/// `[[ $CUDA_VERSION < 12.8 ]]`, `[ "$CUDA_VERSION" \< "12.8" ]`
fn test_comparison(command: &Command) -> Option<&Word> {
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
    text.contains(['<', '>'])
}

fn has_number(text: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.')).any(is_version_text)
}

/// Whether a word of the text is a version by its name.
fn names_version(text: &str) -> bool {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| {
        let numbered = has_number(text) && has_order(text);
        match meaning(word) {
            Meaning::Strong => true,
            Meaning::Weak => numbered,
            Meaning::None => false,
        }
    })
}
