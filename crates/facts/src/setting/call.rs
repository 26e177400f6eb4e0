//! Python calls and their arguments.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// A Python call, or one argument of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRule {
    /// Dotted paths as if everything were imported by its full name. `*.save` is any method `save`.
    pub paths: Vec<String>,
    /// The name itself is the matter: an import or a mention is as bad as a call.
    #[serde(default)]
    pub mention: bool,
    /// The argument that is judged; absent: the call is.
    pub argument: Option<ArgumentTest>,
    /// Other arguments that have to be so too, for what is wrong only together.
    #[serde(default)]
    pub also: Vec<ArgumentTest>,
    /// Only when the text imports one of these packages.
    #[serde(default)]
    pub imports: Vec<String>,
    /// Not when the text imports one of these packages or names it in quotes.
    #[serde(default)]
    pub unless_mentioned: Vec<String>,
    /// Not when this keyword is given.
    pub unless_keyword: Option<String>,
    /// What to say; `{name}` is the path, the key or the value that is wrong.
    pub verdict: LintVerdict,
}

/// An argument of a call, and what is wrong with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentTest {
    /// The keyword.
    pub keyword: String,
    /// Where it stands without the keyword, from 0.
    pub position: Option<usize>,
    /// What is wrong.
    pub wrong: BadArgument,
}

/// What is wrong with an argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadArgument {
    /// It is a number, written out.
    Number,
    /// It is a text, written out.
    Text,
    /// It is a dictionary, written out.
    Dictionary,
    /// It is this literal or path.
    Is(Vec<String>),
    /// It is a path or a word that begins so.
    BeginsWith(Vec<String>),
    /// It is a text, and none of these.
    TextNotOneOf(Vec<String>),
    /// It is a dictionary with a key that is none of these.
    KeyNotOneOf(Vec<String>),
    /// It is a dictionary with one of `fake` as a key, or with a near miss of one of `real`.
    KeyFakeOrNear {
        /// Keys that do not exist.
        fake: Vec<String>,
        /// Keys that do, as far as we know them.
        real: Vec<String>,
    },
}
