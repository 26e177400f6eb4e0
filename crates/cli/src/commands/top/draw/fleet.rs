//! A fleet: its nodes, and one of them.

use farrier_fleet::fleet::NodePhase;
use farrier_fleet::fleet::event::NodeInventory;
use farrier_fleet::health::Subject;
use farrier_wire::rest::{ConnectionState, NodeDetail, NodeRow};
use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::{node, severity, silence, words};
use crate::commands::top::board::Fleet;
use crate::commands::top::now::FindingNow;
use crate::commands::top::screen::Screen;

pub(super) fn draw(frame: &mut Frame, fleet: &Fleet, screen: &Screen, now: Timestamp) {
    let mut row = header(frame, fleet, now);
    row += silence(frame, row, fleet.silence.as_ref(), now);
    let below = frame.height().saturating_sub(1);
    let nodes = screen.nodes(fleet);
    let columns = columns(frame.width());
    if below > row {
        let mut at = 0;
        for (heading, width) in &columns {
            frame.text(row, at, *width, Style::Dim, heading);
            at += width + 1;
        }
        row += 1;
    }
    let room = below.saturating_sub(row);
    let chosen = nodes.iter().position(|it| Some(it.node.to_string()) == screen.chosen);
    let (from, shown) = node::window(nodes.len(), chosen, room);
    for (place, it) in nodes[from..from + shown].iter().enumerate() {
        draw_row(frame, row, &columns, it, now);
        if Some(from + place) == chosen {
            frame.style_row(row, Style::Chosen);
        }
        row += 1;
    }
    if nodes.is_empty() && room > 0 {
        let text = match (fleet.silence.is_some(), fleet.nodes.is_empty()) {
            (true, _) => "no node is known",
            (false, true) => "no node has joined that you see",
            (false, false) => "no node is like that",
        };
        frame.text(row, 0, usize::MAX, Style::Dim, text);
    }
}

fn header(frame: &mut Frame, fleet: &Fleet, now: Timestamp) -> usize {
    let width = frame.width();
    let at = frame.text(0, 0, width, Style::Strong, "farrier top");
    let out = fleet.nodes.iter().filter(|it| !it.phase.in_service()).count();
    let count = match (fleet.at, fleet.has_more) {
        (None, _) => "nodes not known".to_owned(),
        (Some(_), true) => format!("more than {} nodes", fleet.nodes.len()),
        (Some(_), false) => format!("{} nodes", fleet.nodes.len()),
    };
    let text = match fleet.at {
        Some(_) => format!("  {}  {count}, {out} not in service", fleet.url),
        None => format!("  {}  {count}", fleet.url),
    };
    let at = frame.text(0, at, usize::MAX, Style::Plain, &text);
    let clock = words::clock(now);
    if at + 2 + clock.len() <= width {
        frame.right(0, at, width - at, Style::Dim, &clock);
    }
    1
}

/// Headings and widths, as there is room; the last takes the rest.
fn columns(width: usize) -> Vec<(&'static str, usize)> {
    let mut columns = vec![("node", if width >= 100 { 24 } else { 14.min(width) })];
    let mut take = |from, heading, wide| {
        if width >= from {
            columns.push((heading, wide));
        }
    };
    take(30, "phase", 12);
    take(100, "pool", 10);
    take(120, "rack", 8);
    take(60, "for", 6);
    take(70, "GPUs", if width >= 100 { 18 } else { 4 });
    take(110, "driver", 11);
    take(44, "found", 10);
    take(40, "why", 120);
    columns
}

