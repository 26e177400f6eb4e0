//! `docs/faults.md`: each rule with the fault that its case injects, and the time to the finding.
//! `FARRIER_BLESS=1 cargo test -p farrier --test rules` regenerates the page.

use std::collections::BTreeMap;
use std::path::Path;

use farrier_fleet::health::Rule;

use crate::rule_case::Detection;

const INTRODUCTION: &str = "\
# Faults and detections

Every rule has a case. Most cases inject a fault into a simulated node with
`farrier simulate inject DIR ...`. For signals that the agent measures about itself, the case sets
the signal directly; the table then says *a value of the agent itself*, and 0 seconds. The agent's
collectors and rules run on that node, with real NVML calls and in simulated time. The table has the
last injection of each case and the time from it until the finding opens.

Some rules need a history: repeats, or a time before the fault. Their cases first let the node run,
or inject faults several times. The table does not show these earlier steps, and the seconds do not
include them.

The page is generated: `FARRIER_BLESS=1 cargo test -p farrier --test rules`. What to do about each
finding is in the [runbooks](runbooks/README.md).

| injected | finding | severity | seconds | action |
|---|---|---|---|---|
";

/// Compares the page with the detections of this run, or writes it.
pub(crate) fn assert_current(rules: &[&Rule], detections: &BTreeMap<String, Detection>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    let expected = page(rules, detections);
    if std::env::var_os("FARRIER_BLESS").is_some() {
        std::fs::write(&path, expected).unwrap();
        return;
    }
    let current = std::fs::read_to_string(&path).unwrap();
    let current: Vec<&str> = current.lines().collect();
    for (line, text) in expected.lines().enumerate() {
        assert_eq!(current.get(line), Some(&text), "docs/faults.md: run with FARRIER_BLESS=1");
    }
    assert_eq!(current.len(), expected.lines().count(), "docs/faults.md: run with FARRIER_BLESS=1");
}

fn page(rules: &[&Rule], detections: &BTreeMap<String, Detection>) -> String {
    let mut page = INTRODUCTION.to_owned();
    for rule in rules {
        let Detection { code, severity, action, injection, after_s } = &detections[&rule.code];
        let injection = match injection {
            Some(arguments) => format!("`{}`", arguments.replace('|', "\\|")),
            None => "a value of the agent itself".to_owned(),
        };
        page.push_str(&format!(
            "| {injection} | [`{code}`](runbooks/{code}.md) | {severity} | {after_s} | {action} |\n"
        ));
    }
    page
}
