//! Why a node stands where it stands, what waits, and what would change it: for people.

use super::identity::{Domain, NodeId};
use super::reason::{Reason, Why};
use super::state::{FleetState, Standing};

/// A node, explained.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Where it stands.
    pub standing: Standing,
    /// Why.
    pub why: Why,
    /// The order that is on its way.
    pub order: Option<String>,
    /// What should be done and is not.
    pub held_back: Option<Why>,
    /// Of what it is a part that is to blame.
    pub blamed: Vec<Reason>,
}

/// Explains a node to a caller of this scope, who sees it; none where there is no such node.
pub fn explain(state: &FleetState, id: &NodeId, scope: &Domain) -> Option<Explanation> {
    let node = state.nodes.get(id)?;
    let order = node.orders.pending().map(|pending| {
        let how = if pending.accepted { "the agent is at it" } else { "on its way" };
        let what = node.words_of_order(&pending.order.what);
        format!("{what} (order {}, {how})", pending.order.generation)
    });
    // Whoever waits for an order wants to know that the last one led to nothing.
    let failed = node.orders.failures().map(|last| {
        format!("nothing now; the last failed at {:.0}: {}", last.at, last.why.redacted(scope))
    });
    let order = order.or(failed);
    let domains = node.place.domains();
    let blamed = state.blamed.iter().filter(|(domain, _)| domains.contains(domain));
    Some(Explanation {
        standing: node.standing(),
        why: node.phase.why().redacted(scope),
        order,
        held_back: node.phase.deferred().map(|it| it.redacted(scope)),
        blamed: blamed.map(|(_, blame)| blame.why.reason.redacted(scope)).collect(),
    })
}
