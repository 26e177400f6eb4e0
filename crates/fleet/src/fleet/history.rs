//! The recent history of a node in a few lines: findings that opened or cleared, orders with their
//! results, phases, heartbeats and requests of operators.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::event::{Entry, Event};
use super::order::{OrderKind, OrderStatus};
use super::state::Node;
use crate::health::Change;

/// Something that happened to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryLine {
    /// Number of the log entry.
    pub seq: u64,
    pub at: Timestamp,
    pub text: String,
}

/// Returns the last `limit` lines, newest first. `entries` are those of the node, oldest first.
pub fn recent(entries: &[Entry], node: &Node, limit: usize) -> Vec<HistoryLine> {
    let mut orders: BTreeMap<u64, &OrderKind> = BTreeMap::new();
    let mut lines: Vec<HistoryLine> = Vec::new();
    for entry in entries {
        if let Event::OrderIssued { order } = &entry.event {
            orders.insert(order.generation, &order.kind);
        }
        let text = line(entry, node, &orders);
        lines.extend(text.map(|text| HistoryLine { seq: entry.seq, at: entry.at, text }));
    }
    lines.reverse();
    lines.truncate(limit);
    lines
}

/// The line of an entry. `None` if the entry says nothing that a person needs.
fn line(entry: &Entry, node: &Node, orders: &BTreeMap<u64, &OrderKind>) -> Option<String> {
    let name = |generation: &u64| {
        orders
            .get(generation)
            .map_or_else(|| format!("order {generation}"), |kind| node.describe_order(kind))
    };
    match &entry.event {
        Event::OrderStatusReported { generation, status, .. } => {
            let kind = orders.get(generation);
            let is_verification = matches!(kind, Some(OrderKind::Verify { .. }));
            match status {
                OrderStatus::Accepted => None,
                // The phase change that follows says so.
                OrderStatus::Done { .. } if is_verification => None,
                OrderStatus::Done { evidence } => {
                    Some(format!("{} done: {evidence}", name(generation)))
                }
                OrderStatus::Failed { reason } => {
                    Some(format!("{} failed: {reason}", name(generation)))
                }
                OrderStatus::Inconclusive { reason } => {
                    Some(format!("{} had no result: {reason}", name(generation)))
                }
                OrderStatus::Refused { reason } => {
                    Some(format!("{} refused: {reason}", name(generation)))
                }
            }
        }
        Event::OrderCancelled { generation, reason, .. } => {
            Some(format!("{} cancelled: {reason}", name(generation)))
        }
        Event::FindingsReported { changes, .. } => {
            let is_repeat = |change: &Change| matches!(change, Change::Updated(_));
            (!changes.iter().all(is_repeat)).then(|| entry.event.describe_on(Some(node)))
        }
        Event::PhaseChanged { .. }
        | Event::HeartbeatLost { .. }
        | Event::HeartbeatRestored { .. }
        | Event::CordonObserved { .. }
        | Event::Enrolled { .. }
        | Event::LocationChanged { .. }
        | Event::OperatorRequested { .. } => Some(entry.event.describe_on(Some(node))),
        _ => None,
    }
}
