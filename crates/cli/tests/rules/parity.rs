//! For every fault that can be injected, the agent never reports the node as healthier than
//! `farrier check` does.
//!
//! `verdicts.txt` has a line per fault with the verdicts of both. `FARRIER_BLESS=1` writes the
//! verdicts, but never milder ones than those in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use farrier_fleet::health::{FindingKind, Severity};
use farrier_sim::host::SoftwareFault;
use serde_json::Value;

use crate::PARALLEL_CASES;
use crate::rule_case::RuleCase;
use crate::support::run;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rules/verdicts.txt");

/// Time that the agent has to report what `check` reports at once: two slow readings of NVML.
const LIMIT_S: u32 = 130;

/// Verdicts of `check`, mildest first.
const VERDICTS: [&str; 4] = ["ok", "caveat", "unknown", "blocked"];

/// Options that no case needs: they describe a fault more closely.
const DETAILS: [&str; 12] = [
    "--help",
    "--version",
    "--gpu",
    "--message",
    "--name",
    "--memory-mib",
    "--sm",
    "--command",
    "--cgroup",
    "--count",
    "--level",
    "--wait-channel",
];

/// A step after which the agent has a new session of NVML. An open session keeps working when the
/// driver refuses new ones.
const RESTART: &str = "restart";

/// A line of the table: `fault | check | agent`.
struct Row {
    /// GPU model, if not an H100.
    sku: Option<String>,
    /// Arguments of `simulate inject`, separated by semicolons.
    faults: Vec<String>,
    text: String,
    before: Option<String>,
}

impl Row {
    fn parse(line: &str) -> Self {
        let mut columns = line.split(" | ");
        let text = columns.next().unwrap().trim().to_owned();
        let before = columns.next().and_then(|check| check.split_whitespace().next());
        let before = before.map(str::to_owned);
        let (sku, faults) = match text.split_once(": ") {
            Some((sku, faults)) if !sku.contains(' ') => (Some(sku.to_owned()), faults),
            _ => (None, text.as_str()),
        };
        let faults = faults.split(';').map(|fault| fault.trim().to_owned()).collect();
        Self { sku, faults, text, before }
    }
}

/// What `check` and the agent say about a node.
struct Verdicts {
    check: (String, BTreeSet<String>),
    worst: Option<Severity>,
    findings: BTreeSet<String>,
    is_complete: bool,
}

impl Verdicts {
    /// Why the agent is healthier than `check`, if it is.
    fn healthier(&self) -> Option<&'static str> {
        let worst = self.worst;
        match self.check.0.as_str() {
            "blocked" if worst < Some(Severity::Critical) => Some("not critical"),
            "unknown" if worst < Some(Severity::Critical) && self.is_complete => Some("complete"),
            "caveat" if worst.is_none() => Some("no finding"),
            _ => None,
        }
    }

    fn columns(&self) -> String {
        let (verdict, codes) = &self.check;
        let mut text = format!("{verdict} {}", join(codes)).trim_end().to_owned();
        let worst = self.worst.map_or("healthy".to_owned(), |worst| worst.to_string());
        let gaps = if self.is_complete { "" } else { " (incomplete)" };
        write!(text, " | {worst}{gaps} {}", join(&self.findings)).unwrap();
        text.trim_end().to_owned()
    }
}

fn join(codes: &BTreeSet<String>) -> String {
    codes.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Runs the agent's collectors and rules, and `check`, on a node with the faults.
fn judge(row: &Row) -> Result<Verdicts, String> {
    let mut case = RuleCase::new(row.sku.as_deref().unwrap_or("H100-SXM5-80GB"), false);
    let mut steps = vec!["run 70".to_owned()];
    steps.extend(row.faults.iter().map(|fault| match fault.as_str() {
        RESTART => "reboot".to_owned(),
        fault => format!("inject {fault}"),
    }));
    steps.push(format!("slow {LIMIT_S}"));
    case.run_steps(&steps)?;
    let check = check(&case);
    let faults: Vec<_> =
        case.findings().filter(|finding| finding.kind == FindingKind::Fault).collect();
    let code = |code: &str, detail: &str| match detail {
        "" => code.to_owned(),
        detail => format!("{code}.{detail}"),
    };
    let verdicts = Verdicts {
        check,
        worst: faults.iter().map(|finding| finding.severity).max(),
        findings: faults.iter().map(|finding| code(&finding.code, &finding.detail)).collect(),
        is_complete: case.has_full_coverage(),
    };
    case.end();
    Ok(verdicts)
}

/// The verdict of `farrier check` and the items that are not ok.
fn check(case: &RuleCase) -> (String, BTreeSet<String>) {
    let (root, library) = case.node_paths();
    let output = run(&[
        "check",
        "--root",
        root.to_str().unwrap(),
        "--nvml",
        library.to_str().unwrap(),
        "--nvml-deadline",
        "5",
        "--on",
        "2026-11-15",
        "--output",
        "json",
    ]);
    let report: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|err| panic!("{err}: {}{}", output.stdout, output.stderr));
    let items = report["items"].as_array().unwrap().iter();
    let codes = items
        .filter(|item| item["verdict"] != "ok")
        .map(|item| item["code"].as_str().unwrap().to_owned());
    (report["verdict"].as_str().unwrap().to_owned(), codes.collect())
}

