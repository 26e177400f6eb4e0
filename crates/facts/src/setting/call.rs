//! Rules on Python calls and their arguments.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// A rule on a Python call or one of its arguments.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRule {
    /// Fully qualified dotted paths. `*.save` matches any method `save`.
    pub paths: Vec<String>,
    /// Match imports and mentions of the name as well as calls.
    #[serde(default)]
    pub mention: bool,
    /// The argument to test; `None` if the call itself is the finding.
    pub argument: Option<ArgumentTest>,
    /// Further argument tests that must also match.
    #[serde(default)]
    pub also: Vec<ArgumentTest>,
    /// Applies only if the text imports one of these packages.
    #[serde(default)]
    pub imports: Vec<String>,
    /// Does not apply if the text imports one of these packages, or contains the name of one in
    /// quotes.
    #[serde(default)]
    pub unless_mentioned: Vec<String>,
    /// Does not apply if this keyword argument is present.
    pub unless_keyword: Option<String>,
    /// Does not apply inside a conditional block. A debug setting in such a block was not left on
    /// by accident, because someone has to enable it.
    #[serde(default)]
    pub unless_guarded: bool,
    /// `{name}` is the offending path, key or value.
    pub verdict: LintVerdict,
}

/// A test of one argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentTest {
    pub keyword: String,
    /// Index as a positional argument, from 0.
    pub position: Option<usize>,
    pub wrong: BadArgument,
}

/// Condition under which an argument is wrong.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadArgument {
    /// Any value: the argument does not exist.
    Present,
    /// A number literal.
    Number,
    /// A string literal.
    Text,
    /// A dictionary literal.
    Dictionary,
    /// One of these literals or paths.
    Is(Vec<String>),
    /// A path or word with one of these prefixes.
    BeginsWith(Vec<String>),
    /// A string literal that is none of these.
    TextNotOneOf(Vec<String>),
    /// A dictionary with a key that is none of these.
    KeyNotOneOf(Vec<String>),
    /// A dictionary with a key from `fake` or a misspelling of a key from `real`.
    KeyFakeOrNear {
        fake: Vec<String>,
        /// Known real keys; not exhaustive.
        real: Vec<String>,
    },
}
