//! The rules in force: the embedded ones, with configuration overrides.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::decode::Kind;
use farrier_facts::names::nearest;
use serde::{Deserialize, Serialize};

use super::finding::{Action, Severity};
use super::rule::{EventPattern, Limit, Measure, Rule, Same};
use super::signal::Behaviour;

/// The embedded rules, one file per subject; `build.rs` lists them.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/rule_files.rs"));

#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// Configuration of a rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleOverride {
    /// `false` disables it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Replaces the limit of the first clause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Replaces how long it must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    #[error("rules `{file}` do not read: {why}")]
    Form { file: String, why: String },
    #[error("rule `{code}` is wrong: {why}")]
    Wrong { code: String, why: String },
    /// The configuration names an unknown rule.
    #[error("there is no rule `{code}`{}", suggestion(.similar.as_deref()))]
    Unknown {
        code: String,
        /// The nearest known code.
        similar: Option<String>,
    },
    /// The configuration sets a limit on a rule that has none.
    #[error(
        "rule `{code}` has no number to set `limit` to: it looks at a flag, a state, another signal, its peers, or an event"
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
        Self::of(rules)
    }

    /// Validates the rules: each must be well formed and have a unique code.
    pub fn of(rules: Vec<Rule>) -> Result<Self, RulesError> {
        let mut codes = BTreeSet::new();
        for rule in &rules {
            let wrong = |why: String| RulesError::Wrong { code: rule.code.clone(), why };
            problem(rule).map_or(Ok(()), |why| Err(wrong(why)))?;
            if !codes.insert(rule.code.as_str()) {
                return Err(wrong("its code is taken".to_owned()));
            }
        }
        Ok(Self { rules })
    }

    /// The embedded rules with overrides. Returns all errors, not only the first.
    pub fn configured(changes: &BTreeMap<String, RuleOverride>) -> Result<Self, Vec<RulesError>> {
        let mut rules = Self::embedded().map_err(|err| vec![err])?;
        // Disabled rules are removed last, so that overrides of their events are no errors.
        let (off, on): (Vec<_>, Vec<_>) =
            changes.iter().partition(|(_, change)| change.enabled == Some(false));
        let all = on.into_iter().chain(off);
        let errors: Vec<RulesError> =
            all.filter_map(|(code, change)| rules.change(code, change).err()).collect();
        if errors.is_empty() { Ok(rules) } else { Err(errors) }
    }

    fn change(&mut self, code: &str, change: &RuleOverride) -> Result<(), RulesError> {
        let Some(place) = self.rules.iter().position(|rule| rule.code == code) else {
            if let Some((place, event)) = self.part(code) {
                return change_event(&mut self.rules[place], event, code, change);
            }
            let codes = self.rules.iter().map(|rule| rule.code.as_str());
            let similar = nearest(code, codes).first().map(|it| (*it).to_owned());
            return Err(RulesError::Unknown { code: code.to_owned(), similar });
        };
        if change.enabled == Some(false) {
            self.rules.remove(place);
            return Ok(());
        }
        let rule = &mut self.rules[place];
        rule.severity_set = change.severity.or(rule.severity_set);
        rule.for_s = change.for_s.unwrap_or(rule.for_s);
        let Some(limit) = change.limit else { return Ok(()) };
        match rule.when.first_mut() {
            Some(clause)
                if matches!(clause.limit, Limit::Number(_))
                    && is_amount(clause.signal.behaviour()) =>
            {
                clause.limit = Limit::Number(limit);
                // A hysteresis limit chosen for another limit may be on the wrong side of this one.
                clause.clear = None;
                Ok(())
            }
            _ => Err(RulesError::NoLimit { code: code.to_owned() }),
        }
    }

    /// Index of the rule that `gpu.xid.95` belongs to, and the event's code, such as `xid.95`.
    fn part(&self, code: &str) -> Option<(usize, String)> {
        let (whole, number) = code.rsplit_once('.')?;
        let number: u32 = number.parse().ok()?;
        let place = self.rules.iter().position(|rule| rule.code == whole)?;
        let name = self.rules[place].on.as_ref().and_then(numbered)?;
        Some((place, format!("{name}.{number}")))
    }

    /// The rule that a configuration names, by its code or by that of one of its events, such as
    /// `gpu.xid.95`.
    pub fn meant(&self, code: &str) -> Option<&Rule> {
        self.get(code).or_else(|| self.part(code).map(|(place, _)| self.at(place)))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    pub fn get(&self, code: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.code == code)
    }

    /// Index of a code, in the order of [`Self::iter`].
    pub(super) fn place(&self, code: &str) -> Option<usize> {
        self.rules.iter().position(|rule| rule.code == code)
    }

    /// The rule at an index, in the order of [`Self::iter`].
    pub(super) fn at(&self, place: usize) -> &Rule {
        &self.rules[place]
    }
}

/// Prefix before the number in the codes of a rule's events, if all have one.
fn numbered(pattern: &EventPattern) -> Option<&'static str> {
    match pattern.kinds.as_slice() {
        [Kind::Xid] if pattern.codes.is_empty() => Some("xid"),
        [Kind::Sxid] if pattern.codes.is_empty() => Some("sxid"),
        _ => None,
    }
}

