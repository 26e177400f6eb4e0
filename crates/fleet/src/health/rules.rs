//! The rules in force: the embedded rules, with overrides from the configuration.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::decode::Kind;
use farrier_facts::names::nearest;
use serde::{Deserialize, Serialize};

use super::finding::{Action, Severity};
use super::rule::{EventPattern, Limit, Measure, Rule, Same};
use super::signal::Behaviour;

/// The embedded rules, in one file per topic. `build.rs` lists the files.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/rule_files.rs"));

#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// Changes to a rule in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleOverride {
    /// `false` disables the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Replaces the limit of the first clause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Replaces how long the condition must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    #[error("failed to parse rule file `{file}`: {why}")]
    Parse { file: String, why: String },
    #[error("rule `{code}` is invalid: {why}")]
    Invalid { code: String, why: String },
    /// The configuration names an unknown rule.
    #[error("unknown rule `{code}`{}", suggestion(.similar.as_deref()))]
    Unknown {
        code: String,
        /// The nearest known code.
        similar: Option<String>,
    },
    /// The configuration sets a limit on a rule that has none.
    #[error(
        "rule `{code}` has no numeric limit to override with `limit`: it compares a flag, a state, another signal or peers, or matches an event"
    )]
    NoLimit { code: String },
}

fn suggestion(similar: Option<&str>) -> String {
    similar.map_or_else(String::new, |similar| format!(", did you mean `{similar}`?"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<Rule>,
}

impl Rules {
    pub fn embedded() -> Result<Self, RulesError> {
        let mut rules = Vec::new();
        for (file, text) in FILES.iter().copied() {
            rules.extend(read(file, text)?);
        }
        Self::from_rules(rules)
    }

    /// Validates the rules. Each must be well formed and have a unique code.
    pub fn from_rules(rules: Vec<Rule>) -> Result<Self, RulesError> {
        let mut codes = BTreeSet::new();
        for rule in &rules {
            let invalid = |why: String| RulesError::Invalid { code: rule.code.clone(), why };
            validation_error(rule).map_or(Ok(()), |why| Err(invalid(why)))?;
            if !codes.insert(rule.code.as_str()) {
                return Err(invalid("another rule has the same code".to_owned()));
            }
        }
        Ok(Self { rules })
    }

    /// The embedded rules with overrides. If there are errors, returns all of them, and not only
    /// the first.
    pub fn configured(overrides: &BTreeMap<String, RuleOverride>) -> Result<Self, Vec<RulesError>> {
        let mut rules = Self::embedded().map_err(|err| vec![err])?;
        // Disabled rules are removed last, so that overrides of their events can still be resolved.
        let (off, on): (Vec<_>, Vec<_>) =
            overrides.iter().partition(|(_, rule_override)| rule_override.enabled == Some(false));
        let ordered = on.into_iter().chain(off);
        let errors: Vec<RulesError> = ordered
            .filter_map(|(code, rule_override)| rules.apply_override(code, rule_override).err())
            .collect();
        if errors.is_empty() { Ok(rules) } else { Err(errors) }
    }

    fn apply_override(
        &mut self,
        code: &str,
        rule_override: &RuleOverride,
    ) -> Result<(), RulesError> {
        let Some(index) = self.index(code) else {
            if let Some((index, event)) = self.resolve_event(code) {
                return override_event(&mut self.rules[index], event, code, rule_override);
            }
            let codes = self.rules.iter().map(|rule| rule.code.as_str());
            let similar = nearest(code, codes).first().map(|nearest| (*nearest).to_owned());
            return Err(RulesError::Unknown { code: code.to_owned(), similar });
        };
        if rule_override.enabled == Some(false) {
            self.rules.remove(index);
            return Ok(());
        }
        let rule = &mut self.rules[index];
        rule.severity_override = rule_override.severity.or(rule.severity_override);
        rule.for_s = rule_override.for_s.unwrap_or(rule.for_s);
        let Some(limit) = rule_override.limit else { return Ok(()) };
        match rule.when.first_mut() {
            Some(clause)
                if matches!(clause.limit, Limit::Number(_))
                    && is_quantity(clause.signal.behaviour()) =>
            {
                clause.limit = Limit::Number(limit);
                // The clear limit was chosen for the old limit, so it may be on the wrong side of
                // the new limit.
                clause.clear = None;
                Ok(())
            }
            _ => Err(RulesError::NoLimit { code: code.to_owned() }),
        }
    }

    /// Returns the index of the rule that a code such as `gpu.xid.95` belongs to, and the code of
    /// the event, such as `xid.95`.
    fn resolve_event(&self, code: &str) -> Option<(usize, String)> {
        let (rule_code, number) = code.rsplit_once('.')?;
        let number: u32 = number.parse().ok()?;
        let index = self.index(rule_code)?;
        let prefix = self.rules[index].on.as_ref().and_then(event_prefix)?;
        Some((index, format!("{prefix}.{number}")))
    }

    /// The rule that a code in the configuration names. The code is that of the rule, or that of
    /// one of its events, such as `gpu.xid.95`.
    pub fn resolve(&self, code: &str) -> Option<&Rule> {
        self.get(code).or_else(|| self.resolve_event(code).map(|(index, _)| self.at(index)))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    pub fn get(&self, code: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.code == code)
    }

    /// The index of a code, in the order of [`Self::iter`].
    pub(super) fn index(&self, code: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.code == code)
    }

    /// The rule at an index, in the order of [`Self::iter`].
    pub(super) fn at(&self, index: usize) -> &Rule {
        &self.rules[index]
    }
}

/// The text before the number in the codes of a rule's events. `None` if the pattern does not imply
/// one prefix.
fn event_prefix(pattern: &EventPattern) -> Option<&'static str> {
    match pattern.kinds.as_slice() {
        [Kind::Xid] if pattern.codes.is_empty() => Some("xid"),
        [Kind::Sxid] if pattern.codes.is_empty() => Some("sxid"),
        _ => None,
    }
}

