//! What to do now: a function of state and time. It looks at the nodes that changed, and says what it decided and what waits.
//!
//! Each node is asked again and again for its next step, with what was decided so far taken as done, until it has none. So a
//! standing, its order and its reason come in one decision, and each rule needs to know one step only.

mod blame;
mod breaker;
mod complaint;
mod orders;
mod standing;

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::event::{Entry, Event};
use super::identity::{Actor, NodeId};
use super::policy::PoolPolicy;
use super::reason::Why;
use super::state::{FleetState, Node};
use breaker::Budget;
use complaint::Complaint;
pub use complaint::speaks_against;

/// The version of this logic. Raised whenever the same inputs lead to other decisions: a replay decides again only on what its own
/// version decided (`docs/adr/0020-reasons-are-values.md`).
///
/// 2: a drain that is reported after the cordon went does not count as one, and a repair of which a
/// state before format 3 does not say for which fault it was counts for all.
///
/// 3: a node that the disruption budget keeps in service has its logs collected when an operator asks
/// for them, and its orders expire.
///
/// 4: a joining node that the disruption budget keeps from quarantine is cordoned where its pool has
/// `cordon_joining`, and a requested verification of a suspect node that stays in service runs.
pub const LOGIC_VERSION: u32 = 4;

/// More steps than any node has to take at once. Beyond it a rule and another undo each other's work.
const STEPS_MAX: usize = 16;

/// What was decided.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Into the log, in this order.
    pub events: Vec<Event>,
    /// What waits, and for what.
    pub report: Report,
}

/// What should be done and is not, by node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// In the order of the nodes.
    pub waiting: Vec<(NodeId, Why)>,
}

/// Decides on the nodes that changed.
pub fn decide(state: &FleetState, dirty: &BTreeSet<NodeId>, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    let mut budget = Budget::new(state);
    let verdicts = blame::judge(state, dirty, now);
    let blamed = blame::in_force(state, &verdicts);
    decision.events.extend(verdicts);
    for id in dirty {
        let Some(node) = state.nodes.get(id) else { continue };
        let mut node = Node::clone(node);
        for _ in 0..STEPS_MAX {
            let complaint = Complaint::of(&node);
            let pool = state.policy.of(&node.place.pool);
            let look =
                Look { id, node: &node, complaint: &complaint, pool, state, blamed: &blamed, now };
            let Some(event) = look.next_step(&budget) else { break };
            let counted = node.counts_as_out();
            node.foresee(&event, now);
            budget.count(counted, &node);
            decision.events.push(event);
        }
        decision.report.waiting.extend(node.phase.deferred().map(|why| (id.clone(), why.clone())));
    }
    decision
}

/// One node, with all that its next step depends on.
struct Look<'a> {
    id: &'a NodeId,
    node: &'a Node,
    complaint: &'a Complaint,
    pool: &'a PoolPolicy,
    state: &'a FleetState,
    blamed: &'a blame::InForce,
    now: Timestamp,
}

impl Look<'_> {
    /// First where it stands, then what is overdue, then what to order. What is not done is said once.
    fn next_step(&self, budget: &Budget<'_>) -> Option<Event> {
        let step = match standing::step(self, budget) {
            Some(Event::HeldBack { node, why }) => {
                orders::step_while_deferred(self).or(Some(Event::HeldBack { node, why }))
            }
            other => other.or_else(|| orders::step(self)),
        };
        match step {
            Some(Event::HeldBack { why, .. }) if self.node.phase.deferred() == Some(&why) => None,
            other => other,
        }
    }

    fn held_back(&self, why: Why) -> Event {
        Event::HeldBack { node: self.id.clone(), why }
    }
}

impl Node {
    /// The node as it will be when the event is in the log.
    fn foresee(&mut self, event: &Event, now: Timestamp) {
        let (by, logic, event) = (Actor::Server, LOGIC_VERSION, event.clone());
        let entry = Entry { seq: 0, batch: 0, at: now, by, logic, event };
        match &entry.event {
            Event::Ordered { order } => self.ordered(order),
            _ => self.take_in(&entry),
        }
    }
}
