//! The rule files, checked with promtool, and the copy of the rules for the test with faults.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;

use crate::prometheus::is_installed;

fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(deployed(name)).unwrap()
}

/// Thresholds that depend on the machine, or that no test can wait for, and what replaces them. Each
/// must occur once in the rules.
const THRESHOLDS: [(&str, &str); 4] = [
    // The log of a test grows by kilobytes, and the disk has gigabytes.
    ("deriv1h * 7 * 86400 >", "deriv1h * 1e12 >"),
    // Ten minutes, and one minute.
    ("notification_oldest_seconds > 600", "notification_oldest_seconds > 1"),
    ("notification_log_lag_seconds > 60", "notification_log_lag_seconds > 2"),
    // A day out of service.
    ("repairing|verifying\"} > 86400", "repairing|verifying\"} > 1"),
];

/// The rules with short times: alerts fire at the first evaluation at which their condition is
/// true, and rates are over ten seconds.
pub(crate) fn rules_with_short_times() -> String {
    let mut rules = text("farrier.rules.yml");
    for (original, replacement) in THRESHOLDS {
        assert_eq!(rules.matches(original).count(), 1, "{original}");
        rules = rules.replace(original, replacement);
    }
    let for_line = Regex::new("(?m)^( +for:) .*$").unwrap();
    let range = Regex::new(r"\[\d+[mh]\]").unwrap();
    let rules = for_line.replace_all(&rules, "$1 0s");
    range.replace_all(&rules, "[10s]").into_owned()
}

/// The names after a key.
fn names(text: &str, key: &str) -> BTreeSet<String> {
    let name = |rest: &str| rest.split([',', '\n', ' ']).next().unwrap().to_owned();
    text.split(key).skip(1).map(name).collect()
}

/// The names of all alerts in the rules.
pub(crate) fn alerts() -> BTreeSet<String> {
    names(&text("farrier.rules.yml"), "- alert: ")
}

fn promtool(args: &[&str]) {
    let mut command = Command::new("promtool");
    let output = command.args(args).current_dir(deployed("")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {args:?}: {text}");
}

#[test]
fn promtool_accepts_the_rules_and_the_configuration() {
    if !is_installed() {
        return;
    }
    promtool(&["check", "rules", "--lint=all", "--lint-fatal", "farrier.rules.yml"]);
    promtool(&["check", "config", "--syntax-only", "prometheus.yml"]);
}

/// The unit tests have the real times, which the test with faults cannot wait for.
#[test]
fn every_alert_passes_its_unit_test() {
    let tested = names(&text("farrier.rules.test.yml"), "alertname: ");
    assert_eq!(tested, alerts());
    if is_installed() {
        promtool(&["test", "rules", "farrier.rules.test.yml"]);
    }
}

/// `monitoring.md` has a section for each alert, except for those whose runbook is the page of the
/// finding.
#[test]
fn every_alert_has_annotations_and_a_runbook() {
    let rules = text("farrier.rules.yml");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring.md");
    let page = fs::read_to_string(page).unwrap();
    for alert in rules.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        for key in ["severity: ", "summary: ", "description: ", "runbook_url: "] {
            assert!(alert.contains(key), "{name} has no {key}");
        }
        assert!(page.contains(&format!("### {name}\n")), "docs/monitoring.md lacks {name}");
        let anchor = format!("/monitoring.md#{}\"", name.to_lowercase());
        let is_generic = alert.contains("/runbooks/{{ $labels.code }}.md\"")
            || alert.contains("/runbooks/xid.{{ $labels.xid }}.md\"");
        assert!(alert.contains(&anchor) || is_generic, "{name} has no runbook");
    }
}
