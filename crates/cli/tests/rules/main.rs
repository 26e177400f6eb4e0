//! Every rule fires on the case in its data, and no rule fires on a healthy node.
//!
//! A case runs on a simulated node in simulated time. The probe process makes real NVML calls, the
//! collectors really read the host's files and the kernel log, and `farrier simulate inject`
//! injects the faults.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print the reason"
)]

mod fault_table;
mod parity;
mod rule_case;
#[path = "../support/mod.rs"]
mod support;
#[path = "../simulate/test_node.rs"]
#[expect(
    dead_code,
    reason = "shared with the simulator tests; only nodes and faults are used here"
)]
mod test_node;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use farrier_fleet::health::{Change, Rule, Rules};

use rule_case::{Detection, RuleCase};

/// Number of cases that run at the same time. A case mostly waits for its probe.
const PARALLEL_CASES: usize = 4;

#[test]
fn every_rule_fires_on_its_case() {
    let rules = Rules::embedded().unwrap();
    let rules: Vec<&Rule> = rules.iter().collect();
    let only = std::env::var("FARRIER_RULE").ok();
    if let Some(code) = &only {
        assert!(rules.iter().any(|rule| rule.code == *code), "there is no rule `{code}`");
    }
    let (failures, detections) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_CASES {
            scope.spawn(|| {
                while let Some(rule) = rules.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if only.as_ref().is_some_and(|code| *code != rule.code) {
                        continue;
                    }
                    let fired = std::panic::catch_unwind(|| fires(rule));
                    let fired = fired.unwrap_or_else(|_| Err("panicked".to_owned()));
                    match fired {
                        Ok(detection) => {
                            detections.lock().unwrap().insert(rule.code.clone(), detection);
                        }
                        Err(reason) => {
                            failures.lock().unwrap().push(format!("{}: {reason}", rule.code));
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), rules.len(), failures.join("\n"));
    if only.is_none() {
        fault_table::assert_current(&rules, &detections.into_inner().unwrap());
    }
}

fn fires(rule: &Rule) -> Result<Detection, String> {
    let sku = rule.case.sku.as_deref().unwrap_or("H100-SXM5-80GB");
    let efa = rule.case.steps.iter().any(|step| step == "efa");
    let mut case = RuleCase::new(sku, efa);
    let opened = case.run_steps(&rule.case.steps)?;
    let fault_at = case.fault_at();
    let detections = case.end();
    let detection = detections.iter().find(|detection| detection.code == rule.code).cloned();
    let own = opened.iter().find(|change| opened_code(change) == Some(rule.code.as_str()));
    let (Some(detection), Some(own)) = (detection, own) else {
        let opened: BTreeSet<&str> = opened.iter().filter_map(opened_code).collect();
        return Err(format!("the rule did not fire; fired: {opened:?}"));
    };
    let (Some(fault_at), Some(limit_s)) = (fault_at, rule.case.found_within_s) else {
        return Ok(detection);
    };
    let found_s = own.finding().first_seen.duration_since(fault_at).as_secs();
    if (0..=i64::from(limit_s)).contains(&found_s) {
        return Ok(detection);
    }
    Err(format!("found after {found_s} s, and not within {limit_s} s"))
}

fn opened_code(change: &Change) -> Option<&str> {
    match change {
        Change::Opened(finding) => Some(&finding.code),
        Change::Updated(_) | Change::Cleared(_) => None,
    }
}

#[test]
fn idle_hour_opens_no_findings() {
    // The last two are PCIe cards: their NVLinks, if any, are not connected.
    for sku in ["H100-SXM5-80GB", "B200-SXM6-180GB", "A100-SXM4-80GB", "A100-PCIe-80GB", "T4"] {
        assert_no_findings_in_an_hour(sku, false, &[]);
    }
    // EFA is slower than InfiniBand, which is not a fault.
    assert_no_findings_in_an_hour("H100-SXM5-80GB", true, &[]);
}

#[test]
fn training_hour_opens_no_findings() {
    let load = [
        "inject --gpu all process 4242 --name python --memory-mib 60000",
        "inject --gpu all utilisation 98 --memory 40",
        "inject --gpu all power 640",
        "inject --gpu all temperature 66",
        "inject --gpu all activity --sm 0.85 --tensor 0.45 --dram 0.4 --nvlink-tx 60000000000 --nvlink-rx 60000000000",
    ];
    assert_no_findings_in_an_hour("H100-SXM5-80GB", false, &load);
}

fn assert_no_findings_in_an_hour(sku: &str, efa: bool, load: &[&str]) {
    let mut case = RuleCase::new(sku, efa);
    let mut steps: Vec<String> = load.iter().map(|step| (*step).to_owned()).collect();
    steps.push("run 600".to_owned());
    steps.push("check".to_owned());
    steps.push("slow 3000".to_owned());
    let changes = case.run_steps(&steps).unwrap();
    case.end();
    let opened: Vec<_> = changes
        .iter()
        .map(Change::finding)
        .map(|finding| (&finding.code, &finding.subject, &finding.evidence))
        .collect();
    assert!(opened.is_empty(), "{sku}: {opened:#?}");
}
