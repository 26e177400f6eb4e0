//! `docs/rules.md` says what the rule data says. `FARRIER_BLESS=1 cargo test -p farrier-fleet --test reference`
//! writes it anew.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::path::Path;

use farrier_fleet::health::engine::what_clears;
use farrier_fleet::health::rule::{Clause, Limit, Same};
use farrier_fleet::health::{Rule, Rules, Signal};

const BEGIN: &str = "<!-- generated from crates/fleet/rules: do not edit below -->\n";

#[test]
fn the_reference_says_what_the_data_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    let kept = std::fs::read_to_string(&path).unwrap();
    let written = kept.split(BEGIN).next().unwrap();
    let wanted = format!("{written}{BEGIN}\n{}", reference(&Rules::embedded().unwrap()));
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(kept == wanted, "docs/rules.md is not what the rules say: bless it");
}

#[test]
fn what_ends_work_is_the_action_and_not_only_in_the_words() {
    use farrier_fleet::health::{Action, Severity};
    for rule in Rules::embedded().unwrap().iter() {
        let asks = |word: &str| rule.text.as_deref().is_some_and(|text| text.contains(word));
        let ends = rule.severity == Some(Severity::Fatal)
            || rule.severity == Some(Severity::Critical) && asks("Drain the node");
        if ends {
            assert!(rule.action >= Some(Action::ResetGpu), "{}: {:?}", rule.code, rule.action);
        }
    }
}

fn reference(rules: &Rules) -> String {
    let mut text = format!("## The {} rules\n", rules.iter().count());
    for rule in rules.iter() {
        let or_event = |word: Option<String>| word.unwrap_or_else(|| "as the event".to_owned());
        text.push_str(&format!(
            "\n### `{}`\n\n{} · {} · {}\n\n",
            rule.code,
            format!("{:?}", rule.kind).to_lowercase(),
            or_event(rule.severity.map(|it| it.to_string())),
            or_event(rule.action.map(|it| it.to_string())),
        ));
        if let Some(words) = &rule.text {
            text.push_str(&format!("{words}\n\n"));
        }
        text.push_str(&format!("When: {}.\n\n", condition(rule)));
        text.push_str(&format!("It clears {}.\n\n", what_clears(rule)));
        if let Some(remedy) = &rule.remedy {
            text.push_str(&format!("What helps: {remedy}.\n\n"));
        }
        text.push_str(&format!("Source ({}): {}\n", rule.origin.kind, rule.origin.line()));
    }
    let is_set = |rule: &&Rule| rule.case.steps.iter().any(|step| step.starts_with("set "));
    let set: Vec<String> = rules.iter().filter(is_set).map(|it| format!("`{}`", it.code)).collect();
    text.push_str(&format!(
        "\n## Cases that set a value\n\nEvery rule has a case that shows it fire on a simulated node. In these the case sets the value, because it is a \
         number of the agent's own or needs a process that cannot be killed; tests of the agent drive them: {}.\n",
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
    let mut words: Vec<String> = rule.when.iter().map(clause).collect();
    if let Some(on) = &rule.on {
        let mut what = Vec::new();
        if !on.codes.is_empty() {
            what.push(on.codes.join(", "));
        }
        if !on.kinds.is_empty() {
            let kinds: Vec<String> = on.kinds.iter().map(ToString::to_string).collect();
            what.push(format!("kernel event of kind {}", kinds.join(", ")));
        }
        if let Some(severity) = on.severity {
            what.push(format!("{severity} or worse"));
        }
        if on.within_s > 0 {
            let same = match on.same {
                Same::Code => "of one subject",
                Same::Subject => "of one subject, whichever",
                Same::Unit => "in one unit of one GPU",
                Same::NodeCode => "anywhere on the node",
            };
            what.push(format!("{} times in {} s {same}", on.times, on.within_s));
        }
        if on.merge_s > 0 {
            what.push(format!("bursts of {} s count once", on.merge_s));
        }
        if on.distinct_subjects > 1 {
            what.push(format!("on {} subjects", on.distinct_subjects));
        }
        if on.distinct_boots > 1 {
            what.push(format!("in {} boots", on.distinct_boots));
        }
        words.push(what.join(", "));
    }
    if rule.when.is_empty() && rule.on.is_none() {
        words.push("`farrier check` finds it".to_owned());
    }
    if rule.for_s > 0 {
        words.push(format!("for {} s", rule.for_s));
    }
    if let Some(other) = &rule.told_by {
        words.push(format!("not while `{}` is open for `{}`", other.code, other.detail));
    }
    if !rule.models.is_empty() {
        words.push(format!("on {}", rule.models.join(", ")));
    }
    words.join("; ")
}

fn clause(clause: &Clause) -> String {
    let measure = clause.measure.words();
    let measure = if measure.is_empty() { String::new() } else { format!(" ({measure})") };
    let bits = clause.bits.map_or_else(String::new, |bits| format!(" has one of {bits:#x}"));
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
    format!("`{}`{bits}{measure} {} {limit}", clause.signal, clause.comparison.words())
}