fn override_event(
    rule: &mut Rule,
    event: String,
    code: &str,
    rule_override: &RuleOverride,
) -> Result<(), RulesError> {
    if rule_override.limit.is_some() {
        return Err(RulesError::NoLimit { code: code.to_owned() });
    }
    rule.event_overrides.insert(event, rule_override.clone());
    Ok(())
}

fn read(file: &str, text: &str) -> Result<Vec<Rule>, RulesError> {
    let parse_error =
        |err: toml::de::Error| RulesError::Parse { file: file.to_owned(), why: err.to_string() };
    Ok(toml::from_str::<File>(text).map_err(parse_error)?.rule)
}

/// Whether any limit is meaningful for the signal. For example, a flag that is compared with 5
/// never matches.
fn is_quantity(behaviour: Behaviour) -> bool {
    matches!(behaviour, Behaviour::Gauge | Behaviour::Counter)
}

/// Returns why a rule is invalid.
fn validation_error(rule: &Rule) -> Option<String> {
    if rule.origin.source.is_empty() {
        return Some("`origin` names no source".to_owned());
    }
    if rule.case.steps.is_empty() {
        return Some("it has no case that triggers it".to_owned());
    }
    if rule.case.found_within_s.is_some() != rule.case.steps.iter().any(|step| step == "fault") {
        return Some("its case needs both `found_within_s` and the step `fault`".to_owned());
    }
    if rule.when.is_empty() == rule.on.is_none() && !rule.code.starts_with("check") {
        return Some("it needs clauses (`when`) or events (`on`), not both".to_owned());
    }
    if !rule.when.is_empty()
        && (rule.severity.is_none() || rule.action.is_none() || rule.text.is_none())
    {
        return Some("a rule over signals needs `severity`, `action` and `text`".to_owned());
    }
    if rule.on.is_some() && rule.for_s > 0 {
        return Some("`for_s` does not apply to events".to_owned());
    }
    if rule.suppressed_by.is_some() && rule.when.is_empty() {
        return Some("`suppressed_by` applies only to rules with clauses (`when`)".to_owned());
    }
    let needs_restart = matches!(rule.action, Some(Action::ResetGpu | Action::RebootNode));
    if needs_restart && rule.is_windowed() && !rule.until_recovery {
        return Some(
            "`until_recovery` is missing: the rule requires a reset or a reboot, but its finding would clear when the window has passed"
                .to_owned(),
        );
    }
    let scope = rule.scope();
    if rule.when.iter().any(|clause| Some(clause.signal.scope()) != scope) {
        return Some("its signals have different scopes".to_owned());
    }
    rule.when.iter().find_map(clause_error).or_else(|| rule.on.as_ref().and_then(pattern_error))
}

fn clause_error(clause: &super::rule::Clause) -> Option<String> {
    let (signal, behaviour) = (clause.signal, clause.signal.behaviour());
    let counts = matches!(
        clause.measure,
        Measure::Increase { .. }
            | Measure::Rate { .. }
            | Measure::Windows { .. }
            | Measure::Growth { .. }
    );
    if counts && behaviour != Behaviour::Counter {
        return Some(format!("`{signal}` is not a counter"));
    }
    if matches!(clause.measure, Measure::Falls { .. }) && behaviour != Behaviour::Flag {
        return Some(format!("`{signal}` is not a flag"));
    }
    if clause.bits.is_some() != (behaviour == Behaviour::Mask) {
        return Some(format!(
            "`bits` is required for a mask and invalid otherwise; `{signal}` is a {behaviour:?}"
        ));
    }
    if let Limit::Signal { signal: other, .. } = clause.limit
        && other.scope() != signal.scope()
    {
        return Some(format!("`{signal}` and `{other}` have different scopes"));
    }
    None
}

/// The shortest permitted `merge_s`. The journal stores repeats of an event at this interval
/// (`engine::events`).
const MERGE_S_MIN: u32 = 60;

fn pattern_error(pattern: &super::rule::EventPattern) -> Option<String> {
    let needs_repeats =
        pattern.times > 1 || pattern.distinct_subjects > 1 || pattern.distinct_boots > 1;
    if needs_repeats && pattern.merge_s < MERGE_S_MIN {
        return Some(format!(
            "`merge_s` is below {MERGE_S_MIN}: the journal stores at most one event a minute"
        ));
    }
    if needs_repeats && pattern.within_s == 0 {
        return Some("`within_s` is missing".to_owned());
    }
    if pattern.distinct_subjects > 1 && pattern.same != Same::NodeCode {
        return Some("`distinct_subjects` requires `same = \"node-code\"`".to_owned());
    }
    (pattern.times == 0).then(|| "`times` is zero".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressing_rules_exist_and_match_events() {
        let rules = Rules::embedded().unwrap();
        for rule in rules.iter() {
            let Some(other) = &rule.suppressed_by else { continue };
            assert!(rules.get(&other.code).is_some_and(|rule| rule.on.is_some()), "{}", rule.code);
        }
    }

    #[test]
    fn windowed_rules_that_require_a_restart_need_until_recovery() {
        let rules = Rules::embedded().unwrap();
        for code in ["link.retrains", "gpu.pcie-fatal", "nic.efa-no-completion"] {
            let rule = rules.get(code).unwrap();
            let invalid = Rule { until_recovery: false, ..rule.clone() };
            let err = Rules::from_rules(vec![invalid]).unwrap_err().to_string();
            assert!(err.contains("`until_recovery` is missing"), "{err}");
        }
    }
}
