//! Commands, claims, and patterns that code finds.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// An option of a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandRule {
    /// The program, without its folder.
    pub program: String,
    /// The option whose value is a list with commas, such as `--format`.
    pub option: String,
    /// The words that it takes.
    pub words: Vec<String>,
    /// What to say of another word.
    pub verdict: LintVerdict,
}

/// Two versions that people tie together and that do not belong together.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRule {
    /// Of what the claim is, such as the CUDA version.
    pub of: String,
    /// What is wrongly said to belong to it, such as a driver version.
    pub tied_to: String,
    /// What to say; `{name}` is `of` and `{value}` is `tied_to`.
    pub verdict: LintVerdict,
}

/// A power limit that a comment calls the maximum of a card that has another.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerClaim {
    /// The words in a comment that make the claim: the card, and that it is the most.
    pub words: Vec<String>,
    /// The limits for which it is true.
    pub true_of: Vec<PowerLimit>,
    /// What to say of another; `{value}` is the limit.
    pub verdict: LintVerdict,
}

/// A power limit that a card has.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerLimit {
    /// The limit.
    pub limit_w: f64,
    /// The forms of the card, one of which the comment has to name; empty: none has to be named.
    #[serde(default)]
    pub forms: Vec<String>,
}

/// What to say where code finds a pattern.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Which pattern.
    pub shape: CodePattern,
    /// What to say.
    pub verdict: LintVerdict,
}

/// A pattern that code finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodePattern {
    /// A version turned into a floating-point number.
    VersionAsFloat,
    /// Versions compared letter by letter.
    VersionAsText,
    /// A training loop that goes on without the batch that ran out of memory.
    OomDropsBatch,
    /// The allocator's cache emptied in every step.
    EmptyCacheEveryStep,
    /// An `allow` comment that cannot be followed.
    AllowMalformed,
}

impl CodePattern {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::VersionAsFloat,
        Self::VersionAsText,
        Self::OomDropsBatch,
        Self::EmptyCacheEveryStep,
        Self::AllowMalformed,
    ];
}
