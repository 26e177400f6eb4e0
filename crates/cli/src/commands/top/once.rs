//! One look, for pipes and scripts.

use farrier_fleet::health::Signal;

use super::board::Fleet;
use super::draw::words;
use super::now::{GpuNow, NodeNow, Silence};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure;
use crate::printer::{Printer, Tone};

/// Prints a node. Exit code 1 where nobody answers, as what is printed says nothing then.
pub(super) fn node(
    node: &NodeNow,
    output: Output,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let outcome = Outcome::finding_if(node.silence.is_some());
    if output == Output::Json {
        printer.json(node)?;
        return Ok(outcome);
    }
    let name = node.node.as_deref().unwrap_or("this node");
    let driver = node.driver.as_ref().map(|it| format!(", driver {it}")).unwrap_or_default();
    printer.line(&format!("{name}{driver}, {}, {:.0}", node.count(), node.at))?;
    if let Some(silence) = &node.silence {
        let word = printer.toned(Tone::Bad, "no answer");
        printer.line(&format!("{word} since {:.0}: {}", silence.since, silence.why))?;
        if let Some(hint) = &silence.hint {
            printer.line(&format!("try: {hint}"))?;
        }
    }
    for unseen in &node.not_seen {
        let word = printer.toned(Tone::Caution, "not seen");
        printer.line(&format!("{word}: {unseen}"))?;
    }
    if node.gpus.is_empty() && node.silence.is_none() {
        printer.line("there is no NVIDIA GPU here")?;
    }
    if !node.gpus.is_empty() {
        let headings = [
            "GPU",
            "name",
            "°C",
            "power",
            "SM",
            "memory",
            "NVLink",
            "PCIe",
            "SM MHz",
            "limited by",
        ];
        let rows: Vec<Vec<String>> = node.gpus.iter().map(row).collect();
        printer.line("")?;
        printer.table(&headings, &rows)?;
        let held = node.gpus.iter().filter(|gpu| gpu.limit.kind.is_worth_a_sentence());
        for gpu in held {
            printer.line(&format!("GPU {}: {}", gpu.identity.index, gpu.limit.text))?;
        }
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
            for finding in findings {
                let severity = printer.severity(finding.severity);
                let text = format!("{} → {}: {}", finding.on, finding.action, finding.text);
                printer.paragraph(&severity, 9, &text)?;
            }
        }
    }
    Ok(outcome)
}

fn row(gpu: &GpuNow) -> Vec<String> {
    let reading = |signal| gpu.reading(signal);
    vec![
        gpu.identity.index.to_string(),
        gpu.identity.name.clone().unwrap_or_else(|| "?".to_owned()),
        words::number(reading(Signal::GpuTemperature), 1.0, ""),
        words::power(reading(Signal::GpuPower), reading(Signal::GpuPowerLimit)),
        words::percent(gpu.busy()),
        words::of_total(reading(Signal::GpuMemoryUsed), reading(Signal::GpuMemoryTotal)),
        words::rate(&gpu.nvlink()),
        words::rate(&gpu.pcie()),
        words::number(reading(Signal::GpuClockSm), 1.0, ""),
        gpu.limit.kind.word().to_owned(),
    ]
}

fn processes(node: &NodeNow, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let Some(processes) = &node.processes else {
        return Ok(printer.line("processes: not known")?);
    };
    if processes.is_empty() {
        return Ok(printer.line("no process holds a GPU")?);
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
                words::memory(process.memory_bytes),
                process.command.clone().unwrap_or_else(unknown),
            ]
        })
        .collect();
    Ok(printer.table(&["GPU", "PID", "user", "job", "memory", "command"], &rows)?)
}

/// Prints that the server does not answer. Nothing is known of any node then.
pub(super) fn silent_fleet(
    url: &str,
    silence: &Silence,
    output: Output,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    // A program reads one line a node, and there is none.
    if output == Output::Json {
        failure::warn(&anyhow::anyhow!("no answer from `{url}`: {}", silence.why));
        return Ok(Outcome::Finding);
    }
    let word = printer.toned(Tone::Bad, "no answer");
    printer.line(&format!("{word} from `{url}`: {}", silence.why))?;
    if let Some(hint) = &silence.hint {
        printer.line(&format!("try: {hint}"))?;
    }
    Ok(Outcome::Finding)
}

/// Prints a fleet.
pub(super) fn fleet(
    fleet: &Fleet,
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
    printer.table(&["node", "pool", "standing", "GPUs", "findings", "why"], &rows)?;
    let more = if fleet.has_more { "more than " } else { "" };
    printer.line("")?;
    printer.line(&format!("{more}{} nodes, {out} not in service", fleet.nodes.len()))?;
    Ok(outcome)
}
