//! `farrier fleet node` and `explain`: one node in detail.

use farrier_fleet::fleet::event::{Cordon, GpuInventory};
use farrier_fleet::fleet::{NodeId, NodePhase};
use farrier_wire::rest::{
    CoverageGapView, HistoryRow, NextStepView, NodeDetail, NodeExplanation, RationaleView,
};
use jiff::Timestamp;

use super::finding_groups::{self, NodeGroup};
use super::findings::code_with_detail;
use super::location;
use super::nodes::{age, intake, is_out, toned, with_age};
use super::session::FleetSession;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct OneArgs {
    /// Name of the node
    node: NodeId,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn detail(
    session: &mut FleetSession,
    args: &OneArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let node: NodeDetail = session.get(&format!("/api/v1/nodes/{}", args.node))?;
    let outcome = Outcome::finding_if(node.phase != NodePhase::InService);
    if args.output == Output::Json {
        printer.json(&node)?;
        return Ok(outcome);
    }
    let phase = heading(node.phase, Some(&node.cordon), printer);
    printer.line(&format!("{}: {phase} since {}", node.node, with_age(node.since)))?;
    let mut field = |name: &str, text: &str| printer.paragraph(&format!("  {name}"), 18, text);
    field("location", &location::describe(&node.location))?;
    field("reason", &node.rationale.reason.text)?;
    field("until", &node.rationale.unblocked_by.text)?;
    if let Some(connection) = &node.connection {
        field("agent", &connection.to_string())?;
    }
    if let Some(rationale) = &node.deferred {
        let name = if is_for_person(rationale) { "waits for person" } else { "deferred" };
        field(
            name,
            &format!("{}; it ends when {}", rationale.reason.text, rationale.unblocked_by.text),
        )?;
    }
    for fault in &node.domain_faults {
        field("domain fault", &fault.text)?;
    }
    if let Some(since) = node.heartbeat_lost_since {
        field("heartbeat", &format!("lost; the last one arrived at {}", with_age(since)))?;
    }
    if let Some(order) = &node.order {
        let status = if order.accepted { "accepted by the agent" } else { "not accepted yet" };
        let (generation, until) = (order.generation, order.lease_until);
        let text = format!("{} (order {generation}, {status}, lease until {until:.0})", order.text);
        field("order", &text)?;
    }
    if let Some(hold) = &node.hold {
        field("held by", &format!("{}: {}", hold.by, hold.reason))?;
    }
    field("cordon", &cordon(&node.cordon, node.drained, node.phase))?;
    if let Some(inventory) = &node.inventory {
        let unknown = || "unknown".to_owned();
        field("driver", &inventory.driver.clone().unwrap_or_else(unknown))?;
        field("CUDA", &inventory.cuda.clone().unwrap_or_else(unknown))?;
        field("kernel", &inventory.kernel.clone().unwrap_or_else(unknown))?;
        let gpus = inventory.gpus.as_ref().map(|gpus| {
            let describe = |gpu: &GpuInventory| {
                let name = gpu.name.as_deref().unwrap_or("GPU of unknown model");
                let serial = gpu.serial.as_ref().map(|serial| format!(", serial {serial}"));
                let about = format!("{name}, {}{}", gpu.uuid, serial.unwrap_or_default());
                gpu.describe_location().map_or(about.clone(), |slot| format!("{slot}: {about}"))
            };
            gpus.iter().map(describe).collect::<Vec<_>>()
        });
        match gpus {
            Some(gpus) => gpus.iter().try_for_each(|gpu| field("GPU", gpu))?,
            None => field("GPUs", "unknown")?,
        }
    }
    for result in &node.verifications {
        let verdict = if result.passed { "passed" } else { "failed" };
        let text = format!("{} {verdict} at {:.0}: {}", result.level, result.at, result.evidence);
        field("verification", &text)?;
    }
    if let Some(requested_order) = &node.requested_order {
        field("requested", &format!("{requested_order}, not run yet"))?;
    }
    for result in &node.requested_order_results {
        let status = match result.status.as_str() {
            "done" => "done",
            "failed" => "failed",
            _ => "could not run",
        };
        field(
            "requested",
            &format!("{}, {status} at {:.0}: {}", result.text, result.at, result.evidence),
        )?;
    }
    node.repairs.iter().try_for_each(|repair| field("repair", repair))?;
    print_coverage(printer, 18, node.coverage_gaps.as_deref())?;
    let mut finding_subjects = node.finding_subjects.iter().flatten();
    for finding in &node.findings {
        let severity = printer.severity(finding.severity);
        printer.line("")?;
        printer.paragraph(&format!("  {severity}"), 11, &finding.text)?;
        let subject =
            finding_subjects.next().cloned().unwrap_or_else(|| finding.subject.to_string());
        let code = code_with_detail(finding);
        printer.paragraph(
            "",
            11,
            &format!("[{code}] on {subject} since {:.0}", finding.first_seen),
        )?;
    }
    Ok(outcome)
}

/// Prints each coverage gap with its age and what to do. `None` if the coverage is unknown.
fn print_coverage(
    printer: &mut Printer,
    width: usize,
    gaps: Option<&[CoverageGapView]>,
) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let Some(gaps) = gaps else {
        let unknown = "unknown: the agent has not reported its coverage";
        return Ok(printer.paragraph("  coverage", width, unknown)?);
    };
    for CoverageGapView { text, since, remedy, .. } in gaps {
        let since = format!("{since:.0} ({} ago)", age(now.duration_since(*since)));
        printer.paragraph("  coverage gap", width, text)?;
        printer.paragraph("    since", width, &since)?;
        printer.paragraph("    action", width, remedy)?;
    }
    Ok(())
}

