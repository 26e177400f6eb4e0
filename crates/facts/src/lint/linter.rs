//! Applies the rules to the settings, calls and commands that the language scanners find.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::allow::{Directive, directive};
use super::finding::LintFinding;
use super::flag::{TextEnd, check_flags};
use super::value::{is_too_small, judges_parts, value_matches};
use super::{power_claim, step_count, typo};
use crate::setting::{
    CodePattern, KeyList, LintClass, LintVerdict, Namespace, SettingFacts, SettingSource,
    VariableRule,
};

/// Maximum nesting of languages, such as Python in a here-document in a manifest.
const MAX_NESTING: u32 = 6;

/// How a text accesses a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Set,
    Read,
}

/// The part of an image build that the current place belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BuildPart {
    /// No part of the build: a setting at this place takes effect when a program runs.
    None,
    /// A stage whose files are not in the final image, unless they are copied.
    Stage,
    /// A command that makes the final image.
    Image,
}

/// Applies rules and collects findings.
pub(super) struct Linter<'a> {
    pub(super) facts: &'a SettingFacts,
    codes: BTreeSet<&'a str>,
    findings: Vec<LintFinding>,
    allowed: BTreeSet<(u32, String)>,
    /// Comments in lower case by line, for the rules on power limits.
    comments: BTreeMap<u32, String>,
    /// Power limits set, by line.
    power_limits: BTreeMap<u32, Vec<String>>,
    /// Cache of spelling corrections.
    corrections: HashMap<(&'a str, String), Option<&'a str>>,
    depth: u32,
    /// Whether the current statement runs only under a condition.
    pub(super) guarded: bool,
    pub(super) build: BuildPart,
    /// Programs that the current script runs.
    pub(super) programs: BTreeSet<String>,
}

/// Values for the placeholders of a verdict.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MessageArgs<'t> {
    pub(super) name: &'t str,
    pub(super) value: &'t str,
    pub(super) near: &'t str,
}

impl<'a> Linter<'a> {
    pub(super) fn new(facts: &'a SettingFacts) -> Self {
        Self {
            facts,
            codes: facts.codes(),
            findings: Vec::new(),
            allowed: BTreeSet::new(),
            comments: BTreeMap::new(),
            power_limits: BTreeMap::new(),
            corrections: HashMap::new(),
            depth: 0,
            guarded: false,
            build: BuildPart::None,
            programs: BTreeSet::new(),
        }
    }

