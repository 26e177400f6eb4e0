//! Pairs of versions wrongly claimed to belong together.

use super::linter::{Linter, MessageArgs};
use super::step_count;

/// A version that a statement mentions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mention<'t> {
    pub(super) version: &'t str,
    pub(super) line: u32,
    /// Whether this version is the value of the preceding one: `"12.8": "550.54.15"`.
    pub(super) value_of_last: bool,
}

/// The versions in a text: digits separated by at least one dot.
pub(super) fn versions(text: &str) -> impl Iterator<Item = &str> {
    step_count::steps(text.len());
    text.split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .map(|word| word.trim_matches('.'))
        .filter(|word| super::version::is_version_text(word))
}

/// Checks the versions that one statement mentions.
///
/// A statement makes a rule's claim if it mentions both versions of the rule and no other version.
/// In a table with more versions, one of the two must be the value of the other.
pub(super) fn check_claims(linter: &mut Linter<'_>, mentions: &[Mention<'_>]) {
    let facts = linter.facts;
    for rule in &facts.claim {
        let only = mentions
            .iter()
            .all(|mention| mention.version == rule.of || mention.version == rule.tied_to);
        let has = |version: &str| mentions.iter().find(|mention| mention.version == version);
        let only_pair = has(&rule.of).and(has(&rule.tied_to)).filter(|_| only);
        let in_table = || {
            mentions.windows(2).find_map(|pair| {
                let tied = pair[0].version == rule.of && pair[1].version == rule.tied_to;
                (tied && pair[1].value_of_last).then_some(&pair[1])
            })
        };
        if let Some(mention) = only_pair.or_else(in_table) {
            let args = MessageArgs { name: &rule.of, value: &rule.tied_to, near: "" };
            linter.report(&rule.verdict, mention.line, args);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_dots_between_digits() {
        let found: Vec<_> =
            versions("CUDA 12.8 needs driver >= 550.54.15. Not 12 or v1.").collect();
        assert_eq!(found, ["12.8", "550.54.15"]);
    }
}
