//! `farrier fleet nodes`, `node` and `explain`.

use farrier_fleet::fleet::event::{Cordon, GpuInventory};
use farrier_fleet::fleet::{NodeId, NodePhase};
use farrier_wire::rest::{
    CoverageGapView, NodeDetail, NodeExplanation, NodePage, NodeRow, RationaleView, ReasonView,
};
use jiff::{SignedDuration, Timestamp};

use super::connection;
use super::findings::code_with_detail;
use super::location;
use super::session::{FleetSession, Path};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::{Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only nodes of this pool
    #[arg(long)]
    pool: Option<String>,
    /// Only nodes in this rack
    #[arg(long)]
    rack: Option<String>,
    /// Only nodes behind this leaf switch
    #[arg(long)]
    leaf: Option<String>,
    /// Only nodes in this phase: joining, in-service, suspect, quarantined, repairing, verifying,
    /// held
    #[arg(long)]
    phase: Option<String>,
    /// Only nodes whose name, reason, driver, GPU or findings contain this text
    text: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OneArgs {
    /// Name of the node
    node: NodeId,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn list(
    session: &mut FleetSession,
    args: &ListArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let mut cursor: Option<String> = None;
    let mut nodes: Vec<NodeRow> = Vec::new();
    loop {
        let path = Path::new("/api/v1/nodes")
            .with("pool", args.pool.as_ref())
            .with("rack", args.rack.as_ref())
            .with("leaf", args.leaf.as_ref())
            .with("phase", args.phase.as_ref())
            .with("text", args.text.as_ref())
            .with("cursor", cursor.as_ref())
            .with("limit", Some(500));
        let page: NodePage = session.get(path.as_str())?;
        if args.output == Output::Json {
            page.nodes.iter().try_for_each(|node| printer.json_line(node))?;
        } else {
            nodes.extend(page.nodes);
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if args.output == Output::Table && nodes.is_empty() {
        let is_filtered = args.pool.is_some() || args.rack.is_some() || args.leaf.is_some();
        let is_filtered = is_filtered || args.phase.is_some() || args.text.is_some();
        printer.line(if is_filtered {
            "no node in your scope matches"
        } else {
            "no nodes in your scope; `farrier server token create` on the server lets nodes join"
        })?;
    } else if args.output == Output::Table {
        let rows: Vec<Vec<String>> = nodes.iter().map(|node| row(node, printer)).collect();
        let headings =
            ["Node", "Phase", "For", "Heartbeat", "Pool", "Rack", "GPUs", "Driver", "Findings"];
        printer.table(&headings, &rows)?;
        let not_in_service: Vec<&NodeRow> =
            nodes.iter().filter(|node| node.phase != NodePhase::InService).collect();
        printer.line("")?;
        printer.line(&summary(&nodes))?;
        if let Some(agents) = connection::summary(&nodes) {
            printer.line(&agents)?;
        }
        if let Some(coverage) = coverage_summary(&nodes) {
            printer.line(&coverage)?;
        }
        let widths = not_in_service.iter().map(|node| node.node.to_string().len());
        let widest = widths.max().unwrap_or(0);
        for node in not_in_service {
            let mut text = node.reason.text.clone();
            if let Some(deferred) = &node.deferred {
                text.push_str(&format!("; deferred: {}", deferred.text));
            }
            let mut reasons = [Some(&node.reason), node.deferred.as_ref()].into_iter().flatten();
            let is_reported = reasons.any(ReasonView::is_heartbeat_lost);
            if let Some(since) = node.heartbeat_lost_since.filter(|_| !is_reported) {
                text.push_str(&format!("; no heartbeat since {since:.0}"));
            }
            printer.paragraph(&format!("  {}", node.node), widest + 3, &text)?;
        }
    }
    Ok(Outcome::Fine)
}

/// Counts nodes by phase. A suspect node still runs work, but it is not counted as in service.
fn summary(nodes: &[NodeRow]) -> String {
    let total =
        if nodes.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", nodes.len()) };
    let counts = NodePhase::ALL.iter().filter_map(|phase| {
        let count = nodes.iter().filter(|node| node.phase == *phase).count();
        let description = if *phase == NodePhase::Suspect {
            "suspect (still takes work)".to_owned()
        } else {
            phase.to_string()
        };
        (count > 0).then(|| format!("{count} {description}"))
    });
    format!("{total}: {}", counts.collect::<Vec<_>>().join(", "))
}

fn row(node: &NodeRow, printer: &Printer) -> Vec<String> {
    let gpus = match (node.gpus, &node.gpu) {
        (Some(count), Some(name)) => format!("{count} × {}", name.trim_start_matches("NVIDIA ")),
        (Some(count), None) => count.to_string(),
        (None, _) => "unknown".to_owned(),
    };
    let findings = node.worst.map(|worst| format!("{} ({worst})", node.findings));
    let gaps = gaps(node).map(|gaps| printer.toned(Tone::Caution, &gap_count(gaps)));
    let findings = match (findings, gaps) {
        (Some(findings), Some(gaps)) => format!("{findings}, {gaps}"),
        (findings, gaps) => findings.or(gaps).unwrap_or_else(|| "-".to_owned()),
    };
    let (tone, heartbeat) = connection::cell(node.connection.as_ref());
    let heartbeat = tone.map_or_else(|| heartbeat.clone(), |tone| printer.toned(tone, &heartbeat));
    vec![
        node.node.to_string(),
        toned(printer, node.phase),
        age(Timestamp::now().duration_since(node.since)),
        heartbeat,
        node.location.pool.to_string(),
        node.location.rack.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        gpus,
        node.driver.clone().unwrap_or_else(|| "unknown".to_owned()),
        findings,
    ]
}

/// Number of open coverage gaps. `None` if there are none, or if they are unknown.
fn gaps(node: &NodeRow) -> Option<u32> {
    node.coverage_gaps.filter(|gaps| *gaps > 0)
}

fn gap_count(gaps: u32) -> String {
    if gaps == 1 { "1 gap".to_owned() } else { format!("{gaps} gaps") }
}

/// Counts the nodes with coverage gaps, and the nodes whose coverage is unknown.
fn coverage_summary(nodes: &[NodeRow]) -> Option<String> {
    let count = |which: fn(&NodeRow) -> bool| {
        let count = nodes.iter().filter(|node| which(node)).count();
        (count > 0).then_some(count)
    };
    let plural = |count: usize| if count == 1 { "node" } else { "nodes" };
    let with_gaps = count(|node| gaps(node).is_some()).map(|count| {
        format!("{count} {} with coverage gaps (`farrier fleet explain NODE`)", plural(count))
    });
    let unknown = count(|node| node.coverage_gaps.is_none())
        .map(|count| format!("coverage of {count} {} unknown", plural(count)));
    let parts: Vec<String> = with_gaps.into_iter().chain(unknown).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Formats an age in the largest unit that gives at least two: `95s`, `40m`, `30h`, `12d`.
pub(super) fn age(since: SignedDuration) -> String {
    let seconds = since.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn toned(printer: &Printer, phase: NodePhase) -> String {
    let tone = match phase {
        NodePhase::InService => Tone::Good,
        NodePhase::Joining | NodePhase::Suspect | NodePhase::Verifying | NodePhase::Held => {
            Tone::Caution
        }
        NodePhase::Quarantined | NodePhase::Repairing => Tone::Bad,
    };
    printer.toned(tone, &phase.to_string())
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
    let domain_faults = explanation.domain_faults.iter().map(|fault| fault.text.clone()).collect();
    for (name, texts) in [
        ("finding", &explanation.findings),
        ("domain fault", &domain_faults),
        ("frozen", &explanation.frozen),
    ] {
        texts.iter().try_for_each(|text| printer.paragraph(&format!("  {name}"), 16, text))?;
    }
    print_coverage(printer, 16, explanation.coverage_gaps.as_deref())?;
    if let Some(order) = &explanation.order {
        printer.paragraph("  order", 16, order)?;
    }
    if let Some(deferred) = &explanation.deferred {
        print(printer, "deferred", deferred)?;
    }
    Ok(outcome)
}
