//! Settings that exist, and settings that do not.
//!
//! The records say what is judged and what is true; [`crate::lint`] finds the places. A rule that needs
//! code (a loop, a comparison) has a [`Pattern`] for its words only.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::origin::Origin;

/// What `data/settings/` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingFacts {
    /// Families of environment variables, with the names that are real.
    pub namespace: Vec<Namespace>,
    /// Environment variables that are judged by name, or by name and value.
    pub variable: Vec<VariableRule>,
    /// Variables whose value is a list of `key:value` pairs.
    pub key_list: Vec<KeyList>,
    /// Python calls and their arguments.
    pub call: Vec<CallRule>,
    /// Options of commands.
    pub command: Vec<CommandRule>,
    /// What to say where code finds a pattern.
    pub pattern: Vec<Pattern>,
}

/// What is wrong with a setting, what is true, and what to use.
///
/// In `truth` and `replacement`, `{name}` stands for what was written, `{value}` for its value and
/// `{near}` for the nearest real name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// A stable name for the kind of finding, such as `env-unknown`.
    pub code: String,
    /// What the setting does to the person who wrote it.
    pub class: Class,
    /// What is true.
    pub truth: String,
    /// What to write instead. Only a [`Class::Redundant`] setting may have none: it is deleted.
    pub replacement: Option<String>,
    /// What part of this nobody has confirmed.
    pub unverified: Option<String>,
    /// Who says so.
    pub origin: Origin,
}

/// What a setting does to the person who wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// There is no such thing.
    Fake,
    /// It is real or was once, and silently does nothing here.
    Ignored,
    /// The program stops with an error.
    Raises,
    /// It works, and costs speed, memory or correctness.
    Harm,
    /// It says what is so anyway. A note, not a finding.
    Redundant,
}

impl Class {
    /// Whether it is only a note: it does not make a file bad.
    pub fn is_note(self) -> bool {
        self == Self::Redundant
    }
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Fake => "fake",
            Self::Ignored => "ignored",
            Self::Raises => "raises",
            Self::Harm => "harm",
            Self::Redundant => "redundant",
        })
    }
}

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
    pub verdict: Verdict,
}

/// Environment variables that are judged by name, or by name and value.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariableRule {
    /// The exact names.
    pub names: Vec<String>,
    /// Which values are meant; absent: the name alone is the matter, in a read too.
    pub value: Option<ValueTest>,
    /// The kinds of place where it matters; empty: everywhere.
    #[serde(default)]
    pub places: Vec<Place>,
    /// What to say.
    pub verdict: Verdict,
}

/// Which values of a setting are meant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueTest {
    /// One of these, in any case.
    OneOf(Vec<String>),
    /// None of these, which are exact.
    NotOneOf(Vec<String>),
    /// A number below this.
    Below(f64),
    /// A number outside of `[from, to]`.
    Outside(f64, f64),
}

/// What kind of place holds a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
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
    pub keys: Vec<Key>,
    /// Keys that begin so are not judged: the family is not known to its end.
    #[serde(default)]
    pub open_prefixes: Vec<String>,
    /// What to say of another key.
    pub unknown: Verdict,
    /// What to say of a value that its key does not take; `{name}` is the key.
    pub bad_value: Verdict,
}

/// A key of a [`KeyList`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// The only values that it takes; empty: not judged.
    #[serde(default)]
    pub values: Vec<String>,
}

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
    /// Only when the text imports one of these modules.
    #[serde(default)]
    pub imports: Vec<String>,
    /// Not when this keyword is given.
    pub unless_keyword: Option<String>,
    /// What to say; `{name}` is the path, the key or the value that is wrong.
    pub verdict: Verdict,
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
    pub wrong: Wrong,
}

/// What is wrong with an argument.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
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
    pub verdict: Verdict,
}

/// What to say where code finds a pattern.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Which pattern.
    pub shape: Shape,
    /// What to say.
    pub verdict: Verdict,
}

/// A pattern that code finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A version turned into a floating-point number.
    VersionAsFloat,
    /// Versions compared letter by letter.
    VersionAsText,
    /// A training loop that goes on without the batch that ran out of memory.
    OomDropsBatch,
    /// The allocator's cache emptied in every step.
    EmptyCacheEveryStep,
    /// A power limit set as the maximum of a card that has another.
    PowerLimitAsMaximum,
    /// An `allow` comment that cannot be followed.
    AllowMalformed,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::VersionAsFloat,
        Self::VersionAsText,
        Self::OomDropsBatch,
        Self::EmptyCacheEveryStep,
        Self::PowerLimitAsMaximum,
        Self::AllowMalformed,
    ];
}

