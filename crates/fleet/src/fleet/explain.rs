//! Explains the phase of a node, its order, its deferred action and its domain faults.

use super::budget::BudgetAccountant;
use super::identity::{Domain, NodeId};
use super::order::OrderKind;
use super::reason::{Rationale, Reason};
use super::state::{DisruptionSlot, FleetState, Node, NodePhase};

#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    pub phase: NodePhase,
    pub rationale: Rationale,
    /// The pending order. If no order is pending, how the last order failed.
    pub order: Option<String>,
    /// Why an action that is due has to wait.
    pub deferred: Option<Rationale>,
    /// Domain faults that the node is part of.
    pub domain_faults: Vec<Reason>,
}

/// Why an action of the node waits. If it waits for a slot of a disruption budget, the result names
/// the nodes that use the budget now. The log names the nodes that used it when the wait began.
pub fn current_deferral(state: &FleetState, node: &Node) -> Option<Rationale> {
    let recorded = node.phase.deferred()?;
    let slot = DisruptionSlot::from_reason(&recorded.reason);
    let current = slot.and_then(|slot| BudgetAccountant::new(state).blocker(&slot));
    Some(current.unwrap_or_else(|| recorded.clone()))
}

/// Explains a node to a caller with this scope. The caller must have checked that the scope
/// includes the node. Returns `None` if there is no such node.
pub fn explain(state: &FleetState, id: &NodeId, scope: &Domain) -> Option<Explanation> {
    let node = state.nodes.get(id)?;
    let order = node.orders.pending().map(|pending| {
        let status = if pending.accepted { "running" } else { "not accepted yet" };
        let order = node.describe_order(&pending.order.kind);
        format!("{order} (order {}, {status})", pending.order.generation)
    });
    // A caller who waits for an order needs to see that the last order failed.
    let inconclusive = node.verification.inconclusive().map(|last| last.level);
    let failed = node.orders.failures().map(|last| {
        let is_inconclusive =
            inconclusive.is_some_and(|level| last.order == OrderKind::Verify { level });
        let ended = if is_inconclusive { "had no result" } else { "failed" };
        format!("none; the last {ended} at {:.0}: {}", last.at, last.reason.redacted(scope))
    });
    let order = order.or(failed);
    let domains = node.location.domains();
    let domain_faults = state.domain_faults.iter().filter(|(domain, _)| domains.contains(domain));
    Some(Explanation {
        phase: node.phase(),
        rationale: node.phase.rationale().redacted(scope),
        order,
        deferred: current_deferral(state, node).map(|rationale| rationale.redacted(scope)),
        domain_faults: domain_faults
            .map(|(_, fault)| fault.rationale.reason.redacted(scope))
            .collect(),
    })
}