    /// Enters a nested language; false at the nesting limit.
    pub(super) fn enter(&mut self) -> bool {
        if self.depth == MAX_NESTING {
            return false;
        }
        self.depth += 1;
        true
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Processes a comment, which may suppress findings on its line and the next.
    pub(super) fn comment(&mut self, line: u32, text: &str) {
        match directive(text, &self.codes) {
            Some(Directive::Allow(code)) => {
                self.allowed.insert((line, code.clone()));
                self.allowed.insert((line.saturating_add(1), code));
            }
            Some(Directive::Malformed(why)) => {
                self.report_pattern_with(
                    CodePattern::AllowMalformed,
                    line,
                    MessageArgs { name: &why, ..MessageArgs::default() },
                );
            }
            None => {
                self.comments.insert(line, text.to_ascii_lowercase());
            }
        }
    }

    /// Reports a pattern that a scanner found.
    pub(super) fn report_pattern(&mut self, shape: CodePattern, line: u32) {
        self.report_pattern_with(shape, line, MessageArgs::default());
    }

    fn report_pattern_with(&mut self, shape: CodePattern, line: u32, args: MessageArgs<'_>) {
        if let Some(verdict) = self.facts.pattern(shape) {
            self.report(verdict, line, args);
        }
    }

    /// Checks a variable that is set or read.
    pub(super) fn variable(
        &mut self,
        place: SettingSource,
        line: u32,
        name: &str,
        value: Option<&str>,
        access: Access,
    ) {
        step_count::step();
        let facts = self.facts;
        for rule in &facts.variable {
            if rule_applies(rule, place, name, value, access) && !self.excuses(rule) {
                let value = value.unwrap_or_default();
                self.report(&rule.verdict, line, MessageArgs { name, value, near: "" });
            }
        }
        for space in &facts.namespace {
            self.check_namespace(space, line, name);
        }
        if access == Access::Set
            && let Some(value) = value
        {
            // Python's strings are checked where they stand, with their own lines.
            if place != SettingSource::Python {
                check_flags(self, line, value, TextEnd::Closed);
            }
            for list in
                facts.key_list.iter().filter(|list| list.variables.iter().any(|v| v == name))
            {
                self.key_list(list, line, value);
            }
        }
    }

    /// Checks a value of which only a part is known: `/a/stubs:$LD_LIBRARY_PATH`. The rest of the
    /// text is as written.
    pub(super) fn partial_value(
        &mut self,
        place: SettingSource,
        line: u32,
        name: &str,
        text: &str,
    ) {
        let facts = self.facts;
        for rule in
            facts.variable.iter().filter(|rule| rule.value.as_ref().is_some_and(judges_parts))
        {
            if rule_applies(rule, place, name, Some(text), Access::Set) && !self.excuses(rule) {
                self.report(&rule.verdict, line, MessageArgs { name, value: text, near: "" });
            }
        }
        check_flags(self, line, text, TextEnd::Closed);
    }

    /// Whether the context makes a rule inapplicable.
    fn excuses(&self, rule: &VariableRule) -> bool {
        let builds = || {
            self.build != BuildPart::None
                || rule.unless_commands.iter().any(|program| self.programs.contains(program))
        };
        rule.unless_guarded && self.guarded || !rule.unless_commands.is_empty() && builds()
    }

    /// Checks a resource that a container requests.
    pub(super) fn resource(&mut self, line: u32, name: &str, value: &str) {
        let facts = self.facts;
        for rule in facts.resource.iter().filter(|rule| rule.names.iter().any(|n| n == name)) {
            if rule.value.as_ref().is_none_or(|test| value_matches(test, value)) {
                self.report(&rule.verdict, line, MessageArgs { name, value, near: "" });
            }
        }
    }

    /// Returns the name in `names` that `written` misspells.
    pub(super) fn correction(
        &mut self,
        prefix: &'a str,
        written: &str,
        names: &'a [String],
    ) -> Option<&'a str> {
        let find = || typo::correction(written, prefix, names.iter().map(String::as_str));
        *self.corrections.entry((prefix, written.to_owned())).or_insert_with(find)
    }

    fn check_namespace(&mut self, space: &'a Namespace, line: u32, name: &str) {
        if !name.starts_with(&space.prefix) {
            return;
        }
        let has_rule = self.facts.variable.iter().any(|rule| rule.names.iter().any(|n| n == name));
        // A name may belong to a namespace with a longer prefix.
        let is_known = self
            .facts
            .namespace
            .iter()
            .any(|space| space.names.iter().chain(&space.others).any(|known| known == name));
        if has_rule || is_known {
            return;
        }
        let correction = self.correction(&space.prefix, name, &space.names);
        if correction.is_some() || space.complete {
            let near = correction.unwrap_or("a documented name");
            self.report(&space.verdict, line, MessageArgs { name, value: "", near });
        }
    }

