//! Repairs and their outcome.

use std::collections::BTreeMap;

use super::report::RepairTally;
use crate::fleet::event::{Event, OperatorRequest};
use crate::fleet::identity::NodeId;
use crate::fleet::order::{OrderKind, OrderStatus};
use crate::fleet::state::NodePhase;

/// Code of a repair that an operator reports.
const MANUAL: &str = "manual";

/// Counts of repairs by their code, and the repairs whose outcome is still open.
#[derive(Debug, Default)]
pub(super) struct RepairLedger {
    tallies: BTreeMap<&'static str, RepairTally>,
    /// Repairs that are done but not confirmed: the node has neither returned to service nor been
    /// repaired again.
    unverified: BTreeMap<NodeId, &'static str>,
}

impl RepairLedger {
    fn tally(&mut self, code: &'static str) -> &mut RepairTally {
        self.tallies
            .entry(code)
            .or_insert_with(|| RepairTally { repair: code.to_owned(), ..RepairTally::default() })
    }

    /// Processes an entry about this node. `pending` is the order that the node had before the
    /// entry.
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

    /// Records that the last repair did not help: another repair followed, or the node is out of
    /// service again.
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
