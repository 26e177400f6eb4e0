//! `farrier fleet nodes`: one line per node.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use farrier_fleet::fleet::event::Cordon;
use farrier_fleet::fleet::{AttentionCause, NodePhase};
use farrier_wire::rest::{NodeRow, ReasonView};
use jiff::{SignedDuration, Timestamp};

use super::attention;
use super::connection;
use super::node_filter::{NodeFilterArgs, read_nodes};
use super::node_names::natural_order;
use super::session::{FleetSession, Path};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure;
use crate::printer::{Fit, LineColumn, Printer, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only nodes whose name, reason, driver, GPU, findings or coverage gaps contain this text
    text: Option<String>,
    #[command(flatten)]
    filter: NodeFilterArgs,
    /// Only nodes that need a person, or may need one soon: the cause and the next step of each,
    /// most urgent first
    #[arg(long)]
    needs_attention: bool,
    /// Order of the nodes [default: name; with --needs-attention: urgency]
    #[arg(long, value_enum)]
    sort: Option<NodeOrder>,
    /// Show only the first NUMBER nodes in the order of --sort
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Output format; JSON is one node per line
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Order of the nodes. Nodes for which this order is equal are in the natural order of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NodeOrder {
    /// Natural order of the names: gpu-2 before gpu-10
    Name,
    /// Most urgent need of a person first
    Urgency,
    /// Phases furthest from service first
    Phase,
    /// Most severe open finding first
    Severity,
    /// Latest phase change first
    Recent,
    /// Oldest heartbeat first
    Heartbeat,
    /// By site, rack and leaf switch
    Rack,
}

impl NodeOrder {
    fn sort(self, nodes: &mut [NodeRow]) {
        // The server sorts names as texts.
        nodes.sort_by(|one, other| natural_order(one.node.as_str(), other.node.as_str()));
        match self {
            Self::Name => {}
            Self::Urgency => nodes.sort_by_key(attention::urgency),
            Self::Phase => nodes.sort_by_key(|node| phase_rank(node.phase)),
            Self::Severity => nodes.sort_by_key(|node| Reverse((node.worst, node.findings))),
            Self::Recent => nodes.sort_by_key(|node| Reverse(node.since)),
            Self::Heartbeat => nodes.sort_by_key(|node| {
                let connection = node.connection.as_ref();
                let age_s = connection.and_then(|connection| connection.last_heartbeat_age_s);
                // A node without any heartbeat is first.
                Reverse(age_s.unwrap_or(u64::MAX))
            }),
            Self::Rack => nodes.sort_by(|one, other| {
                let place = |node: &NodeRow| {
                    let location = &node.location;
                    [&location.site, &location.rack, &location.leaf]
                        .map(|unit| unit.as_ref().map_or_else(String::new, ToString::to_string))
                };
                let pairs = place(one).into_iter().zip(place(other));
                pairs.fold(std::cmp::Ordering::Equal, |order, (one, other)| {
                    order.then_with(|| natural_order(&one, &other))
                })
            }),
        }
    }
}

/// Rank of a phase for `--sort phase`. A node in a phase with rank 0 is furthest from running work.
fn phase_rank(phase: NodePhase) -> u8 {
    match phase {
        NodePhase::Quarantined => 0,
        NodePhase::Repairing => 1,
        NodePhase::Held => 2,
        NodePhase::Verifying => 3,
        NodePhase::Joining => 4,
        NodePhase::Suspect => 5,
        NodePhase::InService => 6,
    }
}

pub(super) fn list(
    session: &mut FleetSession,
    args: &ListArgs,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let path = Path::new("/api/v1/nodes").with("text", args.text.as_ref());
    let path = path.with("needs_attention", args.needs_attention.then_some(true));
    let mut nodes = read_nodes(session, &args.filter.add_to(path))?;
    for unknown in args.filter.unknown_names(session, &nodes)? {
        failure::warn(&anyhow::Error::msg(unknown));
    }
    let default = if args.needs_attention { NodeOrder::Urgency } else { NodeOrder::Name };
    args.sort.unwrap_or(default).sort(&mut nodes);
    let limit = args.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let shown = &nodes[..nodes.len().min(limit)];
    if args.output == Output::Json {
        shown.iter().try_for_each(|node| printer.json_line(node))?;
        return Ok(Outcome::Fine);
    }
    if nodes.is_empty() {
        printer.line(nothing(args))?;
        return Ok(Outcome::Fine);
    }
    if args.needs_attention {
        attention::print(shown, printer)?;
    } else {
        table(shown, printer)?;
    }
    printer.line("")?;
    printer.line(&summary(&nodes))?;
    if let Some(agents) = connection::summary(&nodes) {
        printer.line(&agents)?;
    }
    if let Some(coverage) = coverage_summary(&nodes) {
        printer.line(&coverage)?;
    }
    if shown.len() < nodes.len() {
        let total = counted(nodes.len());
        printer.line(&format!("shown: {} of {total}; without --limit, all", shown.len()))?;
    }
    Ok(Outcome::Fine)
}

fn nothing(args: &ListArgs) -> &'static str {
    let is_filtered = !args.filter.is_empty() || args.text.is_some();
    match (args.needs_attention, is_filtered) {
        (true, false) => "no node in your scope needs attention",
        (true, true) => "no node in your scope matches and needs attention",
        (false, true) => "no node in your scope matches",
        (false, false) => {
            "no nodes in your scope; `farrier server token create` on the server lets nodes join"
        }
    }
}

