//! `farrier fleet node` and `explain`: one node in detail.

use farrier_fleet::fleet::event::{Cordon, GpuInventory};
use farrier_fleet::fleet::{NodeId, NodePhase};
use farrier_wire::rest::{CoverageGapView, NodeDetail, NodeExplanation, RationaleView};
use jiff::Timestamp;

use super::finding_groups::{self, NodeGroup};
use super::findings::code_with_detail;
use super::location;
use super::nodes::{age, toned};
use super::session::FleetSession;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

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
    let phase = toned(printer, node.phase);
    printer.line(&format!("{}: {phase} since {:.0}", node.node, node.since))?;
    let mut field = |name: &str, text: &str| printer.paragraph(&format!("  {name}"), 18, text);
    field("location", &location::describe(&node.location))?;
    field("reason", &node.rationale.reason.text)?;
    field("until", &node.rationale.unblocked_by.text)?;
    if let Some(connection) = &node.connection {
        field("agent", &connection.to_string())?;
    }
    if let Some(rationale) = &node.deferred {
        field(
            "deferred",
            &format!("{}; until {}", rationale.reason.text, rationale.unblocked_by.text),
        )?;
    }
    for fault in &node.domain_faults {
        field("domain fault", &fault.text)?;
    }
    if let Some(since) = node.heartbeat_lost_since {
        field("heartbeat", &format!("lost; the last one arrived at {since:.0}"))?;
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
    field("cordon", &cordon(&node))?;
    if let Some(inventory) = &node.inventory {
        let unknown = || "unknown".to_owned();
        field("driver", &inventory.driver.clone().unwrap_or_else(unknown))?;
        field("CUDA", &inventory.cuda.clone().unwrap_or_else(unknown))?;
        field("kernel", &inventory.kernel.clone().unwrap_or_else(unknown))?;
        let gpus = inventory.gpus.as_ref().map(|gpus| {
            let describe = |gpu: &GpuInventory| {
                let name = gpu.name.as_deref().unwrap_or("GPU of unknown model");
                gpu.describe_location().map_or_else(
                    || format!("{name}, {}", gpu.uuid),
                    |slot| format!("{slot}: {name}, {}", gpu.uuid),
                )
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

fn cordon(node: &NodeDetail) -> String {
    let drained = if node.drained { "; drained" } else { "" };
    match &node.cordon {
        Cordon::Unknown => "unknown: the agent has not reported it yet".to_owned(),
        Cordon::None => "none: the node takes new work".to_owned(),
        Cordon::ByFarrier => format!("by Farrier{drained}"),
        Cordon::External { owner, reason } => format!("by {owner}: {reason}{drained}"),
    }
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
    let phase = toned(printer, explanation.phase);
    printer.line(&format!("{}: {phase} since {:.0}", explanation.node, explanation.since))?;
    let print = |printer: &mut Printer, name: &str, rationale: &RationaleView| {
        printer.paragraph(&format!("  {name}"), 16, &rationale.reason.text)?;
        printer.paragraph("  until", 16, &rationale.unblocked_by.text)
    };
    print(printer, "reason", &explanation.rationale)?;
    if let Some(connection) = &explanation.connection {
        printer.paragraph("  agent", 16, &connection.to_string())?;
    }
    // The answer of an older server has no groups.
    let (groups, other) = match (&explanation.finding_groups, &explanation.problems) {
        (Some(groups), Some(problems)) => (groups.as_slice(), problems),
        _ => (&[][..], &explanation.findings),
    };
    let name = if groups.is_empty() { "finding" } else { "problem" };
    let domain_faults = explanation.domain_faults.iter().map(|fault| fault.text.clone()).collect();
    for (name, texts) in
        [(name, other), ("domain fault", &domain_faults), ("frozen", &explanation.frozen)]
    {
        texts.iter().try_for_each(|text| printer.paragraph(&format!("  {name}"), 16, text))?;
    }
    print_coverage(printer, 16, explanation.coverage_gaps.as_deref())?;
    if let Some(order) = &explanation.order {
        printer.paragraph("  order", 16, order)?;
    }
    if let Some(deferred) = &explanation.deferred {
        print(printer, "deferred", deferred)?;
    }
    let groups: Vec<NodeGroup<'_>> =
        groups.iter().map(|group| NodeGroup { node: None, group }).collect();
    finding_groups::print(&groups, printer)?;
    Ok(outcome)
}
