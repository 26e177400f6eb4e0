//! Consistency checks of the settings.

use std::collections::BTreeSet;

use super::{CodePattern, LintClass, LintVerdict, SettingFacts};

/// Consistency checks of the settings.
pub(crate) fn validate(facts: &SettingFacts, problems: &mut Vec<String>) {
    for verdict in facts.verdicts() {
        verdict_problems(verdict, problems);
    }
    for space in &facts.namespace {
        duplicates(&format!("namespace `{}`", space.prefix), &space.names, problems);
        for name in
            space.names.iter().chain(&space.others).filter(|name| !name.starts_with(&space.prefix))
        {
            problems.push(format!(
                "settings: `{name}` is in namespace `{}` but lacks its prefix",
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
    duplicates("variables matched by name", &fake, problems);
    for (name, rule) in
        facts.variable.iter().flat_map(|rule| rule.names.iter().map(move |n| (n, rule)))
    {
        let is_real = facts
            .namespace
            .iter()
            .any(|space| space.names.contains(name) || space.others.contains(name));
        if is_real && rule.verdict.class == LintClass::Fake {
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
    for list in &facts.flag_list {
        let what = format!("flags `{}`", list.prefix);
        let all: Vec<String> = list.names.iter().chain(&list.removed).cloned().collect();
        duplicates(&what, &all, problems);
        for name in all.iter().filter(|name| !name.starts_with(&list.prefix)) {
            problems.push(format!("settings: {what}: `{name}` lacks the prefix"));
        }
    }
    for rule in &facts.install {
        if rule.packages.is_empty() == rule.installers.is_empty()
            || rule.packages.is_empty() != rule.managers.is_empty()
        {
            problems.push(format!(
                "settings: install rule `{}` needs packages and their managers, or installers",
                rule.verdict.code
            ));
        }
    }
    if let Some(rule) = facts.resource.iter().find(|rule| rule.names.is_empty()) {
        problems.push(format!("settings: resource rule `{}` names none", rule.verdict.code));
    }
    if let Some(rule) = facts.call.iter().find(|rule| rule.paths.is_empty()) {
        problems.push(format!("settings: call rule `{}` names no path", rule.verdict.code));
    }
    for claim in &facts.power_claim {
        if claim.words.is_empty() || claim.true_of.is_empty() {
            problems.push("settings: power claim without words or without a limit".to_owned());
        }
    }
    for shape in CodePattern::ALL {
        match facts.pattern.iter().filter(|pattern| pattern.shape == shape).count() {
            1 => {}
            count => problems.push(format!("settings: pattern {shape:?} has {count} records")),
        }
    }
}

fn verdict_problems(verdict: &LintVerdict, problems: &mut Vec<String>) {
    let code = &verdict.code;
    let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if code.is_empty() || !code.chars().all(kebab) {
        problems.push(format!("settings: code `{code}` is not kebab-case"));
    }
    if verdict.truth.trim().is_empty() {
        problems.push(format!("settings: `{code}` has no text"));
    }
    if verdict.replacement.is_none() && verdict.class != LintClass::Redundant {
        problems.push(format!("settings: `{code}` ({}) has no replacement", verdict.class));
    }
    let sources = &verdict.origin.source;
    if sources.is_empty() || sources.iter().any(|source| source.trim().is_empty()) {
        problems.push(format!("settings: `{code}` has no source"));
    }
}

fn duplicates(what: &str, names: &[String], problems: &mut Vec<String>) {
    let mut unique = BTreeSet::new();
    for name in names.iter().filter(|name| !unique.insert(name.as_str())) {
        problems.push(format!("settings: {what}: `{name}` is listed twice"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FactSet;

    fn problems_after(change: impl FnOnce(&mut SettingFacts)) -> Vec<String> {
        let mut facts = SettingFacts::clone(&FactSet::embedded().settings);
        change(&mut facts);
        let mut found = Vec::new();
        validate(&facts, &mut found);
        found
    }

    #[test]
    fn embedded_settings_are_consistent() {
        assert_eq!(problems_after(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn reports_inconsistencies() {
        let one = |change: fn(&mut SettingFacts), words: &str| {
            let found = problems_after(change);
            assert!(found.iter().any(|problem| problem.contains(words)), "{words}: {found:?}");
        };
        one(|facts| facts.variable[0].verdict.replacement = None, "has no replacement");
        one(|facts| facts.variable[0].verdict.origin.source.clear(), "has no source");
        one(|facts| facts.variable[0].verdict.code = "No Code".to_owned(), "is not kebab-case");
        one(|facts| facts.variable[0].verdict.truth.clear(), "has no text");
        one(|facts| facts.namespace[0].names.push("OTHER".to_owned()), "lacks its prefix");
        one(
            |facts| {
                let twin = facts.namespace[0].names[0].clone();
                facts.namespace[0].names.push(twin);
            },
            "is listed twice",
        );
        one(
            |facts| {
                let name = facts.namespace[0].names[0].clone();
                facts.variable[0].verdict.class = LintClass::Fake;
                facts.variable[0].names.push(name);
            },
            "both fake and a real name",
        );
        one(|facts| facts.pattern.clear(), "has 0 records");
        one(|facts| facts.power_claim[0].words.clear(), "power claim without words");
        one(|facts| facts.call[0].paths.clear(), "names no path");
        one(|facts| facts.key_list[0].variables.clear(), "without a variable");
        one(|facts| facts.flag_list[0].removed.push("xla_cpu".to_owned()), "lacks the prefix");
        one(|facts| facts.install[0].managers.clear(), "needs packages and their managers");
        one(|facts| facts.resource[0].names.clear(), "names none");
    }
}