const COLUMNS: [LineColumn; 8] = [
    LineColumn { heading: "Node", fit: Fit::Whole },
    LineColumn { heading: "Phase", fit: Fit::Whole },
    LineColumn { heading: "For", fit: Fit::Whole },
    LineColumn { heading: "Heartbeat", fit: Fit::Optional(2) },
    LineColumn { heading: "Location", fit: Fit::Optional(1) },
    LineColumn { heading: "GPUs", fit: Fit::Optional(3) },
    LineColumn { heading: "Driver", fit: Fit::Optional(4) },
    LineColumn { heading: "Reason", fit: Fit::Cut { min: 24 } },
];

fn table(nodes: &[NodeRow], printer: &mut Printer) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = nodes.iter().map(|node| row(node, printer)).collect();
    Ok(printer.line_table(&COLUMNS, &rows)?)
}

fn row(node: &NodeRow, printer: &Printer) -> Vec<String> {
    let gpus = match (node.gpus, &node.gpu) {
        (Some(count), Some(name)) => format!("{count} × {}", name.trim_start_matches("NVIDIA ")),
        (Some(count), None) => count.to_string(),
        (None, _) => "unknown".to_owned(),
    };
    let (tone, heartbeat) = connection::cell(node.connection.as_ref());
    let heartbeat = tone.map_or_else(|| heartbeat.clone(), |tone| printer.toned(tone, &heartbeat));
    let location = &node.location;
    let units = [&location.site, &location.rack].into_iter().flatten().map(ToString::to_string);
    let location: Vec<String> = std::iter::once(location.pool.to_string()).chain(units).collect();
    vec![
        node.node.to_string(),
        toned(printer, node.phase),
        age_cell(node.since),
        heartbeat,
        location.join("/"),
        gpus,
        node.driver.clone().unwrap_or_else(|| "unknown".to_owned()),
        problem(node).unwrap_or_else(|| "-".to_owned()),
    ]
}

/// What is wrong with a node: the reason for its phase or, for a node in service, its findings. Also
/// a missing cordon, coverage gaps, what is deferred, and a lost heartbeat. `None` if nothing is
/// wrong.
fn problem(node: &NodeRow) -> Option<String> {
    let mut parts = Vec::new();
    // A suspect node is expected to take work, so do not mention it.
    let intake = intake(node.phase, node.cordon.as_ref()).filter(|_| is_out(node.phase));
    parts.extend(intake.map(str::to_owned));
    if node.phase != NodePhase::InService {
        parts.push(node.reason.text.clone());
    } else if let Some(worst) = node.worst {
        parts.push(match node.findings {
            1 => format!("1 finding ({worst})"),
            findings => format!("{findings} findings ({worst})"),
        });
    }
    // If the reason for the phase is a coverage gap, do not also count the gaps.
    let gaps = gaps(node).filter(|_| !node.reason.is_coverage_gap());
    parts.extend(gaps.map(|gaps| match gaps {
        1 => "1 coverage gap".to_owned(),
        gaps => format!("{gaps} coverage gaps"),
    }));
    let waits = if waits_for_person(node) { "waiting for a person" } else { "deferred" };
    parts.extend(node.deferred.as_ref().map(|deferred| format!("{waits}: {}", deferred.text)));
    let mut reasons = [Some(&node.reason), node.deferred.as_ref()].into_iter().flatten();
    let is_reported = reasons.any(ReasonView::is_heartbeat_lost);
    let lost = node.heartbeat_lost_since.filter(|_| !is_reported);
    parts.extend(lost.map(|since| format!("no heartbeat since {since:.0}")));
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Counts nodes by phase, and by whether they may take work although they are suspect or out of
/// service. A suspect node still runs work, but it is counted as suspect and not as in service.
fn summary(nodes: &[NodeRow]) -> String {
    let mut counts: BTreeMap<(u8, String), usize> = BTreeMap::new();
    for node in nodes {
        let phase = if node.phase == NodePhase::Repairing && waits_for_person(node) {
            "waiting for a person".to_owned()
        } else {
            node.phase.to_string()
        };
        let place = NodePhase::ALL.iter().position(|phase| *phase == node.phase);
        let place = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX);
        let intake = intake(node.phase, node.cordon.as_ref());
        let intake = intake.map(|intake| format!(" ({intake})")).unwrap_or_default();
        *counts.entry((place, format!("{phase}{intake}"))).or_default() += 1;
    }
    let counts = counts.iter().map(|((_, phase), count)| format!("{count} {phase}"));
    format!("{}: {}", counted(nodes.len()), counts.collect::<Vec<_>>().join(", "))
}

