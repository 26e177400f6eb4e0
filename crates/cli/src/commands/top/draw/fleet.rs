//! The fleet page and the page of one of its nodes.

use farrier_fleet::fleet::NodePhase;
use farrier_fleet::fleet::event::NodeInventory;
use farrier_fleet::health::Subject;
use farrier_wire::rest::{ConnectionState, NodeDetail, NodeRow};
use jiff::Timestamp;

use super::frame::{Frame, Style};
use super::{format, node, outage, severity};
use crate::commands::top::model::FleetSample;
use crate::commands::top::sample::FindingSample;
use crate::commands::top::view_state::ViewState;

pub(super) fn draw(frame: &mut Frame, fleet: &FleetSample, state: &ViewState, now: Timestamp) {
    let mut row = header(frame, fleet, now);
    row += outage(frame, row, fleet.outage.as_ref(), now);
    let below = frame.height().saturating_sub(1);
    let nodes = state.nodes(fleet);
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
    let selected = nodes.iter().position(|node| Some(node.node.to_string()) == state.selected);
    let (from, shown) = node::viewport(nodes.len(), selected, room);
    for (index, node) in nodes[from..from + shown].iter().enumerate() {
        draw_row(frame, row, &columns, node, now);
        if Some(from + index) == selected {
            frame.style_row(row, Style::Selected);
        }
        row += 1;
    }
    if nodes.is_empty() && room > 0 {
        let text = match (fleet.outage.is_some(), fleet.nodes.is_empty()) {
            (true, _) => "no node data",
            (false, true) => "no node has joined, or none is visible to you",
            (false, false) => "no node matches the filter",
        };
        frame.text(row, 0, usize::MAX, Style::Dim, text);
    }
}

fn header(frame: &mut Frame, fleet: &FleetSample, now: Timestamp) -> usize {
    let width = frame.width();
    let at = frame.text(0, 0, width, Style::Strong, "farrier top");
    let out = fleet.nodes.iter().filter(|node| !node.phase.in_service()).count();
    let count = match (fleet.at, fleet.has_more) {
        (None, _) => "nodes unknown".to_owned(),
        (Some(_), true) => format!("more than {} nodes", fleet.nodes.len()),
        (Some(_), false) => format!("{} nodes", fleet.nodes.len()),
    };
    let text = match fleet.at {
        Some(_) => format!("  {}  {count}, {out} not in service", fleet.url),
        None => format!("  {}  {count}", fleet.url),
    };
    let at = frame.text(0, at, usize::MAX, Style::Plain, &text);
    let clock = format::clock(now);
    if at + 2 + clock.len() <= width {
        frame.right(0, at, width - at, Style::Dim, &clock);
    }
    1
}

