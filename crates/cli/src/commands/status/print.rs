//! The state of a node for people.

use std::collections::BTreeMap;

use farrier_agent::brain::Held;
use farrier_agent::status::{FindingStatus, GpuStatus, Status, Verdict};
use farrier_facts::node::Reading;
use farrier_fleet::health::finding::ActionBy;
use farrier_fleet::health::{Evidence, Finding, FindingKind, Severity, Subject};
use jiff::Timestamp;

use super::jobs;
use crate::printer::{Printer, Tone};

/// The width of the longest severity and two spaces.
const INDENT: usize = 10;

/// Of a finding's evidence the newest that are shown.
const EVIDENCE_SHOWN: usize = 3;

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    headline(status, printer)?;
    gpus(status, printer)?;
    let names = names(status);
    jobs::print(&status.jobs, &names, printer)?;
    let (faults, advice): (Vec<_>, Vec<_>) =
        status.findings.iter().partition(|it| it.finding.kind == FindingKind::Fault);
    for finding in faults {
        printer.line("")?;
        print_finding(finding, &names, printer)?;
    }
    if !advice.is_empty() {
        heading("Advice", printer)?;
        for FindingStatus { finding, .. } in advice {
            let text = format!("{}: {}", subject(&finding.subject, &names), finding.text);
            printer.paragraph("  -", 4, &text)?;
        }
    }
    not_seen(status, printer)?;
    cost(status, printer)
}

fn headline(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let tone = match status.verdict {
        Verdict::Healthy => Tone::Good,
        Verdict::Degraded => Tone::Caution,
        Verdict::Faulty | Verdict::Unknown => Tone::Bad,
    };
    let verdict = printer.toned(tone, &status.verdict.name().to_uppercase());
    let at = status.at.map(second).unwrap_or_default();
    if status.agent.is_none() {
        return Ok(printer.line(&format!("{verdict}: agent is not running, state as of {at}"))?);
    }
    let node = status.node.as_deref().unwrap_or("this node");
    let driver =
        status.driver.as_ref().map(|driver| format!(", driver {driver}")).unwrap_or_default();
    printer.line(&format!("{verdict}: {node}{driver}, {at}"))?;
    Ok(())
}

fn gpus(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    if status.gpus.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let rows: Vec<Vec<String>> = status.gpus.iter().map(row).collect();
    let headings = ["GPU", "name", "°C", "power", "busy", "memory", "held by", "worst"];
    printer.table(&headings, &rows)?;
    Ok(())
}

fn row(gpu: &GpuStatus) -> Vec<String> {
    const GIB: f64 = 1_073_741_824.0;
    let limit = number(&gpu.power_limit_w, 1.0, "");
    let total = number(&gpu.memory_total_bytes, 1.0 / GIB, "");
    vec![
        gpu.identity.index.to_string(),
        gpu.identity.name.clone(),
        number(&gpu.temperature_c, 1.0, ""),
        format!("{}/{limit} W", number(&gpu.power_w, 1.0, "")),
        number(&gpu.utilisation_ratio, 100.0, " %"),
        format!("{}/{total} GiB", number(&gpu.memory_used_bytes, 1.0 / GIB, "")),
        holders(gpu.processes.as_deref()),
        gpu.worst.map_or_else(|| "-".to_owned(), |worst| worst.to_string()),
    ]
}

/// A question mark is a value that nobody knows, a dash one that the part does not have.
fn number(reading: &Reading<f64>, factor: f64, unit: &str) -> String {
    match reading {
        Reading::Value(value) => format!("{:.0}{unit}", value * factor),
        Reading::Absent => "-".to_owned(),
        Reading::Unreadable(_) => "?".to_owned(),
    }
}

fn holders(processes: Option<&[Held]>) -> String {
    let Some(processes) = processes else { return "?".to_owned() };
    if processes.is_empty() {
        return "-".to_owned();
    }
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for held in processes {
        let who = match (&held.kind, &held.name) {
            (Some(kind), Some(name)) => format!("{} {name}", kind.replace("slurm-job", "job")),
            _ => format!("pid {}", held.pid),
        };
        *counts.entry(who).or_default() += 1;
    }
    let words: Vec<String> = counts
        .into_iter()
        .map(|(who, count)| if count > 1 { format!("{who} ({count} processes)") } else { who })
        .collect();
    words.join(", ")
}

fn print_finding(
    shown: &FindingStatus,
    names: &BTreeMap<String, String>,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let Finding { code, detail, severity, text, evidence, count, clears, .. } = &shown.finding;
    let detail = if detail.is_empty() { String::new() } else { format!(" {detail}") };
    let about = subject(&shown.finding.subject, names);
    let times = if *count == 1 { String::new() } else { format!(", {count} times") };
    let since = second(shown.finding.first_seen);
    let not_kept = if shown.durable { "" } else { " (not on disk yet)" };
    let head = format!("{about}: {code}{detail}, since {since}{times}{not_kept}");
    printer.paragraph(&severity_word(*severity), INDENT, &head)?;
    printer.paragraph("", INDENT, text)?;
    let by = match shown.finding.action_by {
        ActionBy::Rule => "",
        ActionBy::Driver => " (the driver itself says so)",
    };
    let action = &shown.finding.action;
    printer.paragraph("  do", INDENT, &format!("{action}: {}{by}", action.asks()))?;
    for evidence in evidence.iter().rev().take(EVIDENCE_SHOWN) {
        printer.paragraph("  seen", INDENT, &evidence_text(evidence, text))?;
    }
    if !clears.is_empty() {
        printer.paragraph("  clears", INDENT, clears)?;
    }
    Ok(())
}