fn draw_row(
    frame: &mut Frame,
    row: usize,
    columns: &[(&'static str, usize)],
    node: &NodeRow,
    now: Timestamp,
) {
    let mut at = 0;
    for (heading, width) in columns {
        let (style, text) = match *heading {
            "node" => (Style::Strong, node.node.to_string()),
            "phase" => (phase(node.phase), node.phase.to_string()),
            "pool" => (Style::Plain, node.location.pool.to_string()),
            "rack" => {
                let rack = node.location.rack.as_ref().map(ToString::to_string);
                (Style::Plain, rack.unwrap_or_else(|| "-".to_owned()))
            }
            "for" => (Style::Plain, words::ago(node.since, now)),
            "GPUs" => (Style::Plain, gpus(node, *width)),
            "driver" => (Style::Plain, node.driver.clone().unwrap_or_else(|| "?".to_owned())),
            "found" => match node.worst {
                Some(worst) => (severity(worst), format!("{} {worst}", node.findings)),
                None => (Style::Dim, "-".to_owned()),
            },
            _ => (Style::Plain, why(node)),
        };
        frame.text(row, at, *width, style, &text);
        at += width + 1;
    }
}

fn gpus(node: &NodeRow, width: usize) -> String {
    match (node.gpus, &node.gpu) {
        (Some(count), Some(name)) if width > 6 => {
            format!("{count} × {}", name.trim_start_matches("NVIDIA "))
        }
        (Some(count), _) => count.to_string(),
        (None, _) => "?".to_owned(),
    }
}

fn why(node: &NodeRow) -> String {
    let mut why = node.reason.text.clone();
    if let Some(order) = &node.order {
        why = format!("{order}: {why}");
    }
    if let Some(held) = &node.deferred {
        why.push_str(&format!("; held back: {}", held.text));
    }
    if node.heartbeat_lost_since.is_some() {
        why = format!("silent; {why}");
    }
    match node.connection.as_ref().map(|it| it.state) {
        Some(ConnectionState::HeartbeatLate) => why = format!("heartbeat late; {why}"),
        Some(ConnectionState::ReportsDelayed) => why = format!("reports delayed; {why}"),
        Some(ConnectionState::Disconnected) => why = format!("disconnected; {why}"),
        _ => (),
    }
    why
}

fn phase(phase: NodePhase) -> Style {
    match phase {
        NodePhase::InService => Style::Good,
        NodePhase::Joining | NodePhase::Suspect | NodePhase::Verifying | NodePhase::Held => {
            Style::Caution
        }
        NodePhase::Quarantined | NodePhase::Repairing => Style::Bad,
    }
}

pub(super) fn draw_node(frame: &mut Frame, fleet: &Fleet, name: &str, now: Timestamp) {
    let mut row = header(frame, fleet, now);
    row += silence(frame, row, fleet.silence.as_ref(), now);
    let open = fleet.open.as_ref().filter(|node| node.node.to_string() == name);
    let Some(node) = open else {
        let (style, text) = match (&fleet.open_failed, &fleet.silence) {
            (Some(why), _) => (Style::Bad, format!("{name}: {why}")),
            (None, Some(_)) => (Style::Dim, format!("{name}: nothing is known of it")),
            (None, None) => (Style::Dim, format!("{name}: asked")),
        };
        frame.text(row, 0, usize::MAX, style, &text);
        return;
    };
    let at = frame.text(row, 0, usize::MAX, Style::Strong, name);
    let at = frame.text(row, at, usize::MAX, Style::Plain, "  ");
    let at = frame.text(row, at, usize::MAX, phase(node.phase), &node.phase.to_string());
    let since = format!(" for {}", words::ago(node.since, now));
    frame.text(row, at, usize::MAX, Style::Plain, &since);
    row += 1;
    for (what, text) in lines(node) {
        if row >= frame.height().saturating_sub(1) {
            return;
        }
        frame.text(row, 0, 12, Style::Dim, what);
        frame.text(row, 13, usize::MAX, Style::Plain, &text);
        row += 1;
    }
    let mut findings: Vec<FindingNow> = node
        .findings
        .iter()
        .map(|finding| FindingNow::of(finding, on(node.inventory.as_ref(), &finding.subject)))
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let room = frame.height().saturating_sub(row + 1);
    if findings.is_empty() && room > 0 {
        frame.text(row, 0, usize::MAX, Style::Dim, "findings: none");
        row += 1;
    } else if room > 0 {
        row = node::list(frame, row, room, &findings, now);
    }
    if row + 1 < frame.height() {
        let text = "live values are the agent's: farrier top on the node";
        frame.text(row, 0, usize::MAX, Style::Dim, text);
    }
}

/// What a finding is about: a GPU by its number, where the node told it.
fn on(inventory: Option<&NodeInventory>, subject: &Subject) -> String {
    let listed = inventory.and_then(|inventory| inventory.gpus.as_ref());
    let found = subject.gpu().and_then(|uuid| listed?.iter().find(|gpu| gpu.uuid == *uuid));
    match found.and_then(|gpu| gpu.index) {
        Some(index) => format!("GPU {index} {subject}"),
        None => subject.to_string(),
    }
}

fn lines(node: &NodeDetail) -> Vec<(&'static str, String)> {
    let unknown = || "not known".to_owned();
    let mut lines = vec![
        ("pool", node.location.pool.to_string()),
        ("why", node.rationale.reason.text.clone()),
        ("until", node.rationale.unblocked_by.text.clone()),
    ];
    if let Some(held) = &node.deferred {
        lines
            .push(("held back", format!("{}; until {}", held.reason.text, held.unblocked_by.text)));
    }
    if let Some(order) = &node.order {
        lines.push(("order", format!("{} until {:.0}", order.text, order.lease_until)));
    }
    if let Some(hold) = &node.hold {
        lines.push(("held by", format!("{}: {}", hold.by, hold.reason)));
    }
    if let Some(since) = node.heartbeat_lost_since {
        lines.push(("silent", format!("nothing was heard since {since:.0}")));
    }
    if let Some(connection) = &node.connection {
        lines.push(("agent", connection.to_string()));
    }
    match &node.inventory {
        Some(inventory) => {
            lines.push(("driver", inventory.driver.clone().unwrap_or_else(unknown)));
            let gpus = inventory.gpus.as_ref().map(|all| {
                let name = all.first().and_then(|gpu| gpu.name.clone());
                format!("{} × {}", all.len(), name.unwrap_or_else(|| "a GPU".to_owned()))
            });
            lines.push(("GPUs", gpus.unwrap_or_else(unknown)));
        }
        None => lines.push(("made of", "nothing was reported yet".to_owned())),
    }
    lines
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::event::GpuInventory;
    use farrier_fleet::health::GpuUuid;

    use super::*;

    #[test]
    fn a_finding_names_its_gpu_by_number_where_that_is_known() {
        let uuid = GpuUuid("GPU-1".to_owned());
        let gpu = GpuInventory { uuid: uuid.clone(), name: None, index: Some(5), pci: None };
        let inventory = NodeInventory { gpus: Some(vec![gpu]), ..NodeInventory::default() };
        assert_eq!(on(Some(&inventory), &Subject::Gpu(uuid.clone())), "GPU 5 GPU-1");
        assert_eq!(on(None, &Subject::Gpu(uuid)), "GPU-1");
        assert_eq!(on(Some(&inventory), &Subject::Node), "node");
    }
}