    /// Checks the value of an allocator variable: `key:value,key:[value,value]`.
    fn key_list(&mut self, list: &'a KeyList, line: u32, text: &str) {
        let key_named = |name: &str| list.keys.iter().find(|known| known.name == name);
        for item in items(text) {
            let Some((key, value)) = item.split_once(':').map(trimmed) else {
                // Without a colon, PyTorch reads the whole item as a key, and no such key exists.
                if let Some((key, value)) = item.split_once('=').map(trimmed)
                    && key_named(key).is_some()
                {
                    let near = format!("{key}:{value}");
                    self.report(
                        &list.malformed,
                        line,
                        MessageArgs { name: item, value, near: &near },
                    );
                }
                continue;
            };
            let Some(rule) = key_named(key) else {
                if list.open_prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())) {
                    continue;
                }
                let names = || list.keys.iter().map(|key| key.name.as_str());
                let all = names().collect::<Vec<_>>().join("`, `");
                let near = typo::correction(key, "", names()).unwrap_or(&all);
                self.report(&list.unknown, line, MessageArgs { name: key, value, near });
                continue;
            };
            if !rule.values.is_empty() && !rule.values.iter().any(|real| real == value) {
                let ignoring_case =
                    rule.values.iter().find(|real| real.eq_ignore_ascii_case(value));
                let near = ignoring_case.or(rule.values.first()).map_or("", String::as_str);
                self.report(&list.bad_value, line, MessageArgs { name: key, value, near });
            }
            if is_too_small(rule, value, text) {
                self.report(&list.too_small, line, MessageArgs { name: key, value, near: "" });
            }
        }
    }

    /// Checks a command.
    pub(super) fn command(&mut self, line: u32, words: &[&str]) {
        let Some((program, arguments)) = words.split_first() else { return };
        step_count::steps(words.len());
        let program = program.rsplit('/').next().unwrap_or(program);
        let facts = self.facts;
        for rule in facts.command.iter().filter(|rule| rule.program == program) {
            for value in values_of(&rule.option, arguments) {
                let is_accepted = |word: &str| rule.words.iter().any(|accepted| accepted == word);
                let unknown = value.split(',').map(str::trim).find(|word| {
                    !word.is_empty() && !word.contains(['$', '{', '}']) && !is_accepted(word)
                });
                if let Some(name) = unknown {
                    self.report(&rule.verdict, line, MessageArgs { name, value, near: "" });
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

    pub(super) fn report(&mut self, verdict: &LintVerdict, line: u32, args: MessageArgs<'_>) {
        step_count::step();
        let fill = |text: &str| {
            text.replace("{name}", args.name)
                .replace("{value}", args.value)
                .replace("{near}", args.near)
        };
        self.findings.push(LintFinding {
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

    /// All findings that no comment suppresses, sorted by line.
    pub(super) fn finish(mut self) -> Vec<LintFinding> {
        let claims = power_claim::wrong_claims(self.facts, &self.power_limits, &self.comments);
        for (line, value, verdict) in claims {
            self.report(verdict, line, MessageArgs { value: &value, ..MessageArgs::default() });
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

fn rule_applies(
    rule: &VariableRule,
    place: SettingSource,
    name: &str,
    value: Option<&str>,
    access: Access,
) -> bool {
    if !rule.names.iter().any(|known| known == name)
        || !(rule.places.is_empty() || rule.places.contains(&place))
    {
        return false;
    }
    match (&rule.value, access) {
        (None, Access::Set) => true,
        // Code may read an old name for compatibility, but has no reason to read a fake name.
        (None, Access::Read) => rule.verdict.class == LintClass::Fake,
        (Some(test), Access::Set) => value.is_some_and(|value| value_matches(test, value.trim())),
        (Some(_), Access::Read) => false,
    }
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

/// The values of `option`, as `--option=value` or `--option value`.
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
    fn bracketed_lists_are_one_value() {
        let found: Vec<_> = items("a:1, roundup:[64:8,256:4,>:1],b:x,,nonsense,c:").collect();
        assert_eq!(found, ["a:1", "roundup:[64:8,256:4,>:1]", "b:x", "nonsense", "c:"]);
    }

    #[test]
    fn finds_both_forms_of_option_values() {
        let found: Vec<_> =
            values_of("--format", &["--format=csv", "--format", "json", "--formatted=x"]).collect();
        assert_eq!(found, ["csv", "json"]);
    }
}