/// Whether the node only waits for a person. A node that waits for a slot of a disruption budget
/// does not, although it needs attention.
pub(super) fn waits_for_person(node: &NodeRow) -> bool {
    let cause =
        node.attention.as_ref().and_then(|attention| AttentionCause::from_code(&attention.code));
    let waits = match cause {
        Some(
            AttentionCause::NeedsApproval | AttentionCause::NeedsRepair | AttentionCause::Lemon,
        ) => true,
        Some(AttentionCause::DomainFault | AttentionCause::OrderFailed) => {
            node.phase == NodePhase::Repairing
        }
        _ => false,
    };
    waits && node.deferred.is_some() && node.order.is_none()
}

/// Whether the phase keeps a node out of service.
pub(super) fn is_out(phase: NodePhase) -> bool {
    !phase.in_service() && phase != NodePhase::Joining
}

/// That a node may get new work although it is suspect or out of service. `None` for other nodes,
/// and if an older server does not say.
pub(super) fn intake(phase: NodePhase, cordon: Option<&Cordon>) -> Option<&'static str> {
    match (phase, cordon) {
        (NodePhase::Suspect, _) => Some("still takes work"),
        (phase, Some(Cordon::None)) if is_out(phase) => Some("still takes work"),
        (phase, Some(Cordon::Unknown)) if is_out(phase) => Some("cordon unknown"),
        _ => None,
    }
}

/// Number of open coverage gaps. `None` if there are no gaps, or if the number is unknown.
fn gaps(node: &NodeRow) -> Option<u32> {
    node.coverage_gaps.filter(|gaps| *gaps > 0)
}

/// Counts the nodes with coverage gaps, and the nodes whose coverage is unknown.
fn coverage_summary(nodes: &[NodeRow]) -> Option<String> {
    let count = |which: fn(&NodeRow) -> bool| {
        let count = nodes.iter().filter(|node| which(node)).count();
        (count > 0).then(|| counted(count))
    };
    let with_gaps = count(|node| gaps(node).is_some())
        .map(|nodes| format!("{nodes} with coverage gaps (`farrier fleet explain NODE`)"));
    let unknown = count(|node| node.coverage_gaps.is_none())
        .map(|nodes| format!("coverage of {nodes} unknown"));
    let parts: Vec<String> = with_gaps.into_iter().chain(unknown).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `1 node`, `8 nodes`
pub(crate) fn counted(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

/// The time since then, such as `40m`.
pub(super) fn age_since(since: Timestamp) -> String {
    age(Timestamp::now().duration_since(since))
}

/// A time with its age, such as `2026-11-15T22:00:08Z (40m ago)`.
pub(super) fn with_age(at: Timestamp) -> String {
    format!("{at:.0} ({} ago)", age_since(at))
}

/// The time since then. The cell has the same width for minutes and for a year.
pub(super) fn age_cell(since: Timestamp) -> String {
    format!("{:<4}", age_since(since))
}

/// Formats an age in the largest unit in which it is at least two, such as `95s`, `40m`, `30h` or
/// `12d`.
pub(super) fn age(since: SignedDuration) -> String {
    let seconds = since.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

pub(super) fn toned(printer: &Printer, phase: NodePhase) -> String {
    let tone = match phase {
        NodePhase::InService => Tone::Good,
        NodePhase::Joining | NodePhase::Suspect | NodePhase::Verifying | NodePhase::Held => {
            Tone::Caution
        }
        NodePhase::Quarantined | NodePhase::Repairing => Tone::Bad,
    };
    printer.toned(tone, &phase.to_string())
}
