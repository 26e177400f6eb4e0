//! `docs/rules.md` matches the rules in `crates/fleet/rules`. `FARRIER_BLESS=1 cargo test -p
//! farrier-fleet --test reference` regenerates the page.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::path::Path;

use farrier_fleet::health::engine::describe_clear_condition;
use farrier_fleet::health::rule::{Clause, Limit, Same};
use farrier_fleet::health::{Rule, Rules, Signal};

const BEGIN: &str = "<!-- generated from crates/fleet/rules: do not edit below -->\n";

#[test]
fn the_rules_reference_matches_the_data() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    let current = std::fs::read_to_string(&path).unwrap();
    let introduction = current.split(BEGIN).next().unwrap();
    let expected = format!("{introduction}{BEGIN}\n{}", reference(&Rules::embedded().unwrap()));
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(
        current == expected,
        "docs/rules.md does not match the rules: run with FARRIER_BLESS=1"
    );
}

#[test]
fn rules_that_stop_work_have_a_repair_action() {
    use farrier_fleet::health::{Action, Severity};
    for rule in Rules::embedded().unwrap().iter() {
        let mentions =
            |phrase: &str| rule.text.as_deref().is_some_and(|text| text.contains(phrase));
        let stops_work = rule.severity == Some(Severity::Fatal)
            || rule.severity == Some(Severity::Critical) && mentions("Drain the node");
        if stops_work {
            assert!(rule.action >= Some(Action::ResetGpu), "{}: {:?}", rule.code, rule.action);
        }
    }
}

fn reference(rules: &Rules) -> String {
    let mut text = format!("## The {} rules\n", rules.iter().count());
    for rule in rules.iter() {
        let or_event = |value: Option<String>| value.unwrap_or_else(|| "as the event".to_owned());
        text.push_str(&format!(
            "\n### `{}`\n\n{} · {} · {}\n\n",
            rule.code,
            format!("{:?}", rule.kind).to_lowercase(),
            or_event(rule.severity.map(|severity| severity.to_string())),
            or_event(rule.action.map(|action| action.to_string())),
        ));
        if let Some(rule_text) = &rule.text {
            text.push_str(&format!("{rule_text}\n\n"));
        }
        text.push_str(&format!("When: {}.\n\n", condition(rule)));
        text.push_str(&format!("It clears {}.\n\n", describe_clear_condition(rule)));
        if let Some(seconds) = rule.case.found_within_s {
            text.push_str(&format!("On a simulated node, it opens within {seconds} s.\n\n"));
        }
        if let Some(remedy) = &rule.remedy {
            text.push_str(&format!("Remedy: {remedy}.\n\n"));
        }
        text.push_str(&format!("Source ({}): {}\n", rule.origin.kind, rule.origin.line()));
    }
    let is_set = |rule: &&Rule| rule.case.steps.iter().any(|step| step.starts_with("set "));
    let set: Vec<String> =
        rules.iter().filter(is_set).map(|rule| format!("`{}`", rule.code)).collect();
    text.push_str(&format!(
        "\n## Cases that set a value\n\nEvery rule has a test case that triggers it on a simulated node. The cases of these rules set the value of a \
         signal directly, because the agent measures that value about itself, or because the fault needs a process that \
         cannot be killed. Tests of the agent cover these rules: {}.\n",
        set.join(", ")
    ));
    text.push_str("\n## The signals\n\n| signal | behaviour | meaning |\n|---|---|---|\n");
    for signal in Signal::ALL {
        let behaviour = format!("{:?}", signal.behaviour()).to_lowercase();
        text.push_str(&format!("| `{signal}` | {behaviour} | {} |\n", signal.meaning()));
    }
    text
}

fn condition(rule: &Rule) -> String {
    let mut parts: Vec<String> = rule.when.iter().map(clause).collect();
    if let Some(on) = &rule.on {
        let mut pattern = Vec::new();
        if !on.codes.is_empty() {
            pattern.push(on.codes.join(", "));
        }
        if !on.kinds.is_empty() {
            let kinds: Vec<String> = on.kinds.iter().map(ToString::to_string).collect();
            pattern.push(format!("kernel event of kind {}", kinds.join(", ")));
        }
        if let Some(severity) = on.severity {
            pattern.push(format!("{severity} or worse"));
        }
        if on.within_s > 0 {
            let same = match on.same {
                Same::Code => "of one subject",
                Same::Subject => "of one subject, with any code",
                Same::Unit => "in one unit of one GPU",
                Same::NodeCode => "anywhere on the node",
            };
            pattern.push(format!("{} times in {} s {same}", on.times, on.within_s));
        }
        if on.merge_s > 0 {
            pattern.push(format!("bursts of {} s count once", on.merge_s));
        }
        if on.distinct_subjects > 1 {
            pattern.push(format!("on {} subjects", on.distinct_subjects));
        }
        if on.distinct_boots > 1 {
            pattern.push(format!("in {} boots", on.distinct_boots));
        }
        parts.push(pattern.join(", "));
    }
    if rule.when.is_empty() && rule.on.is_none() {
        parts.push("`farrier check` reports it".to_owned());
    }
    if rule.for_s > 0 {
        parts.push(format!("for {} s", rule.for_s));
    }
    if let Some(other) = &rule.suppressed_by {
        parts.push(format!("not while `{}` is open for `{}`", other.code, other.detail));
    }
    if !rule.models.is_empty() {
        parts.push(format!("on {}", rule.models.join(", ")));
    }
    parts.join("; ")
}

fn clause(clause: &Clause) -> String {
    let measure = clause.measure.describe();
    let measure = if measure.is_empty() { String::new() } else { format!(" ({measure})") };
    let bits = clause.bits.map_or_else(String::new, |bits| format!(" has a bit of {bits:#x}"));
    let limit = match clause.limit {
        Limit::Number(number) => number.to_string(),
        Limit::Signal { signal, times: 1.0 } => format!("`{signal}`"),
        Limit::Signal { signal, times } => format!("{times} x `{signal}`"),
        Limit::Peers { times } => format!("{times} x the median of its peers"),
    };
    let limit = if limit.len() > 24 && limit.starts_with("0.000") {
        let Limit::Number(number) = clause.limit else { return limit };
        format!("{number:e}")
    } else {
        limit
    };
    format!("`{}`{bits}{measure} {} {limit}", clause.signal, clause.comparison.as_str())
}