/// Headings and widths of the columns that fit; the last takes the rest.
fn columns(width: usize) -> Vec<(&'static str, usize)> {
    let mut columns = vec![("node", if width >= 100 { 24 } else { 14.min(width) })];
    let mut add = |min_width, heading, column_width| {
        if width >= min_width {
            columns.push((heading, column_width));
        }
    };
    add(30, "phase", 12);
    add(100, "pool", 10);
    add(120, "rack", 8);
    add(60, "for", 6);
    add(70, "GPUs", if width >= 100 { 18 } else { 4 });
    add(110, "driver", 11);
    add(44, "findings", 10);
    add(40, "reason", 120);
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
            "phase" => (phase_style(node.phase), node.phase.to_string()),
            "pool" => (Style::Plain, node.location.pool.to_string()),
            "rack" => {
                let rack = node.location.rack.as_ref().map(ToString::to_string);
                (Style::Plain, rack.unwrap_or_else(|| "-".to_owned()))
            }
            "for" => (Style::Plain, format::ago(node.since, now)),
            "GPUs" => (Style::Plain, gpus(node, *width)),
            "driver" => (Style::Plain, node.driver.clone().unwrap_or_else(|| "?".to_owned())),
            "findings" => match node.worst {
                Some(worst) => (severity(worst), format!("{} {worst}", node.findings)),
                None => (Style::Dim, "-".to_owned()),
            },
            _ => (Style::Plain, reason(node)),
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

fn reason(node: &NodeRow) -> String {
    let mut text = node.reason.text.clone();
    if let Some(order) = &node.order {
        text = format!("{order}: {text}");
    }
    if let Some(reason) = &node.deferred {
        text.push_str(&format!("; deferred: {}", reason.text));
    }
    if node.heartbeat_lost_since.is_some() {
        text = format!("heartbeat lost; {text}");
    }
    match node.connection.as_ref().map(|connection| connection.state) {
        Some(ConnectionState::HeartbeatLate) => text = format!("heartbeat late; {text}"),
        Some(ConnectionState::ReportsDelayed) => text = format!("reports delayed; {text}"),
        Some(ConnectionState::Disconnected) => text = format!("disconnected; {text}"),
        _ => (),
    }
    text
}

fn phase_style(phase: NodePhase) -> Style {
    match phase {
        NodePhase::InService => Style::Good,
        NodePhase::Joining | NodePhase::Suspect | NodePhase::Verifying | NodePhase::Held => {
            Style::Caution
        }
        NodePhase::Quarantined | NodePhase::Repairing => Style::Bad,
    }
}

pub(super) fn draw_node(frame: &mut Frame, fleet: &FleetSample, name: &str, now: Timestamp) {
    let mut row = header(frame, fleet, now);
    row += outage(frame, row, fleet.outage.as_ref(), now);
    let open = fleet.open.as_ref().filter(|node| node.node.to_string() == name);
    let Some(node) = open else {
        let (style, text) = match (&fleet.open_failed, &fleet.outage) {
            (Some(why), _) => (Style::Bad, format!("{name}: {why}")),
            (None, Some(_)) => (Style::Dim, format!("{name}: no data")),
            (None, None) => (Style::Dim, format!("{name}: loading")),
        };
        frame.text(row, 0, usize::MAX, style, &text);
        return;
    };
    let at = frame.text(row, 0, usize::MAX, Style::Strong, name);
    let at = frame.text(row, at, usize::MAX, Style::Plain, "  ");
    let at = frame.text(row, at, usize::MAX, phase_style(node.phase), &node.phase.to_string());
    let since = format!(" for {}", format::ago(node.since, now));
    frame.text(row, at, usize::MAX, Style::Plain, &since);
    row += 1;
    for (label, text) in details(node) {
        if row >= frame.height().saturating_sub(1) {
            return;
        }
        frame.text(row, 0, 12, Style::Dim, label);
        frame.text(row, 13, usize::MAX, Style::Plain, &text);
        row += 1;
    }
    let mut findings: Vec<FindingSample> = node
        .findings
        .iter()
        .map(|finding| {
            FindingSample::new(finding, subject_name(node.inventory.as_ref(), &finding.subject))
        })
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let room = frame.height().saturating_sub(row + 1);
    if findings.is_empty() && room > 0 {
        frame.text(row, 0, usize::MAX, Style::Dim, "findings: none");
        row += 1;
    } else if room > 0 {
        row = node::draw_findings(frame, row, room, &findings, now);
    }
    if row + 1 < frame.height() {
        let text = "for live values run `farrier top` on the node";
        frame.text(row, 0, usize::MAX, Style::Dim, text);
    }
}

/// The subject of a finding: a GPU by its index, if the node's inventory lists it.
fn subject_name(inventory: Option<&NodeInventory>, subject: &Subject) -> String {
    let listed = inventory.and_then(|inventory| inventory.gpus.as_ref());
    let gpu = subject.gpu().and_then(|uuid| listed?.iter().find(|gpu| gpu.uuid == *uuid));
    match gpu.and_then(|gpu| gpu.index) {
        Some(index) => format!("GPU {index} {subject}"),
        None => subject.to_string(),
    }
}

fn details(node: &NodeDetail) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let mut lines = vec![
        ("pool", node.location.pool.to_string()),
        ("reason", node.rationale.reason.text.clone()),
        ("until", node.rationale.unblocked_by.text.clone()),
    ];
    if let Some(rationale) = &node.deferred {
        let text = format!("{}; until {}", rationale.reason.text, rationale.unblocked_by.text);
        lines.push(("deferred", text));
    }
    if let Some(order) = &node.order {
        lines.push(("order", format!("{}, lease until {:.0}", order.text, order.lease_until)));
    }
    if let Some(hold) = &node.hold {
        lines.push(("held by", format!("{}: {}", hold.by, hold.reason)));
    }
    if let Some(since) = node.heartbeat_lost_since {
        lines.push(("heartbeat", format!("lost since {since:.0}")));
    }
    if let Some(connection) = &node.connection {
        lines.push(("agent", connection.to_string()));
    }
    match &node.inventory {
        Some(inventory) => {
            lines.push(("driver", inventory.driver.clone().unwrap_or_else(unknown)));
            let gpus = inventory.gpus.as_ref().map(|gpus| {
                let name = gpus.first().and_then(|gpu| gpu.name.clone());
                format!(
                    "{} × {}",
                    gpus.len(),
                    name.unwrap_or_else(|| "GPU of unknown model".to_owned())
                )
            });
            lines.push(("GPUs", gpus.unwrap_or_else(unknown)));
        }
        None => lines.push(("inventory", "not reported yet".to_owned())),
    }
    lines
}

#[cfg(test)]
mod tests {
    use farrier_fleet::fleet::event::GpuInventory;
    use farrier_fleet::health::GpuUuid;

    use super::*;

    #[test]
    fn findings_name_their_gpu_by_index() {
        let uuid = GpuUuid("GPU-1".to_owned());
        let index = Some(5);
        let gpu = GpuInventory { uuid: uuid.clone(), name: None, index, pci: None, serial: None };
        let inventory = NodeInventory { gpus: Some(vec![gpu]), ..NodeInventory::default() };
        assert_eq!(subject_name(Some(&inventory), &Subject::Gpu(uuid.clone())), "GPU 5 GPU-1");
        assert_eq!(subject_name(None, &Subject::Gpu(uuid)), "GPU-1");
        assert_eq!(subject_name(Some(&inventory), &Subject::Node), "node");
    }
}