impl SettingFacts {
    /// Every verdict, in the order of the records.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        let namespaces = self.namespace.iter().map(|space| &space.verdict);
        let variables = self.variable.iter().map(|rule| &rule.verdict);
        let lists = self.key_list.iter().flat_map(|list| [&list.unknown, &list.bad_value]);
        let calls = self.call.iter().map(|rule| &rule.verdict);
        let commands = self.command.iter().map(|rule| &rule.verdict);
        let patterns = self.pattern.iter().map(|pattern| &pattern.verdict);
        namespaces.chain(variables).chain(lists).chain(calls).chain(commands).chain(patterns)
    }

    /// The codes that findings can have, sorted.
    pub fn codes(&self) -> BTreeSet<&str> {
        self.verdicts().map(|verdict| verdict.code.as_str()).collect()
    }

    /// What to say where code found `shape`.
    pub fn pattern(&self, shape: Shape) -> Option<&Verdict> {
        self.pattern.iter().find(|pattern| pattern.shape == shape).map(|pattern| &pattern.verdict)
    }
}

/// What must hold in the settings besides their form.
pub(crate) fn problems(facts: &SettingFacts, problems: &mut Vec<String>) {
    for verdict in facts.verdicts() {
        verdict_problems(verdict, problems);
    }
    for space in &facts.namespace {
        duplicates(&format!("namespace `{}`", space.prefix), &space.names, problems);
        for name in
            space.names.iter().chain(&space.others).filter(|name| !name.starts_with(&space.prefix))
        {
            problems.push(format!(
                "settings: `{name}` stands in namespace `{}` and does not begin with it",
                space.prefix
            ));
        }
    }
    let fake: Vec<String> = facts
        .variable
        .iter()
        .filter(|rule| rule.value.is_none())
        .flat_map(|rule| rule.names.iter().cloned())
        .collect();
    duplicates("variables judged by name", &fake, problems);
    for (name, rule) in
        facts.variable.iter().flat_map(|rule| rule.names.iter().map(move |n| (n, rule)))
    {
        let known = facts
            .namespace
            .iter()
            .any(|space| space.names.contains(name) || space.others.contains(name));
        if known && rule.verdict.class == Class::Fake {
            problems
                .push(format!("settings: `{name}` is both fake and a real name of a namespace"));
        }
    }
    for list in &facts.key_list {
        let keys: Vec<String> = list.keys.iter().map(|key| key.name.clone()).collect();
        duplicates("key list", &keys, problems);
        if list.variables.is_empty() {
            problems.push("settings: key list without a variable".to_owned());
        }
    }
    if let Some(rule) = facts.call.iter().find(|rule| rule.paths.is_empty()) {
        problems.push(format!("settings: call rule `{}` names no path", rule.verdict.code));
    }
    for shape in Shape::ALL {
        match facts.pattern.iter().filter(|pattern| pattern.shape == shape).count() {
            1 => {}
            count => problems.push(format!("settings: pattern {shape:?} has {count} records")),
        }
    }
}

fn verdict_problems(verdict: &Verdict, problems: &mut Vec<String>) {
    let code = &verdict.code;
    let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if code.is_empty() || !code.chars().all(kebab) {
        problems.push(format!("settings: code `{code}` is not kebab-case"));
    }
    if verdict.truth.trim().is_empty() {
        problems.push(format!("settings: `{code}` says nothing"));
    }
    if verdict.replacement.is_none() && !verdict.class.is_note() {
        problems.push(format!("settings: `{code}` ({}) has no replacement", verdict.class));
    }
    let sources = &verdict.origin.source;
    if sources.is_empty() || sources.iter().any(|source| source.trim().is_empty()) {
        problems.push(format!("settings: `{code}` has no source"));
    }
}

fn duplicates(what: &str, names: &[String], problems: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for name in names.iter().filter(|name| !seen.insert(name.as_str())) {
        problems.push(format!("settings: {what}: `{name}` stands twice"));
    }
}