fn change_event(
    rule: &mut Rule,
    event: String,
    code: &str,
    change: &RuleOverride,
) -> Result<(), RulesError> {
    if change.limit.is_some() {
        return Err(RulesError::NoLimit { code: code.to_owned() });
    }
    rule.of_event.insert(event, change.clone());
    Ok(())
}

fn read(file: &str, text: &str) -> Result<Vec<Rule>, RulesError> {
    let form =
        |err: toml::de::Error| RulesError::Form { file: file.to_owned(), why: err.to_string() };
    Ok(toml::from_str::<File>(text).map_err(form)?.rule)
}

/// Whether it can be compared with an arbitrary limit. A flag compared with 5 never fires.
fn is_amount(behaviour: Behaviour) -> bool {
    matches!(behaviour, Behaviour::Gauge | Behaviour::Counter)
}

/// Why a rule is invalid.
fn problem(rule: &Rule) -> Option<String> {
    if rule.origin.source.is_empty() {
        return Some("it names no source".to_owned());
    }
    if rule.case.steps.is_empty() {
        return Some("it has no case: nothing shows that it fires".to_owned());
    }
    if rule.when.is_empty() == rule.on.is_none() && !rule.code.starts_with("check") {
        return Some("it needs clauses (`when`) or events (`on`), not both".to_owned());
    }
    if !rule.when.is_empty()
        && (rule.severity.is_none() || rule.action.is_none() || rule.text.is_none())
    {
        return Some("severity, action and text are needed: signals say none of them".to_owned());
    }
    if rule.on.is_some() && rule.for_s > 0 {
        return Some("`for_s` means nothing for an event".to_owned());
    }
    if rule.told_by.is_some() && rule.when.is_empty() {
        return Some("`told_by` is for clauses: an event is told by itself".to_owned());
    }
    let asks = matches!(rule.action, Some(Action::ResetGpu | Action::RebootNode));
    if asks && rule.judges_happenings() && !rule.until_recovery {
        return Some(
            "it asks for a reset or a reboot and ends by itself when its window has passed: `until_recovery` is missing"
                .to_owned(),
        );
    }
    let scope = rule.scope();
    if rule.when.iter().any(|clause| Some(clause.signal.scope()) != scope) {
        return Some("its signals are about different things".to_owned());
    }
    rule.when.iter().find_map(clause_problem).or_else(|| rule.on.as_ref().and_then(pattern_problem))
}

fn clause_problem(clause: &super::rule::Clause) -> Option<String> {
    let (signal, behaviour) = (clause.signal, clause.signal.behaviour());
    let counts = matches!(
        clause.measure,
        Measure::Increase { .. }
            | Measure::Rate { .. }
            | Measure::Windows { .. }
            | Measure::Growth { .. }
    );
    if counts && behaviour != Behaviour::Counter {
        return Some(format!("`{signal}` is no counter"));
    }
    if matches!(clause.measure, Measure::Falls { .. }) && behaviour != Behaviour::Flag {
        return Some(format!("`{signal}` is no flag"));
    }
    if clause.bits.is_some() != (behaviour == Behaviour::Mask) {
        return Some(format!("`bits` goes with a mask, and `{signal}` is {behaviour:?}"));
    }
    if let Limit::Signal { signal: other, .. } = clause.limit
        && other.scope() != signal.scope()
    {
        return Some(format!("`{signal}` and `{other}` are about different things"));
    }
    None
}

/// The interval at which the journal stores repeats of an event (`engine::events`).
const MERGE_S_MIN: u32 = 60;

fn pattern_problem(pattern: &super::rule::EventPattern) -> Option<String> {
    let several = pattern.times > 1 || pattern.distinct_subjects > 1 || pattern.distinct_boots > 1;
    if several && pattern.merge_s < MERGE_S_MIN {
        return Some(format!(
            "`merge_s` is below {MERGE_S_MIN}: the journal keeps no more than one event a minute"
        ));
    }
    if several && pattern.within_s == 0 {
        return Some("`within_s` is missing".to_owned());
    }
    if pattern.distinct_subjects > 1 && pattern.same != Same::NodeCode {
        return Some("different subjects cannot be the same subject".to_owned());
    }
    (pattern.times == 0).then(|| "`times` is nought".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_by_another_rule_is_told_by_one_that_there_is() {
        let rules = Rules::embedded().unwrap();
        for rule in rules.iter() {
            let Some(other) = &rule.told_by else { continue };
            assert!(rules.get(&other.code).is_some_and(|it| it.on.is_some()), "{}", rule.code);
        }
    }

    #[test]
    fn what_asks_for_a_reset_or_a_reboot_may_not_end_by_itself() {
        let rules = Rules::embedded().unwrap();
        for code in ["link.retrains", "gpu.pcie-fatal", "nic.efa-no-completion"] {
            let rule = rules.get(code).unwrap();
            let hasty = Rule { until_recovery: false, ..rule.clone() };
            let err = Rules::of(vec![hasty]).unwrap_err().to_string();
            assert!(err.contains("`until_recovery` is missing"), "{err}");
        }
    }
}
