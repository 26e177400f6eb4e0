//! Rules on environment variables.

use serde::{Deserialize, Serialize};

use super::verdict::LintVerdict;

/// Environment variables with a common prefix.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Such as `NCCL_`.
    pub prefix: String,
    /// Names that the software reads. A near miss is reported as a misspelling.
    pub names: Vec<String>,
    /// Names used by builds, plugins and scripts: real, but not suggested as corrections.
    #[serde(default)]
    pub others: Vec<String>,
    /// Whether `names` and `others` are exhaustive. If not, only misspellings are reported.
    pub complete: bool,
    /// Verdict on a name that is neither in `names` nor in `others`.
    pub verdict: LintVerdict,
}

/// A rule on environment variables, by name or by name and value.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariableRule {
    pub names: Vec<String>,
    /// Values that the rule reports. With `None`, the rule reports every value, and code that only
    /// reads the variable is a finding only if the name is fake.
    pub value: Option<ValueTest>,
    /// Skips the rule where the setting is conditional: a debug switch that has to be enabled
    /// explicitly was not left on by accident.
    #[serde(default)]
    pub unless_guarded: bool,
    /// Where the rule applies; empty for everywhere.
    #[serde(default)]
    pub places: Vec<SettingSource>,
    /// Skips the rule in a script that runs one of these programs, such as a compiler.
    #[serde(default)]
    pub unless_commands: Vec<String>,
    pub verdict: LintVerdict,
}

/// Condition on a value.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueTest {
    /// One of these, ignoring case.
    OneOf(Vec<String>),
    /// None of these, compared exactly.
    NotOneOf(Vec<String>),
    /// Lacks this prefix.
    BeginsWithout(String),
    /// A number below this.
    Below(f64),
    /// A number outside of `[from, to]`.
    Outside(f64, f64),
    /// A number that is not whole: `0.5`, `500m`.
    Fraction,
    /// A list of paths, separated by colons, in which at least one path ends in one of these
    /// folders.
    PathInto(Vec<String>),
}

/// Kind of text that contains a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSource {
    /// Python code.
    Python,
    /// A shell script or command line.
    Shell,
    /// `ENV` or `ARG` of a Dockerfile.
    Image,
    /// A Kubernetes or compose manifest.
    Manifest,
    /// A file of `NAME=value` lines or a systemd unit.
    EnvFile,
    /// The environment of a process.
    Process,
}

/// Variables whose value is a list of `key:value` pairs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyList {
    pub variables: Vec<String>,
    /// All valid keys.
    pub keys: Vec<KeyRule>,
    /// Key prefixes that are exempt from the check, because not all keys with these prefixes are
    /// known.
    #[serde(default)]
    pub open_prefixes: Vec<String>,
    /// Verdict on an unknown key.
    pub unknown: LintVerdict,
    /// Verdict on an invalid value; `{name}` is the key.
    pub bad_value: LintVerdict,
    /// Verdict on a number below the key's minimum.
    pub too_small: LintVerdict,
    /// Verdict on `key=value`; `{near}` is the correct `key:value`.
    pub malformed: LintVerdict,
}

/// A key of a [`KeyList`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRule {
    pub name: String,
    /// All valid values; empty if unchecked.
    #[serde(default)]
    pub values: Vec<String>,
    /// Minimum accepted by every release.
    pub least: Option<f64>,
    /// If this key is present, the minimum differs and is not checked.
    pub least_moved_by: Option<String>,
}