fn severity_word(severity: Severity) -> String {
    severity.to_string()
}

fn evidence_text(evidence: &Evidence, said: &str) -> String {
    // What the finding says already is not said again.
    let told = |who: &str, text: &str, at| {
        let text = if text == said { String::new() } else { format!(": {text}") };
        format!("{who}, {}{text}", second(at))
    };
    match evidence {
        Evidence::Signal { signal, measure, value, limit, at } => {
            let measure = if measure.is_empty() { String::new() } else { format!(" ({measure})") };
            let value = match value {
                Reading::Value(value) => format!("{}", round(*value)),
                Reading::Absent => "absent".to_owned(),
                Reading::Unreadable(why) => format!("not readable: {why}"),
            };
            format!("{signal}{measure} is {value}, held against {}, {}", round(*limit), second(*at))
        }
        Evidence::Kernel { text, at } => told("kernel log", text, *at),
        Evidence::Check { text, at } => told("check", text, *at),
    }
}

/// Three digits after the point, and no tail of a binary fraction.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Some names, and how many more there are.
fn named(codes: &[&str]) -> String {
    const SHOWN: usize = 3;
    let first = codes[..codes.len().min(SHOWN)].join(", ");
    match codes.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first} and {more} more rules (--output json lists them)"),
    }
}

fn not_seen(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let mut lines: Vec<String> = status.not_seen.iter().map(|blind| blind.why.clone()).collect();
    for collector in status.collectors.iter().filter(|it| it.age_s.is_none()) {
        lines.push(format!("{} has not looked yet", collector.name));
    }
    if status.agent.is_some() && status.not_checked.is_none() {
        lines.push("the node's packages and files have not been checked yet".to_owned());
    }
    for unseen in status.not_checked.iter().flatten() {
        lines.push(format!("{} [{}]", unseen.why, unseen.code));
    }
    if status.journal.damaged_lines > 0 {
        let count = status.journal.damaged_lines;
        lines.push(format!("{count} lines of the journal are damaged: what they said is lost"));
    }
    // One cause blinds many rules: it is said once.
    let mut causes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (code, blind) in &status.rules_blind {
        let why = blind.why.split_once(": ").map_or(blind.why.as_str(), |(_, why)| why);
        causes.entry(why).or_default().push(code);
    }
    for (why, codes) in causes {
        lines.push(format!("{why}: {} sees nothing", named(&codes)));
    }
    if !status.rules_early.is_empty() {
        let codes: Vec<&str> = status.rules_early.keys().map(String::as_str).collect();
        lines.push(format!("{}: the window is not full yet", named(&codes)));
    }
    if !status.not_supported.is_empty() {
        let signals: Vec<&str> = status.not_supported.keys().map(String::as_str).collect();
        lines.push(format!("signals that parts of this node do not have: {}", signals.join(", ")));
    }
    if lines.is_empty() {
        return Ok(());
    }
    heading("Not seen", printer)?;
    for line in lines {
        printer.paragraph("  -", 4, &line)?;
    }
    Ok(())
}

fn cost(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let Some(agent) = &status.agent else { return Ok(()) };
    printer.line("")?;
    let memory =
        agent.rss_bytes.map(|bytes| format!(", {} MB", bytes / 1_000_000)).unwrap_or_default();
    let line = format!(
        "agent {} (pid {}) since {}: {:.2} % of a core{memory}",
        agent.version,
        agent.pid,
        second(agent.started),
        agent.cpu_ratio * 100.0
    );
    Ok(printer.line(&line)?)
}

fn heading(text: &str, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let text = printer.toned(Tone::Strong, text);
    Ok(printer.line(&text)?)
}

/// Short names of GPUs, by UUID.
fn names(status: &Status) -> BTreeMap<String, String> {
    let gpus = status.gpus.iter().map(|gpu| &gpu.identity);
    gpus.map(|identity| (identity.uuid.0.clone(), format!("GPU {}", identity.index))).collect()
}

fn subject(subject: &Subject, names: &BTreeMap<String, String>) -> String {
    let gpu = subject.gpu().map(|gpu| names.get(&gpu.0).cloned().unwrap_or_else(|| gpu.0.clone()));
    match (subject, gpu) {
        (Subject::Link { link, .. }, Some(gpu)) => format!("{gpu} link {link}"),
        (_, Some(gpu)) => gpu,
        (other, None) => other.to_string(),
    }
}

/// A moment to the second, in UTC.
pub(super) fn second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).map_or_else(|_| at.to_string(), |at| at.to_string())
}