#[test]
fn agent_is_never_healthier_than_check() {
    let table = fs::read_to_string(TABLE).unwrap();
    let rows: Vec<(usize, Row)> = table
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| (number, Row::parse(line)))
        .collect();
    let only = std::env::var("FARRIER_FAULT").ok();
    let (failures, written) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::new()));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_CASES {
            scope.spawn(|| {
                while let Some((number, row)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if only.as_ref().is_some_and(|only| !row.text.contains(only.as_str())) {
                        continue;
                    }
                    match judge(row) {
                        Ok(verdicts) => {
                            let line = format!("{} | {}", row.text, verdicts.columns());
                            let rank = |verdict: &str| VERDICTS.iter().position(|v| *v == verdict);
                            let is_milder = row
                                .before
                                .as_deref()
                                .is_some_and(|before| rank(&verdicts.check.0) < rank(before));
                            if is_milder {
                                let text = format!("{line}: `check` was {:?}", row.before);
                                failures.lock().unwrap().push(text);
                            }
                            if let Some(why) = verdicts.healthier() {
                                failures.lock().unwrap().push(format!("{line}: agent {why}"));
                            }
                            written.lock().unwrap().insert(*number, line);
                        }
                        Err(err) => failures.lock().unwrap().push(format!("{}: {err}", row.text)),
                    }
                }
            });
        }
    });
    let (failures, written) = (failures.into_inner().unwrap(), written.into_inner().unwrap());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let now: String = table
        .lines()
        .enumerate()
        .map(|(number, line)| written.get(&number).map_or(line, String::as_str).to_owned() + "\n")
        .collect();
    if std::env::var_os("FARRIER_BLESS").is_some() {
        fs::write(Path::new(TABLE), now).unwrap();
        return;
    }
    let changed: Vec<&str> = now.lines().filter(|line| !table.contains(line)).collect();
    assert!(changed.is_empty(), "FARRIER_BLESS=1 writes the table:\n{}", changed.join("\n"));
}

/// Every command and every option of `simulate inject` is in the table.
#[test]
fn every_injectable_fault_has_a_verdict() {
    let table = fs::read_to_string(TABLE).unwrap();
    let faults: Vec<String> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| Row::parse(line).faults)
        .collect();
    let mut missing = Vec::new();
    for command in commands(&run(&["simulate", "inject", "--help"]).stdout) {
        let own: Vec<Vec<&str>> = faults
            .iter()
            .map(|fault| fault.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.contains(&command.as_str()))
            .collect();
        if own.is_empty() {
            missing.push(command.clone());
        }
        let help = run(&["simulate", "inject", "x", &command, "--help"]).stdout;
        for option in options(&help) {
            let is_used = own.iter().any(|words| words.contains(&option.as_str()));
            if !is_used && !DETAILS.contains(&option.as_str()) {
                missing.push(format!("{command} {option}"));
            }
        }
    }
    for (_, name, _) in SoftwareFault::ALL {
        if !faults.iter().any(|fault| fault.ends_with(name)) {
            missing.push(format!("software {name}"));
        }
    }
    assert!(missing.is_empty(), "not in {TABLE}: {missing:?}");
}

/// The names in the list of commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The long options of a help text.
fn options(help: &str) -> BTreeSet<String> {
    let starts = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let names = starts.flat_map(str::split_whitespace).filter(|word| word.starts_with("--"));
    names.map(|name| name.trim_end_matches(',').to_owned()).collect()
}
