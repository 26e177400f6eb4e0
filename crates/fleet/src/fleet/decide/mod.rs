//! What to do now: a function of state and time. It looks at the nodes that changed, and says what it decided and what waits.
//!
//! Each node is asked again and again for its next step, with what was decided so far taken as done, until it has none. So a
//! standing, its order and its reason come in one decision, and each rule needs to know one step only.

mod common_cause;
mod disruption_budget;
mod health_assessment;
mod orders;
mod phase_transition;

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::event::{Entry, Event};
use super::identity::{Actor, NodeId};
use super::policy::PoolPolicy;
use super::reason::Rationale;
use super::state::{FleetState, Node};
use disruption_budget::BudgetUsage;
use health_assessment::HealthAssessment;
pub use health_assessment::affects_service;

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
    pub waiting: Vec<(NodeId, Rationale)>,
}

/// Decides on the nodes that changed.
pub fn decide(state: &FleetState, dirty: &BTreeSet<NodeId>, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    let mut budget = BudgetUsage::new(state);
    let verdicts = common_cause::judge(state, dirty, now);
    let blamed = common_cause::in_force(state, &verdicts);
    decision.events.extend(verdicts);
    for id in dirty {
        let Some(node) = state.nodes.get(id) else { continue };
        let mut node = Node::clone(node);
        for _ in 0..STEPS_MAX {
            let assessment = HealthAssessment::of(&node);
            let pool = state.policy.for_pool(&node.location.pool);
            let context = DecisionContext {
                id,
                node: &node,
                assessment: &assessment,
                pool,
                state,
                blamed: &blamed,
                now,
            };
            let Some(event) = context.next_step(&budget) else { break };
            let counted = node.is_out_of_service();
            node.apply_tentatively(&event, now);
            budget.count(counted, &node);
            decision.events.push(event);
        }
        decision.report.waiting.extend(node.phase.deferred().map(|why| (id.clone(), why.clone())));
    }
    decision
}

/// One node, with all that its next step depends on.
struct DecisionContext<'a> {
    id: &'a NodeId,
    node: &'a Node,
    assessment: &'a HealthAssessment,
    pool: &'a PoolPolicy,
    state: &'a FleetState,
    blamed: &'a common_cause::ActiveFaults,
    now: Timestamp,
}

impl DecisionContext<'_> {
    /// First where it stands, then what is overdue, then what to order. What is not done is said once.
    fn next_step(&self, budget: &BudgetUsage<'_>) -> Option<Event> {
        let step = match phase_transition::step(self, budget) {
            Some(Event::Deferred { node, rationale }) => orders::step_while_deferred(self)
                .or(Some(Event::Deferred { node, rationale: rationale })),
            other => other.or_else(|| orders::step(self)),
        };
        match step {
            Some(Event::Deferred { rationale, .. })
                if self.node.phase.deferred() == Some(&rationale) =>
            {
                None
            }
            other => other,
        }
    }

    fn deferred(&self, why: Rationale) -> Event {
        Event::Deferred { node: self.id.clone(), rationale: why }
    }
}

impl Node {
    /// The node as it will be when the event is in the log.
    fn apply_tentatively(&mut self, event: &Event, now: Timestamp) {
        let (by, logic, event) = (Actor::Server, LOGIC_VERSION, event.clone());
        let entry = Entry { seq: 0, batch: 0, at: now, by, logic, event };
        match &entry.event {
            Event::OrderIssued { order } => self.ordered(order),
            _ => self.apply(&entry),
        }
    }
}
