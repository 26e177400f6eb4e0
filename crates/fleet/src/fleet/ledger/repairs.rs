//! Repairs and their outcome.

use std::collections::BTreeMap;

use super::report::RepairTally;
use crate::fleet::event::{Event, OperatorRequest};
use crate::fleet::identity::NodeId;
use crate::fleet::order::{OrderKind, OrderStatus};
use crate::fleet::state::NodePhase;

/// Code of a repair that an operator reports.
const MANUAL: &str = "manual";

/// Tallies by code of the repair, and the repairs whose outcome is open.
#[derive(Debug, Default)]
pub(super) struct RepairLedger {
    tallies: BTreeMap<&'static str, RepairTally>,
    /// Repairs that are done, until the node returns to service or is repaired again.
    unverified: BTreeMap<NodeId, &'static str>,
}

impl RepairLedger {
    fn tally(&mut self, code: &'static str) -> &mut RepairTally {
        self.tallies
            .entry(code)
            .or_insert_with(|| RepairTally { repair: code.to_owned(), ..RepairTally::default() })
    }

    /// Takes an entry about this node. `pending` is the order that it waited for before the entry.
    pub(super) fn note(&mut self, node: &NodeId, event: &Event, pending: Option<&OrderKind>) {
        let pending = pending.filter(|kind| kind.is_repair()).map(|kind| kind.spec().code);
        match event {
            Event::OrderIssued { order } if order.kind.is_repair() => {
                self.tally(order.kind.spec().code).started += 1;
            }
            Event::OrderStatusReported { status, .. } => match (pending, status) {
                (Some(code), OrderStatus::Done { .. }) => self.done(node, code),
                (Some(code), OrderStatus::Failed { .. } | OrderStatus::Refused { .. }) => {
                    self.tally(code).failed += 1;
                }
                _ => {}
            },
            Event::OrderCancelled { .. } => {
                if let Some(code) = pending {
                    self.tally(code).failed += 1;
                }
            }
            Event::OperatorRequested { request: OperatorRequest::Repaired { .. } } => {
                self.tally(MANUAL).started += 1;
                self.done(node, MANUAL);
            }
            Event::PhaseChanged { to: NodePhase::InService, .. } => {
                if let Some(code) = self.unverified.remove(node) {
                    self.tally(code).returned += 1;
                }
            }
            Event::PhaseChanged { to: NodePhase::Quarantined | NodePhase::Repairing, .. } => {
                self.did_not_help(node);
            }
            Event::PhaseChanged { to: NodePhase::Held, .. } | Event::Retired { .. } => {
                self.unverified.remove(node);
            }
            _ => {}
        }
    }

    fn done(&mut self, node: &NodeId, code: &'static str) {
        self.did_not_help(node);
        self.unverified.insert(node.clone(), code);
    }

    /// The last repair was followed by another one, or the node is out of service again.
    fn did_not_help(&mut self, node: &NodeId) {
        if let Some(code) = self.unverified.remove(node) {
            self.tally(code).did_not_help += 1;
        }
    }

    pub(super) fn finish(self) -> Vec<RepairTally> {
        let open = |tally: RepairTally| {
            let ended = tally.failed + tally.returned + tally.did_not_help;
            RepairTally { open: tally.started.saturating_sub(ended), ..tally }
        };
        self.tallies.into_values().map(open).collect()
    }
}
