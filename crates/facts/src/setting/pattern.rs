//! Rules on commands and claims, and texts for patterns that scanners find.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// A rule on a command-line option.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandRule {
    /// Program name without its directory.
    pub program: String,
    /// Option with a comma-separated value, such as `--format`.
    pub option: String,
    /// Accepted words.
    pub words: Vec<String>,
    pub verdict: LintVerdict,
}

/// Two versions wrongly claimed to belong together.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRule {
    /// Subject of the claim, such as a CUDA version.
    pub of: String,
    /// The version wrongly tied to it, such as a driver version.
    pub tied_to: String,
    /// `{name}` is `of` and `{value}` is `tied_to`.
    pub verdict: LintVerdict,
}

/// A power limit that a comment wrongly calls the maximum of a card.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerClaim {
    /// Words that a comment must contain to make the claim: the card and a word for the maximum.
    pub words: Vec<String>,
    /// Limits for which the claim is true.
    pub true_of: Vec<PowerLimit>,
    /// Verdict on any other limit; `{value}` is the limit.
    pub verdict: LintVerdict,
}

/// A real power limit of a card.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerLimit {
    pub limit_w: f64,
    /// The comment must name one of these form factors; empty if it need not name any.
    #[serde(default)]
    pub forms: Vec<String>,
}

/// Text for a pattern that a scanner finds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Which pattern.
    pub shape: CodePattern,
    pub verdict: LintVerdict,
}

/// A pattern that a scanner finds, because no rule in the data can express it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodePattern {
    /// A version parsed as a floating-point number.
    VersionAsFloat,
    /// Versions compared as strings.
    VersionAsText,
    /// A training loop that skips the batch that ran out of memory.
    OomDropsBatch,
    /// `empty_cache()` in every training step.
    EmptyCacheEveryStep,
    /// A malformed `allow` comment.
    AllowMalformed,
}

impl CodePattern {
    /// All patterns.
    pub const ALL: [Self; 5] = [
        Self::VersionAsFloat,
        Self::VersionAsText,
        Self::OomDropsBatch,
        Self::EmptyCacheEveryStep,
        Self::AllowMalformed,
    ];
}
