//! `--once`: prints one sample, for pipes and scripts.

use farrier_fleet::health::Signal;
use jiff::Timestamp;

use super::draw::format;
use super::freshness::{STALE_MARK, Shown};
use super::history::Metric;
use super::model::FleetSample;
use super::sample::{FindingGroup, GpuSample, NodeSample, PendingCall, SourceOutage};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure;
use crate::printer::{Printer, Tone};

/// Prints a node. The exit code is 1 if the source does not answer, because the output then says
/// nothing about the node.
pub(super) fn node(
    node: NodeSample,
    output: Output,
    now: Timestamp,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let outcome = Outcome::finding_if(node.outage.is_some());
    let node = &node.with_stale_values(now);
    if output == Output::Json {
        printer.json(node)?;
        return Ok(outcome);
    }
    let name = node.node.as_deref().unwrap_or("this node");
    let driver =
        node.driver.as_ref().map(|driver| format!(", driver {driver}")).unwrap_or_default();
    printer.line(&format!("{name}{driver}, {}, {:.0}", node.gpu_count(), node.at))?;
    if let Some(PendingCall { since, call: Some(call), .. }) = &node.pending_call {
        printer.line(&format!("waiting since {since:.0}: {call} has not returned yet"))?;
    }
    if let Some(outage) = &node.outage {
        let word = printer.toned(Tone::Bad, "no answer");
        printer.line(&format!("{word} since {:.0}: {}", outage.since, outage.reason))?;
        if let Some(hint) = &outage.hint {
            printer.line(&format!("try: {hint}"))?;
        }
    }
    for gap in &node.coverage_gaps {
        let label = printer.toned(Tone::Caution, "coverage gap");
        printer.line(&format!("{label}: {gap}"))?;
    }
    if node.gpus.is_empty() && node.outage.is_none() {
        printer.line("no NVIDIA GPU found")?;
    }
    if !node.gpus.is_empty() {
        gpus(node, now, printer)?;
    }
    processes(node, printer)?;
    match &node.findings {
        None => {}
        Some(findings) if findings.is_empty() => {
            printer.line("")?;
            printer.line("findings: none")?;
        }
        Some(findings) => {
            printer.line("")?;
            for FindingGroup { lead, severity, codes, .. } in FindingGroup::group(findings) {
                let severity = printer.severity(severity);
                let text = format!("{} → {}: {} [{codes}]", lead.subject, lead.action, lead.text);
                printer.paragraph(&severity, 9, &text)?;
            }
        }
    }
    Ok(outcome)
}

fn gpus(node: &NodeSample, now: Timestamp, printer: &mut Printer) -> anyhow::Result<()> {
    let headings =
        ["GPU", "name", "°C", "power", "SM", "memory", "NVLink", "PCIe", "SM MHz", "limited by"];
    let rows: Vec<Vec<String>> = node.gpus.iter().map(|gpu| row(gpu, now)).collect();
    printer.line("")?;
    printer.table(&headings, &rows)?;
    let limited = node.gpus.iter().filter(|gpu| gpu.limit.kind.needs_attention());
    for gpu in limited {
        printer.line(&format!("GPU {}: {}", gpu.identity.index, gpu.limit.text))?;
    }
    for gpu in &node.gpus {
        if let Some(age) = gpu.stale.values().map(|stale| stale.age_s).max() {
            let label = printer.toned(Tone::Caution, "stale");
            let (index, age) = (gpu.identity.index, format::duration(age));
            let text =
                format!("{label}: values of GPU {index} marked {STALE_MARK} are up to {age} old");
            printer.line(&text)?;
        }
    }
    Ok(())
}

