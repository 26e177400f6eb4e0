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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::identity::{Actor, Location, NodeId};
    use crate::fleet::order::{Order, VerificationLevel};
    use crate::fleet::reason::{Reason, UnblockedBy};
    use crate::fleet::state::FleetState;
    use crate::fleet::{LOGIC_VERSION, NodePhase, Rationale};

    fn id() -> NodeId {
        "gpu-1".parse().unwrap()
    }

    fn issued(generation: u64, kind: OrderKind) -> Event {
        let (reason, lease_until) = (Reason::Repaired, Timestamp::UNIX_EPOCH);
        Event::OrderIssued {
            order: Order { node: id(), generation, kind, boot: None, lease_until, reason },
        }
    }

    fn done(generation: u64, evidence: &str) -> Event {
        let status = OrderStatus::Done { evidence: evidence.to_owned() };
        Event::OrderStatusReported { node: id(), generation, status }
    }

    #[test]
    fn orders_have_names_and_results_and_the_newest_line_is_first() {
        let to = NodePhase::InService;
        let rationale = Rationale::new(Reason::Verified { joining: false }, UnblockedBy::Finding);
        let events = [
            Event::Enrolled { node: id(), location: Location::in_pool("train".parse().unwrap()) },
            issued(1, OrderKind::Reboot),
            Event::OrderStatusReported { node: id(), generation: 1, status: OrderStatus::Accepted },
            done(1, "booted again"),
            Event::Tick,
            issued(2, OrderKind::Verify { level: VerificationLevel::V0 }),
            done(2, "coherent"),
            Event::PhaseChanged { node: id(), to, rationale },
        ];
        let mut state = FleetState::default();
        let mut entries = Vec::new();
        for (seq, event) in (1..).zip(events) {
            let (at, by) = (Timestamp::UNIX_EPOCH, Actor::Server);
            let entry = Entry { seq, batch: seq, at, by, logic: LOGIC_VERSION, event };
            state.apply(&entry);
            entries.push(entry);
        }
        let texts = |limit| -> Vec<String> {
            let lines = recent(&entries, &state.nodes[&id()], limit);
            lines.into_iter().map(|line| line.text).collect()
        };
        assert_eq!(
            texts(8),
            [
                "is in service: passed all required verifications",
                "reboot done: booted again",
                "joined pool train",
            ]
        );
        assert_eq!(texts(1).len(), 1);
    }
}
