//! Holds the facts against what the languages find.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::allow::{Directive, directive};
use super::finding::Finding;
use super::{effort, near, power};
use crate::setting::{
    Class, Key, KeyList, Namespace, Place, SettingFacts, Shape, ValueTest, VariableRule, Verdict,
};

/// How deep one language may stand inside another: Python in a here-document in a manifest, and so on.
const DEEPEST: u32 = 6;

/// What a text does with a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Gives it a value.
    Set,
    /// Asks for its value.
    Read,
}

/// Collects findings.
pub(super) struct Judge<'a> {
    pub(super) facts: &'a SettingFacts,
    codes: BTreeSet<&'a str>,
    findings: Vec<Finding>,
    allowed: BTreeSet<(u32, String)>,
    /// Comments, by line, for rules that ask what somebody claims.
    comments: BTreeMap<u32, String>,
    /// Lines on which a power limit is set, and to what.
    power_limits: BTreeMap<u32, Vec<String>>,
    /// Names that were looked for among the real ones, and what was found.
    slips: HashMap<(&'a str, String), Option<&'a str>>,
    depth: u32,
    /// Whether the present place is reached only under a condition.
    pub(super) guarded: bool,
}

/// What was written, for the words of a verdict.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written<'t> {
    pub(super) name: &'t str,
    pub(super) value: &'t str,
    pub(super) near: &'t str,
}

impl<'a> Judge<'a> {
    pub(super) fn new(facts: &'a SettingFacts) -> Self {
        Self {
            facts,
            codes: facts.codes(),
            findings: Vec::new(),
            allowed: BTreeSet::new(),
            comments: BTreeMap::new(),
            power_limits: BTreeMap::new(),
            slips: HashMap::new(),
            depth: 0,
            guarded: false,
        }
    }

    /// Whether a language may be read inside of the present one.
    pub(super) fn enter(&mut self) -> bool {
        if self.depth == DEEPEST {
            return false;
        }
        self.depth += 1;
        true
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// A comment may silence findings on its line and the next.
    pub(super) fn comment(&mut self, line: u32, text: &str) {
        match directive(text, &self.codes) {
            Some(Directive::Allow(code)) => {
                self.allowed.insert((line, code.clone()));
                self.allowed.insert((line.saturating_add(1), code));
            }
            Some(Directive::Malformed(why)) => {
                self.shape_of(
                    Shape::AllowMalformed,
                    line,
                    Written { name: &why, ..Written::default() },
                );
            }
            None => {
                self.comments.insert(line, text.to_ascii_lowercase());
            }
        }
    }

    /// A pattern that code found.
    pub(super) fn shape(&mut self, shape: Shape, line: u32) {
        self.shape_of(shape, line, Written::default());
    }

    fn shape_of(&mut self, shape: Shape, line: u32, written: Written<'_>) {
        if let Some(verdict) = self.facts.pattern(shape) {
            self.say(verdict, line, written);
        }
    }

    /// A variable that is set or read.
    pub(super) fn variable(
        &mut self,
        place: Place,
        line: u32,
        name: &str,
        value: Option<&str>,
        act: Act,
    ) {
        effort::step();
        let facts = self.facts;
        let guarded = self.guarded;
        let meant = |rule: &&VariableRule| {
            holds(rule, place, name, value, act) && !(rule.unless_guarded && guarded)
        };
        for rule in facts.variable.iter().filter(meant) {
            let value = value.unwrap_or_default();
            self.say(&rule.verdict, line, Written { name, value, near: "" });
        }
        for space in &facts.namespace {
            self.name_in(space, line, name);
        }
        if act == Act::Set
            && let Some(value) = value
        {
            for list in
                facts.key_list.iter().filter(|list| list.variables.iter().any(|v| v == name))
            {
                self.key_list(list, line, value);
            }
        }
    }

    fn name_in(&mut self, space: &'a Namespace, line: u32, name: &str) {
        let judged = self.facts.variable.iter().any(|rule| rule.names.iter().any(|n| n == name));
        let known = |names: &[String]| names.iter().any(|real| real == name);
        if !name.starts_with(&space.prefix) || judged || known(&space.names) || known(&space.others)
        {
            return;
        }
        let names = space.names.iter().map(String::as_str);
        let find = || near::slip(name, &space.prefix, names);
        let slip = *self.slips.entry((&space.prefix, name.to_owned())).or_insert_with(find);
        if slip.is_some() || space.complete {
            let near = slip.unwrap_or("a name of the documentation");
            self.say(&space.verdict, line, Written { name, value: "", near });
        }
    }

    /// The value of an allocator variable: `key:value,key:[value,value]`.
    fn key_list(&mut self, list: &'a KeyList, line: u32, text: &str) {
        let key_named = |name: &str| list.keys.iter().find(|known| known.name == name);
        for item in items(text) {
            let Some((key, value)) = item.split_once(':').map(trimmed) else {
                // The whole item is taken for a key, which there is not.
                if let Some((key, value)) = item.split_once('=').map(trimmed)
                    && key_named(key).is_some()
                {
                    let near = format!("{key}:{value}");
                    self.say(&list.malformed, line, Written { name: item, value, near: &near });
                }
                continue;
            };
            let Some(known) = key_named(key) else {
                if list.open_prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())) {
                    continue;
                }
                let names = || list.keys.iter().map(|key| key.name.as_str());
                let all = names().collect::<Vec<_>>().join("`, `");
                let near = near::slip(key, "", names()).unwrap_or(&all);
                self.say(&list.unknown, line, Written { name: key, value, near });
                continue;
            };
            if !known.values.is_empty() && !known.values.iter().any(|real| real == value) {
                let same = known.values.iter().find(|real| real.eq_ignore_ascii_case(value));
                let near = same.or(known.values.first()).map_or("", String::as_str);
                self.say(&list.bad_value, line, Written { name: key, value, near });
            }
            if is_too_small(known, value, text) {
                self.say(&list.too_small, line, Written { name: key, value, near: "" });
            }
        }
    }

    /// A command with the words that can be read.
    pub(super) fn command(&mut self, line: u32, words: &[&str]) {
        let Some((program, arguments)) = words.split_first() else { return };
        effort::steps(words.len());
        let program = program.rsplit('/').next().unwrap_or(program);
        let facts = self.facts;
        for rule in facts.command.iter().filter(|rule| rule.program == program) {
            for value in values_of(&rule.option, arguments) {
                let known = |word: &str| rule.words.iter().any(|known| known == word);
                let unknown = value.split(',').map(str::trim).find(|word| {
                    !word.is_empty() && !word.contains(['$', '{', '}']) && !known(word)
                });
                if let Some(name) = unknown {
                    self.say(&rule.verdict, line, Written { name, value, near: "" });
                }
            }
        }
        if program == "nvidia-smi" {
            for option in ["-pl", "--power-limit"] {
                for value in values_of(option, arguments) {
                    self.power_limits.entry(line).or_default().push(value.to_owned());
                }
            }
        }
    }

    /// Adds a finding.
    pub(super) fn say(&mut self, verdict: &Verdict, line: u32, written: Written<'_>) {
        effort::step();
        let fill = |text: &str| {
            text.replace("{name}", written.name)
                .replace("{value}", written.value)
                .replace("{near}", written.near)
        };
        self.findings.push(Finding {
            cell: None,
            line: Some(line),
            code: verdict.code.clone(),
            class: verdict.class,
            level: verdict.level(),
            text: fill(&verdict.truth),
            replacement: verdict.replacement.as_deref().map(fill),
            source: verdict.origin.line(),
            unverified: verdict.unverified.clone(),
        });
    }

    /// The findings that no comment silences, by line.
    pub(super) fn finish(mut self) -> Vec<Finding> {
        let claims = power::wrong_claims(self.facts, &self.power_limits, &self.comments);
        for (line, value, verdict) in claims {
            self.say(verdict, line, Written { value: &value, ..Written::default() });
        }
        let allowed = &self.allowed;
        self.findings.retain(|finding| {
            finding.line.is_none_or(|line| !allowed.contains(&(line, finding.code.clone())))
        });
        self.findings.sort_by(|a, b| (a.line, &a.code, &a.text).cmp(&(b.line, &b.code, &b.text)));
        self.findings.dedup();
        self.findings
    }
}