fn row(gpu: &GpuSample, now: Timestamp) -> Vec<String> {
    let reading = |signal| gpu.reading(signal);
    let marked = |shown: Shown, text: String| match gpu.stale_age(shown, now) {
        Some(_) => format!("{STALE_MARK}{text}"),
        None => text,
    };
    let metric = |metric: Metric, text| marked(metric.shown(gpu), text);
    vec![
        gpu.identity.index.to_string(),
        gpu.identity.name.clone().unwrap_or_else(|| "?".to_owned()),
        marked(
            Shown::Signals(&[Signal::GpuTemperature]),
            format::number(reading(Signal::GpuTemperature), 1.0, ""),
        ),
        metric(
            Metric::Power,
            format::power(reading(Signal::GpuPower), reading(Signal::GpuPowerLimit)),
        ),
        metric(Metric::Busy, format::percent(gpu.busy())),
        metric(
            Metric::Memory,
            format::of_total(reading(Signal::GpuMemoryUsed), reading(Signal::GpuMemoryTotal)),
        ),
        metric(Metric::Nvlink, format::rate(&gpu.nvlink())),
        metric(Metric::Pcie, format::rate(&gpu.pcie())),
        marked(
            Shown::Signals(&[Signal::GpuClockSm]),
            format::number(reading(Signal::GpuClockSm), 1.0, ""),
        ),
        marked(gpu.shown_as_limit(), gpu.limit.kind.label().to_owned()),
    ]
}

fn processes(node: &NodeSample, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let Some(processes) = &node.processes else {
        return Ok(printer.line("processes: unknown")?);
    };
    if let Some(stale) = node.processes_stale {
        let label = printer.toned(Tone::Caution, "stale");
        let age = format::duration(stale.age_s);
        printer.line(&format!("{label}: the list of processes is {age} old"))?;
    }
    if processes.is_empty() {
        return Ok(printer.line("no process uses a GPU")?);
    }
    let unknown = || "?".to_owned();
    let rows: Vec<Vec<String>> = processes
        .iter()
        .map(|process| {
            vec![
                node.gpu_name(&process.gpu),
                process.pid.to_string(),
                process.user.clone().unwrap_or_else(unknown),
                process.job.clone().unwrap_or_else(|| "-".to_owned()),
                format::memory(process.memory_bytes),
                process.command.clone().unwrap_or_else(unknown),
            ]
        })
        .collect();
    Ok(printer.table(&["GPU", "PID", "user", "job", "memory", "command"], &rows)?)
}

/// Prints that the server does not answer. No node state is known then.
pub(super) fn unavailable_fleet(
    url: &str,
    outage: &SourceOutage,
    output: Output,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    // JSON output has one line per node, and no node is known.
    if output == Output::Json {
        failure::warn(&anyhow::anyhow!("no answer from `{url}`: {}", outage.reason));
        return Ok(Outcome::Finding);
    }
    let word = printer.toned(Tone::Bad, "no answer");
    printer.line(&format!("{word} from `{url}`: {}", outage.reason))?;
    if let Some(hint) = &outage.hint {
        printer.line(&format!("try: {hint}"))?;
    }
    Ok(Outcome::Finding)
}

pub(super) fn fleet(
    fleet: &FleetSample,
    output: Output,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let out = fleet.nodes.iter().filter(|node| !node.phase.in_service()).count();
    let outcome = Outcome::finding_if(out > 0);
    if output == Output::Json {
        for node in &fleet.nodes {
            printer.json_line(node)?;
        }
        return Ok(outcome);
    }
    let rows: Vec<Vec<String>> = fleet
        .nodes
        .iter()
        .map(|node| {
            let findings = node.worst.map(|worst| format!("{} ({worst})", node.findings));
            vec![
                node.node.to_string(),
                node.location.pool.to_string(),
                node.phase.to_string(),
                node.gpus.map_or_else(|| "?".to_owned(), |count| count.to_string()),
                findings.unwrap_or_else(|| "-".to_owned()),
                node.reason.text.clone(),
            ]
        })
        .collect();
    printer.table(&["node", "pool", "phase", "GPUs", "findings", "reason"], &rows)?;
    let more = if fleet.has_more { "more than " } else { "" };
    printer.line("")?;
    printer.line(&format!("{more}{} nodes, {out} not in service", fleet.nodes.len()))?;
    Ok(outcome)
}
