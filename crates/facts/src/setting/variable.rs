//! Environment variables.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// A family of environment variables.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// What the names begin with, such as `NCCL_`.
    pub prefix: String,
    /// The names that the software reads; a near miss of one is a slip.
    pub names: Vec<String>,
    /// Names that builds, plugins and scripts use besides: real, and no name to compare a slip with.
    #[serde(default)]
    pub others: Vec<String>,
    /// Whether `names` and `others` are all there is. Where they are not, only a slip is found.
    pub complete: bool,
    /// What to say of a name that is not in `names`.
    pub verdict: LintVerdict,
}

/// Environment variables that are judged by name, or by name and value.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariableRule {
    /// The exact names.
    pub names: Vec<String>,
    /// Which values are meant; absent: the name alone is the matter, in a read too.
    pub value: Option<ValueTest>,
    /// Not where a condition stands before it: a switch for debugging that somebody has to turn on is
    /// not left on.
    #[serde(default)]
    pub unless_guarded: bool,
    /// The kinds of place where it matters; empty: everywhere.
    #[serde(default)]
    pub places: Vec<SettingSource>,
    /// What to say.
    pub verdict: LintVerdict,
}

/// Which values of a setting are meant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueTest {
    /// One of these, in any case.
    OneOf(Vec<String>),
    /// None of these, which are exact.
    NotOneOf(Vec<String>),
    /// It does not begin so.
    BeginsWithout(String),
    /// A number below this.
    Below(f64),
    /// A number outside of `[from, to]`.
    Outside(f64, f64),
}

/// What kind of place holds a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSource {
    /// Python code.
    Python,
    /// A shell script or command line.
    Shell,
    /// `ENV` or `ARG` of an image.
    Image,
    /// A manifest: Kubernetes, compose.
    Manifest,
    /// A file of `NAME=value` lines, a unit file.
    EnvFile,
    /// The environment of a process.
    Process,
}

/// Variables whose value is a list of `key:value` pairs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyList {
    /// The variables.
    pub variables: Vec<String>,
    /// All keys that there are.
    pub keys: Vec<KeyRule>,
    /// Keys that begin so are not judged: the family is not known to its end.
    #[serde(default)]
    pub open_prefixes: Vec<String>,
    /// What to say of another key.
    pub unknown: LintVerdict,
    /// What to say of a value that its key does not take; `{name}` is the key.
    pub bad_value: LintVerdict,
    /// What to say of a number below the least one of its key.
    pub too_small: LintVerdict,
    /// What to say of `key=value`; `{near}` is the pair as it is read.
    pub malformed: LintVerdict,
}

/// A key of a [`KeyList`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRule {
    /// Its name.
    pub name: String,
    /// The only values that it takes; empty: not judged.
    #[serde(default)]
    pub values: Vec<String>,
    /// The least number that it takes in every release.
    pub least: Option<f64>,
    /// The key that moves the least number, so that it is not judged.
    pub least_moved_by: Option<String>,
}
