//! `farrier fleet nodes`, `node` and `explain`.

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::{Location, NodeId, NodePhase};
use farrier_wire::rest::{
    NodeDetail, NodeExplanation, NodePage, NodeRow, RationaleView, ReasonView,
};
use jiff::{SignedDuration, Timestamp};

use super::connection;
use super::findings::code;
use super::session::{Path, Session};
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
    /// Only nodes in this phase: joining, in-service, suspect, quarantined, in-repair, verifying,
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
    session: &mut Session,
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
            page.nodes.iter().try_for_each(|it| printer.json_line(it))?;
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
            "no node that you see is like that"
        } else {
            "you see no node; `farrier server token create` on the server lets nodes join"
        })?;
    } else if args.output == Output::Table {
        let rows: Vec<Vec<String>> = nodes.iter().map(|it| row(it, printer)).collect();
        let headings =
            ["Node", "NodePhase", "For", "Heartbeat", "Pool", "Rack", "GPUs", "Driver", "Findings"];
        printer.table(&headings, &rows)?;
        let told: Vec<&NodeRow> =
            nodes.iter().filter(|it| it.phase != NodePhase::InService).collect();
        printer.line("")?;
        printer.line(&counted(&nodes))?;
        if let Some(agents) = connection::counted(&nodes) {
            printer.line(&agents)?;
        }
        let widest = told.iter().map(|it| it.node.to_string().len()).max().unwrap_or(0);
        for node in told {
            let mut why = node.reason.text.clone();
            if let Some(deferred) = &node.deferred {
                why.push_str(&format!("; held back: {}", deferred.text));
            }
            let mut shown = [Some(&node.reason), node.deferred.as_ref()].into_iter().flatten();
            let is_told = shown.any(ReasonView::is_heartbeat_lost);
            if let Some(since) = node.heartbeat_lost_since.filter(|_| !is_told) {
                why.push_str(&format!("; nothing was heard of it since {since:.0}"));
            }
            printer.paragraph(&format!("  {}", node.node), widest + 3, &why)?;
        }
    }
    Ok(Outcome::Fine)
}

/// Counts nodes by phase. A suspect node still runs work, but it is not counted as in service.
fn counted(nodes: &[NodeRow]) -> String {
    let many =
        if nodes.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", nodes.len()) };
    let each = NodePhase::ALL.iter().filter_map(|phase| {
        let count = nodes.iter().filter(|it| it.phase == *phase).count();
        let how = if *phase == NodePhase::Suspect {
            "suspect (at work)".to_owned()
        } else {
            phase.to_string()
        };
        (count > 0).then(|| format!("{count} {how}"))
    });
    format!("{many}: {}", each.collect::<Vec<_>>().join(", "))
}

