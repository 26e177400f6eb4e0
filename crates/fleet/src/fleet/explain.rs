//! Why a node stands where it stands, what waits, and what would change it: for people.

use super::identity::{Domain, NodeId};
use super::reason::{Rationale, Reason};
use super::state::{FleetState, NodePhase};

/// A node, explained.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Where it stands.
    pub phase: NodePhase,
    pub rationale: Rationale,
    /// The order that is on its way.
    pub order: Option<String>,
    /// What should be done and is not.
    pub deferred: Option<Rationale>,
    /// Of what it is a part that is to blame.
    pub domain_faults: Vec<Reason>,
}

/// Explains a node to a caller of this scope, who sees it; none where there is no such node.
pub fn explain(state: &FleetState, id: &NodeId, scope: &Domain) -> Option<Explanation> {
    let node = state.nodes.get(id)?;
    let order = node.orders.pending().map(|pending| {
        let how = if pending.accepted { "the agent is at it" } else { "on its way" };
        let what = node.describe_order(&pending.order.kind);
        format!("{what} (order {}, {how})", pending.order.generation)
    });
    // Whoever waits for an order wants to know that the last one led to nothing.
    let failed = node.orders.failures().map(|last| {
        format!("nothing now; the last failed at {:.0}: {}", last.at, last.reason.redacted(scope))
    });
    let order = order.or(failed);
    let domains = node.location.domains();
    let domain_faults = state.domain_faults.iter().filter(|(domain, _)| domains.contains(domain));
    Some(Explanation {
        phase: node.phase(),
        rationale: node.phase.rationale().redacted(scope),
        order,
        deferred: node.phase.deferred().map(|it| it.redacted(scope)),
        domain_faults: domain_faults
            .map(|(_, blame)| blame.rationale.reason.redacted(scope))
            .collect(),
    })
}
