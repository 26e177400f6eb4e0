//! Decides what to do now, as a pure function of state and time. Considers only the nodes that
//! changed. Returns the decisions and the deferred actions.
//!
//! For each node, it computes the next step, applies the step tentatively, and repeats until there
//! is no further step. A phase change, its order and its reason therefore come from one decision,
//! and each rule handles a single step.

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
pub use health_assessment::{Impact, affects_service, impact};

/// Version of the decision logic. Raise it whenever the same inputs lead to other decisions. A
/// replay checks only decisions of its own version (`docs/adr/0020-reasons-are-values.md`).
///
/// 2: a drain that is reported after the cordon was removed does not count. A state from before
/// format 3 does not record the faults of a repair attempt, so such an attempt counts for all
/// faults.
///
/// 3: if the disruption budget keeps a node in service, a requested log collection still runs on
/// it, and its orders still expire.
///
/// 4: if the disruption budget keeps a joining node from quarantine, the node is cordoned if its
/// pool has `cordon_joining`. A requested verification also runs on a suspect node that stays in
/// service.
pub const LOGIC_VERSION: u32 = 4;

/// More steps than any node takes at once. If a node reaches this limit, two rules undo each
/// other's work.
const STEPS_MAX: usize = 16;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Events for the log, in this order.
    pub events: Vec<Event>,
    pub report: Report,
}

/// Deferred actions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Ordered by node.
    pub waiting: Vec<(NodeId, Rationale)>,
}

/// Decides on the nodes that changed.
pub fn decide(state: &FleetState, dirty: &BTreeSet<NodeId>, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    let mut budget = BudgetUsage::new(state);
    let fault_events = common_cause::detect_faults(state, dirty, now);
    let active_faults = common_cause::active_faults(state, &fault_events);
    decision.events.extend(fault_events);
    for id in dirty {
        let Some(node) = state.nodes.get(id) else { continue };
        let mut node = Node::clone(node);
        for _ in 0..STEPS_MAX {
            let assessment = HealthAssessment::new(&node);
            let pool = state.policy.for_pool(&node.location.pool);
            let context = DecisionContext {
                id,
                node: &node,
                assessment: &assessment,
                pool,
                state,
                active_faults: &active_faults,
                now,
            };
            let Some(event) = context.next_step(&budget) else { break };
            let was_out_of_service = node.is_out_of_service();
            node.apply_tentatively(&event, now);
            budget.count(was_out_of_service, &node);
            decision.events.push(event);
        }
        decision
            .report
            .waiting
            .extend(node.phase.deferred().map(|rationale| (id.clone(), rationale.clone())));
    }
    decision
}

/// A node and the inputs of its next step.
struct DecisionContext<'a> {
    id: &'a NodeId,
    node: &'a Node,
    assessment: &'a HealthAssessment,
    pool: &'a PoolPolicy,
    state: &'a FleetState,
    active_faults: &'a common_cause::ActiveFaults,
    now: Timestamp,
}

impl DecisionContext<'_> {
    /// The next step: first a phase change, then the cancellation of an order, then a new order.
    /// The same deferral is recorded only once.
    fn next_step(&self, budget: &BudgetUsage<'_>) -> Option<Event> {
        let step = match phase_transition::step(self, budget) {
            Some(Event::Deferred { node, rationale }) => {
                orders::step_while_deferred(self).or(Some(Event::Deferred { node, rationale }))
            }
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

    fn deferred(&self, rationale: Rationale) -> Event {
        Event::Deferred { node: self.id.clone(), rationale }
    }
}

impl Node {
    /// Applies an event to the node before it is in the log.
    fn apply_tentatively(&mut self, event: &Event, now: Timestamp) {
        let (by, logic, event) = (Actor::Server, LOGIC_VERSION, event.clone());
        let entry = Entry { seq: 0, batch: 0, at: now, by, logic, event };
        match &entry.event {
            Event::OrderIssued { order } => self.ordered(order),
            _ => self.apply(&entry),
        }
    }
}
