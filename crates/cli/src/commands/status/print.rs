//! Prints the status of a node for people.

use std::collections::BTreeMap;

use farrier_agent::monitor::OwnedGpuProcess;
use farrier_agent::status::{GpuStatus, NodeVerdict, Status};
use farrier_facts::node::Reading;
use farrier_fleet::health::{Action, FindingKind, Severity, Subject};
use jiff::Timestamp;

use super::{coverage, faults, hooks, jobs, server};
use crate::printer::{Printer, Tone};

pub(super) fn print(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    headline(status, printer)?;
    gpus(status, printer)?;
    jobs::print(&status.jobs, &names(status), printer)?;
    faults::print(status, printer)?;
    advice(status, printer)?;
    coverage::print(status, printer)?;
    server::print(status, printer)?;
    hooks::print(status, printer)?;
    cost(status, printer)
}

/// Prints one line, for a loop over many nodes.
pub(super) fn brief(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let verdict = verdict(status, printer);
    let node = match (&status.node, &status.agent) {
        (Some(node), Some(_)) => node.clone(),
        (None, Some(_)) => "this node".to_owned(),
        (_, None) => not_running(status),
    };
    let mut parts = vec![node];
    let mut counts: BTreeMap<Severity, u32> = BTreeMap::new();
    for finding in status.findings.iter().map(|entry| &entry.finding) {
        if finding.kind == FindingKind::Fault {
            *counts.entry(finding.severity).or_default() += 1;
        }
    }
    let counts: Vec<String> =
        counts.iter().rev().map(|(severity, count)| format!("{count} {severity}")).collect();
    parts.push(match counts.as_slice() {
        [] => "no fault".to_owned(),
        counts => format!("faults: {}", counts.join(", ")),
    });
    let gaps = coverage::gap_count(status);
    if gaps > 0 {
        parts.push(format!("coverage gaps: {gaps}"));
    }
    if let Some(group) =
        status.groups.first().filter(|group| group.first_action.action != Action::Ignore)
    {
        parts.push(format!("do first: {} ({})", group.first_action.action, group.name));
    }
    Ok(printer.line(&format!("{verdict}: {}", parts.join("; ")))?)
}

fn not_running(status: &Status) -> String {
    let at = status.at.map(second).unwrap_or_default();
    format!("agent is not running, its journal ends at {at}")
}

fn verdict(status: &Status, printer: &Printer) -> String {
    let tone = match status.verdict {
        NodeVerdict::Healthy => Tone::Good,
        NodeVerdict::Degraded => Tone::Caution,
        NodeVerdict::Faulty | NodeVerdict::Unknown => Tone::Bad,
    };
    printer.toned(tone, &status.verdict.name().to_uppercase())
}

fn advice(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let names = names(status);
    let findings = status.findings.iter().map(|entry| &entry.finding);
    let advice: Vec<_> = findings.filter(|finding| finding.kind == FindingKind::Advice).collect();
    if !advice.is_empty() {
        heading("Advice", printer)?;
    }
    for finding in advice {
        let text = format!("{}: {}", subject(&finding.subject, &names), finding.text);
        printer.paragraph("  -", 4, &text)?;
    }
    Ok(())
}

fn headline(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    let verdict = verdict(status, printer);
    if status.agent.is_none() {
        return Ok(printer.line(&format!("{verdict}: {}", not_running(status)))?);
    }
    let at = status.at.map(second).unwrap_or_default();
    let node = status.node.as_deref().unwrap_or("this node");
    let driver = match (&status.driver, status.driver_loaded) {
        (_, Some(false)) => ", no driver loaded".to_owned(),
        (Some(driver), _) => format!(", driver {driver}"),
        (None, _) => String::new(),
    };
    printer.line(&format!("{verdict}: {node}{driver}, {at}"))?;
    Ok(())
}

fn gpus(status: &Status, printer: &mut Printer) -> anyhow::Result<()> {
    if status.gpus.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    if status.agent.is_none() {
        // Without an agent, there are only the identities of the GPUs, and no readings.
        let rows: Vec<Vec<String>> = status.gpus.iter().map(identity_row).collect();
        return Ok(printer.table(&["GPU", "name", "PCI", "UUID", "worst"], &rows)?);
    }
    let rows: Vec<Vec<String>> = status.gpus.iter().map(row).collect();
    let headings = ["GPU", "name", "PCI", "°C", "power", "util", "memory", "used by", "worst"];
    Ok(printer.table(&headings, &rows)?)
}

