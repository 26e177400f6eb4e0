//! `docs/rules.md` matches the rules in `crates/fleet/rules`. `FARRIER_BLESS=1 cargo test -p
//! farrier-fleet --test reference` regenerates the page.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]

use std::path::Path;

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
        text.push_str(&format!("When: {}.\n\n", rule.describe_condition()));
        text.push_str(&format!("It clears {}.\n\n", rule.describe_clearing()));
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