/// The phase, and whether a node in it still takes work.
fn heading(phase: NodePhase, cordon: Option<&Cordon>, printer: &Printer) -> String {
    let intake = intake(phase, cordon).map(|intake| format!(" ({intake})")).unwrap_or_default();
    format!("{}{intake}", toned(printer, phase))
}

/// Whether the deferred action waits for a person.
fn is_for_person(rationale: &RationaleView) -> bool {
    matches!(
        rationale.unblocked_by.code.as_str(),
        "operator-repair" | "operator-review" | "approval"
    )
}

fn cordon(cordon: &Cordon, drained: bool, phase: NodePhase) -> String {
    let drained = if drained { "; drained" } else { "" };
    match cordon {
        Cordon::Unknown => "unknown: the agent has not reported it yet".to_owned(),
        Cordon::None if is_out(phase) => {
            "none: the node still takes new work, as far as its agent has reported; cordon it in the scheduler if no order reaches it".to_owned()
        }
        Cordon::None => "none: the node takes new work".to_owned(),
        Cordon::ByFarrier => format!("by Farrier{drained}"),
        Cordon::External { owner, reason } => format!("by {owner}: {reason}{drained}"),
    }
}

/// Prints what a person does first. If the groups of findings say it, only the report afterwards is
/// printed here.
fn print_step(step: &NextStepView, has_groups: bool, printer: &mut Printer) -> anyhow::Result<()> {
    let NextStepView { code, text, commands, afterwards, runbook } = step;
    let is_in_groups = has_groups && matches!(code.as_str(), "service" | "repair-by-hand");
    if !is_in_groups {
        printer.paragraph("  do first", 16, &format!("{text}."))?;
    }
    commands.iter().try_for_each(|command| printer.paragraph("    run", 16, command))?;
    if let Some(afterwards) = afterwards {
        printer.paragraph("  after repair", 16, afterwards)?;
    }
    if let Some(runbook) = runbook {
        printer.paragraph("  runbook", 16, &format!("farrier runbook {runbook}"))?;
    }
    Ok(())
}