fn identity_row(gpu: &GpuStatus) -> Vec<String> {
    let identity = &gpu.identity;
    vec![
        identity.index.to_string(),
        identity.name.clone().unwrap_or_else(|| "?".to_owned()),
        identity.pci.clone().unwrap_or_else(|| "?".to_owned()),
        identity.uuid.0.clone(),
        worst(gpu),
    ]
}

/// The worst severity. `?` if there is no reading of the GPU.
fn worst(gpu: &GpuStatus) -> String {
    let unread = [&gpu.temperature_c, &gpu.power_w, &gpu.memory_total_bytes]
        .into_iter()
        .all(|reading| reading.why_unreadable().is_some());
    let no_fault = if unread { "?" } else { "-" };
    gpu.worst.map_or_else(|| no_fault.to_owned(), |worst| worst.to_string())
}

fn row(gpu: &GpuStatus) -> Vec<String> {
    const GIB: f64 = 1_073_741_824.0;
    let limit = number(&gpu.power_limit_w, 1.0, "");
    let total = number(&gpu.memory_total_bytes, 1.0 / GIB, "");
    vec![
        gpu.identity.index.to_string(),
        gpu.identity.name.clone().unwrap_or_else(|| "?".to_owned()),
        gpu.identity.pci.clone().unwrap_or_else(|| "?".to_owned()),
        number(&gpu.temperature_c, 1.0, ""),
        format!("{}/{limit} W", number(&gpu.power_w, 1.0, "")),
        number(&gpu.utilisation_ratio, 100.0, " %"),
        format!("{}/{total} GiB", number(&gpu.memory_used_bytes, 1.0 / GIB, "")),
        users(gpu.processes.as_deref()),
        worst(gpu),
    ]
}

/// Prints `?` for an unreadable value, and `-` for a value that the hardware does not have.
fn number(reading: &Reading<f64>, factor: f64, unit: &str) -> String {
    match reading {
        Reading::Value(value) => format!("{:.0}{unit}", value * factor),
        Reading::Absent => "-".to_owned(),
        Reading::Unreadable(_) => "?".to_owned(),
    }
}

fn users(processes: Option<&[OwnedGpuProcess]>) -> String {
    let Some(processes) = processes else { return "?".to_owned() };
    if processes.is_empty() {
        return "-".to_owned();
    }
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for process in processes {
        let owner = match (&process.kind, &process.name) {
            (Some(kind), Some(name)) => format!("{} {name}", kind.replace("slurm-job", "job")),
            _ => format!("pid {}", process.pid),
        };
        *counts.entry(owner).or_default() += 1;
    }
    let owners: Vec<String> = counts
        .into_iter()
        .map(
            |(owner, count)| {
                if count > 1 { format!("{owner} ({count} processes)") } else { owner }
            },
        )
        .collect();
    owners.join(", ")
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

pub(super) fn heading(text: &str, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let text = printer.toned(Tone::Strong, text);
    Ok(printer.line(&text)?)
}

/// `GPU <index>` by UUID.
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

/// A timestamp to the second, in UTC.
pub(super) fn second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).map_or_else(|_| at.to_string(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use farrier_facts::node::ReadError;
    use farrier_fleet::health::{GpuIdentity, GpuUuid};

    use super::*;

    #[test]
    fn the_worst_severity_of_an_unreadable_gpu_is_unknown() {
        let identity = GpuIdentity {
            uuid: GpuUuid("GPU-1".to_owned()),
            index: 0,
            minor: None,
            pci: None,
            name: None,
        };
        let gpu = |reading: &Reading<f64>| GpuStatus {
            identity: identity.clone(),
            temperature_c: reading.clone(),
            power_w: reading.clone(),
            power_limit_w: reading.clone(),
            utilisation_ratio: reading.clone(),
            memory_used_bytes: reading.clone(),
            memory_total_bytes: reading.clone(),
            processes: None,
            worst: None,
            readings: std::collections::BTreeMap::new(),
            stale: std::collections::BTreeMap::new(),
            links_up: 0,
            links_down: 0,
            links_bytes_per_s: None,
        };
        assert_eq!(worst(&gpu(&Reading::Unreadable(ReadError::unavailable("it hangs")))), "?");
        assert_eq!(worst(&gpu(&Reading::Value(40.0))), "-");
        let lost = GpuStatus { worst: Some(Severity::Fatal), ..gpu(&Reading::Absent) };
        assert_eq!(worst(&lost), "fatal");
    }
}