fn holds(rule: &VariableRule, place: Place, name: &str, value: Option<&str>, act: Act) -> bool {
    if !rule.names.iter().any(|known| known == name)
        || !(rule.places.is_empty() || rule.places.contains(&place))
    {
        return false;
    }
    match (&rule.value, act) {
        (None, Act::Set) => true,
        // To ask for an old name is how a program stays compatible; to ask for a fake one is not.
        (None, Act::Read) => rule.verdict.class == Class::Fake,
        (Some(test), Act::Set) => value.is_some_and(|value| passes(test, value.trim())),
        (Some(_), Act::Read) => false,
    }
}

fn passes(test: &ValueTest, value: &str) -> bool {
    if value.is_empty() {
        return false;
    }
    match test {
        ValueTest::OneOf(words) => words.iter().any(|word| word.eq_ignore_ascii_case(value)),
        ValueTest::NotOneOf(words) => !words.iter().any(|word| word == value),
        ValueTest::BeginsWithout(beginning) => !value.starts_with(beginning.as_str()),
        ValueTest::Below(least) => value.parse::<f64>().is_ok_and(|number| number < *least),
        ValueTest::Outside(from, to) => {
            value.parse::<f64>().is_ok_and(|number| number < *from || number > *to)
        }
    }
}

/// Whether a number is below what its key takes, and nothing else in the list moves that.
fn is_too_small(key: &Key, value: &str, list: &str) -> bool {
    let moved = key.least_moved_by.as_deref().is_some_and(|other| list.contains(other));
    let below = |least: f64| value.parse::<f64>().is_ok_and(|number| number < least);
    !moved && key.least.is_some_and(below)
}

fn trimmed<'t>((key, value): (&'t str, &'t str)) -> (&'t str, &'t str) {
    (key.trim(), value.trim())
}

/// The items of `key:value,key:[value,value]`.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    let parts = text.split(move |c: char| {
        inside = (inside || c == '[') && c != ']';
        c == ',' && !inside
    });
    parts.map(str::trim).filter(|item| !item.is_empty())
}

/// The values of `option`, given as `--option=value` or `--option value`.
fn values_of<'t>(option: &str, arguments: &[&'t str]) -> impl Iterator<Item = &'t str> {
    arguments.iter().enumerate().filter_map(move |(at, word)| {
        if *word == option {
            return arguments.get(at + 1).copied();
        }
        word.strip_prefix(option)?.strip_prefix('=')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_in_brackets_are_one_value() {
        let found: Vec<_> = items("a:1, roundup:[64:8,256:4,>:1],b:x,,nonsense,c:").collect();
        assert_eq!(found, ["a:1", "roundup:[64:8,256:4,>:1]", "b:x", "nonsense", "c:"]);
    }

    #[test]
    fn options_take_their_value_in_two_ways() {
        let found: Vec<_> =
            values_of("--format", &["--format=csv", "--format", "json", "--formatted=x"]).collect();
        assert_eq!(found, ["csv", "json"]);
    }
}