/// Prints what happened lately, newest first.
fn print_history(history: &[HistoryRow], printer: &mut Printer) -> anyhow::Result<()> {
    if history.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    printer.line(&printer.toned(Tone::Strong, "last 24 hours, newest first"))?;
    for HistoryRow { at, text, .. } in history {
        printer.paragraph(&format!("  {}", with_age(*at)), 34, text)?;
    }
    Ok(())
}

pub(super) fn explain(
    session: &mut FleetSession,
    args: &OneArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let explanation: NodeExplanation =
        session.get(&format!("/api/v1/nodes/{}/explanation", args.node))?;
    let outcome = Outcome::finding_if(explanation.phase != NodePhase::InService);
    if args.output == Output::Json {
        printer.json(&explanation)?;
        return Ok(outcome);
    }
    let NodeExplanation { node, phase, since, .. } = &explanation;
    let phase = heading(*phase, explanation.cordon.as_ref(), printer);
    printer.line(&format!("{node}: {phase} since {}", with_age(*since)))?;
    printer.paragraph("  reason", 16, &explanation.rationale.reason.text)?;
    printer.paragraph("  until", 16, &explanation.rationale.unblocked_by.text)?;
    if let Some(connection) = &explanation.connection {
        printer.paragraph("  agent", 16, &connection.to_string())?;
    }
    if let Some(at) = explanation.cordon.as_ref() {
        let text = cordon(at, explanation.drained.unwrap_or(false), explanation.phase);
        printer.paragraph("  cordon", 16, &text)?;
    }
    let has_groups = explanation.finding_groups.as_ref().is_some_and(|groups| !groups.is_empty());
    if let Some(step) = &explanation.next_step {
        print_step(step, has_groups, printer)?;
    }
    // The answer of an older server has no groups.
    let (groups, other) = match (&explanation.finding_groups, &explanation.problems) {
        (Some(groups), Some(problems)) => (groups.as_slice(), problems),
        _ => (&[][..], &explanation.findings),
    };
    let name = if groups.is_empty() { "finding" } else { "problem" };
    for (name, texts) in [(name, other), ("frozen", &explanation.frozen)] {
        texts.iter().try_for_each(|text| printer.paragraph(&format!("  {name}"), 16, text))?;
    }
    print_domain_faults(&explanation, printer)?;
    print_coverage(printer, 16, explanation.coverage_gaps.as_deref())?;
    if let Some(order) = &explanation.order {
        printer.paragraph("  order", 16, order)?;
    }
    if let Some(deferred) = &explanation.deferred {
        let (name, end) =
            if is_for_person(deferred) { ("waiting", "for a person: ") } else { ("deferred", "") };
        printer.paragraph(&format!("  {name}"), 16, &format!("{end}{}", deferred.reason.text))?;
        printer.paragraph("    ends when", 16, &deferred.unblocked_by.text)?;
    }
    let groups: Vec<NodeGroup<'_>> =
        groups.iter().map(|group| NodeGroup { node: None, group }).collect();
    finding_groups::print(&groups, printer)?;
    print_history(explanation.history.as_deref().unwrap_or_default(), printer)?;
    if outcome == Outcome::Finding {
        printer.line("")?;
        printer.line(&format!("logs of the node: farrier fleet logs {node}"))?;
    }
    Ok(outcome)
}

/// Prints the domain faults that the node is part of, with the nodes that they affect now.
fn print_domain_faults(explanation: &NodeExplanation, printer: &mut Printer) -> anyhow::Result<()> {
    let Some(rows) = &explanation.domain_fault_rows else {
        let faults = &explanation.domain_faults;
        return faults
            .iter()
            .try_for_each(|fault| Ok(printer.paragraph("  domain fault", 16, &fault.text)?));
    };
    for fault in rows {
        let text =
            format!("{} (at detection, {})", fault.rationale.reason.text, with_age(fault.since));
        printer.paragraph("  domain fault", 16, &text)?;
    }
    Ok(())
}