fn row(node: &NodeRow, printer: &Printer) -> Vec<String> {
    let gpus = match (node.gpus, &node.gpu) {
        (Some(count), Some(name)) => format!("{count} × {}", name.trim_start_matches("NVIDIA ")),
        (Some(count), None) => count.to_string(),
        (None, _) => "not known".to_owned(),
    };
    let findings = match node.worst {
        Some(worst) => format!("{} ({worst})", node.findings),
        None => "-".to_owned(),
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
        node.driver.clone().unwrap_or_else(|| "not known".to_owned()),
        findings,
    ]
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

fn where_it_is(place: &Location) -> String {
    let mut domains = place.domains();
    domains.remove(0);
    domains.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn one(
    session: &mut Session,
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
    let mut told = |name: &str, text: &str| printer.paragraph(&format!("  {name}"), 18, text);
    told("where", &where_it_is(&node.location))?;
    told("why", &node.rationale.reason.text)?;
    told("until", &node.rationale.unblocked_by.text)?;
    if let Some(connection) = &node.connection {
        told("agent", &connection.to_string())?;
    }
    if let Some(why) = &node.deferred {
        told("held back", &format!("{}; until {}", why.reason.text, why.unblocked_by.text))?;
    }
    for domain_faults in &node.domain_faults {
        told("not its fault", &domain_faults.text)?;
    }
    if let Some(since) = node.heartbeat_lost_since {
        told("silent", &format!("nothing was heard since {since:.0}"))?;
    }
    if let Some(order) = &node.order {
        let how = if order.accepted { "the agent is at it" } else { "on its way" };
        let (number, until) = (order.generation, order.lease_until);
        told("order", &format!("{} (order {number}, {how}, until {until:.0})", order.text))?;
    }
    if let Some(hold) = &node.hold {
        told("held by", &format!("{}: {}", hold.by, hold.reason))?;
    }
    told("work", &work(&node))?;
    if let Some(inventory) = &node.inventory {
        let unknown = || "not known".to_owned();
        told("driver", &inventory.driver.clone().unwrap_or_else(unknown))?;
        told("CUDA", &inventory.cuda.clone().unwrap_or_else(unknown))?;
        told("kernel", &inventory.kernel.clone().unwrap_or_else(unknown))?;
        let gpus = inventory.gpus.as_ref().map(|all| {
            let name = |it: &farrier_fleet::fleet::event::GpuInventory| {
                let name = it.name.as_deref().unwrap_or("a GPU of no known name");
                it.place_words().map_or_else(
                    || format!("{name}, {}", it.uuid),
                    |place| format!("{place}: {name}, {}", it.uuid),
                )
            };
            all.iter().map(name).collect::<Vec<_>>()
        });
        match gpus {
            Some(gpus) => gpus.iter().try_for_each(|it| told("GPU", it))?,
            None => told("GPUs", "not known")?,
        }
    }
    for proof in &node.verifications {
        let how = if proof.passed { "passed" } else { "not passed" };
        told("proven", &format!("{} {how} at {:.0}: {}", proof.level, proof.at, proof.evidence))?;
    }
    if let Some(requested_order) = &node.requested_order {
        told("asked for", &format!("{requested_order}, not done yet"))?;
    }
    for ended in &node.requested_order_results {
        let how = match ended.status.as_str() {
            "done" => "done",
            "failed" => "failed",
            _ => "could not be done",
        };
        told(
            "asked for",
            &format!("{}, {how} at {:.0}: {}", ended.text, ended.at, ended.evidence),
        )?;
    }
    node.repairs.iter().try_for_each(|it| told("repair", it))?;
    let mut findings_on = node.findings_on.iter().flatten();
    for finding in &node.findings {
        let severity = printer.severity(finding.severity);
        printer.line("")?;
        printer.paragraph(&format!("  {severity}"), 11, &finding.text)?;
        let on = findings_on.next().cloned().unwrap_or_else(|| finding.subject.to_string());
        let what = code(finding);
        printer.paragraph("", 11, &format!("[{what}] on {on} since {:.0}", finding.first_seen))?;
    }
    Ok(outcome)
}

fn work(node: &NodeDetail) -> String {
    let drained = if node.drained { ", and has none" } else { "" };
    match &node.cordon {
        Cordon::Unknown => "nobody knows whether it takes new work".to_owned(),
        Cordon::None => "it takes new work".to_owned(),
        Cordon::ByFarrier => format!("it takes no new work, by our mark{drained}"),
        Cordon::External { owner, reason } => {
            format!("it takes no new work, by {owner}: {reason}{drained}")
        }
    }
}

pub(super) fn explain(
    session: &mut Session,
    args: &OneArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let told: NodeExplanation = session.get(&format!("/api/v1/nodes/{}/explanation", args.node))?;
    let outcome = Outcome::finding_if(told.phase != NodePhase::InService);
    if args.output == Output::Json {
        printer.json(&told)?;
        return Ok(outcome);
    }
    let phase = toned(printer, told.phase);
    printer.line(&format!("{} is {phase} since {:.0}", told.node, told.since))?;
    let why = |printer: &mut Printer, name: &str, why: &RationaleView| {
        printer.paragraph(&format!("  {name}"), 14, &why.reason.text)?;
        printer.paragraph("  until", 14, &why.unblocked_by.text)
    };
    why(printer, "because", &told.rationale)?;
    if let Some(connection) = &told.connection {
        printer.paragraph("  agent", 14, &connection.to_string())?;
    }
    let domain_faults = told.domain_faults.iter().map(|it| it.text.clone()).collect();
    for (name, texts) in
        [("found", &told.findings), ("to blame", &domain_faults), ("frozen", &told.frozen)]
    {
        texts.iter().try_for_each(|it| printer.paragraph(&format!("  {name}"), 14, it))?;
    }
    if let Some(order) = &told.order {
        printer.paragraph("  ordered", 14, order)?;
    }
    if let Some(deferred) = &told.deferred {
        why(printer, "held back", deferred)?;
    }
    Ok(outcome)
}
