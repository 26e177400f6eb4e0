//! Decides what to do now, as a pure function of state and time. Considers only the nodes that
//! changed. Returns the decisions and the deferred actions.
//!
//! For each node, it computes the next step, applies the step tentatively, and repeats until there
//! is no further step. A phase change, its order and its reason therefore come from one decision,
//! and each rule handles a single step.
//!
//! A quarantine takes slots of disruption budgets. The steps that need no slot come first, because
//! they may free slots. Then come the nodes whose quarantine is due, and the nodes that wait for a
//! slot that is free now. All of these are ordered by urgency.

mod common_cause;
mod contenders;
mod health_assessment;
mod orders;
mod phase_transition;

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::budget::{BudgetAccountant, NodeAvailability};
use super::event::{Entry, Event};
use super::identity::{Actor, NodeId};
use super::policy::PoolPolicy;
use super::reason::Rationale;
use super::state::{DisruptionSlot, FleetState, Node, add_seconds};
use contenders::Contenders;
use health_assessment::HealthAssessment;
pub(super) use health_assessment::ends_service;
pub use health_assessment::{Impact, affects_service, impact};

/// Whether a faulty or recovering failure domain explains everything that is wrong with the node,
/// so that the node stays in service.
pub(super) fn is_explained_by_domain(state: &FleetState, node: &Node, now: Timestamp) -> bool {
    let faults = common_cause::active_faults(state, &[], now);
    let pool = state.policy.for_pool(&node.location.pool);
    let codes = HealthAssessment::new(node, pool, now).codes;
    let is_recovering = faults
        .recovery(node, &codes)
        .is_some_and(|(_, recovery)| now < add_seconds(recovery.at, pool.settle_s));
    is_recovering || faults.explanation(node, &codes).is_some()
}

/// Version of the decision logic. Raise it whenever the same inputs lead to other decisions. A
/// replay checks only decisions of its own version (`docs/adr/0020-reasons-are-values.md`).
///
/// 2: a drain that is reported after the cordon was removed does not count. A state that was
/// written before format 3 does not record the faults of a repair attempt, so such an attempt
/// counts for all faults.
///
/// 3: if the disruption budget keeps a node in service, a requested log collection still runs on
/// it, and its orders still expire.
///
/// 4: if the disruption budget keeps a joining node from quarantine, the node is cordoned if its
/// pool has `cordon_joining`. A requested verification of a suspect node that stays in service
/// runs.
///
/// 5: nodes get slots of disruption budgets in order of severity and age, in the batch in which a
/// slot frees. Only nodes that the controller keeps out of service use a budget. Capacity floors
/// count every node that takes no work. A symptom implicates only domains that can cause it, and
/// after a domain fault the findings of its nodes get time to clear.
///
/// 6: a coverage gap that lasts longer than the policy allows makes a node suspect. A verification
/// without a result is repeated and does not count as failed.
pub const LOGIC_VERSION: u32 = 6;

/// No node takes this many steps at once. If a node reaches this limit, two rules undo each other's
/// work.
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

/// Decides on the nodes that changed, and on the nodes that wait for a slot that the changed nodes
/// free.
pub fn decide(state: &FleetState, dirty: &BTreeSet<NodeId>, now: Timestamp) -> Decision {
    let fault_events = common_cause::detect_faults(state, dirty, now);
    let mut dirty = dirty.clone();
    dirty.extend(common_cause::concerned_nodes(state, &fault_events));
    let mut round = Round {
        state,
        active_faults: common_cause::active_faults(state, &fault_events, now),
        now,
        budget: BudgetAccountant::new(state),
        decision: Decision { events: fault_events, ..Decision::default() },
    };
    let mut contenders = Contenders::new(state, dirty.clone());
    for id in &dirty {
        let Some(node) = state.nodes.get(id) else { continue };
        let mut node = Node::clone(node);
        if round.take_steps(id, &mut node, Slots::Closed) {
            contenders.add(id, node);
        }
    }
    contenders.open_queues(&round.budget);
    while let Some((id, mut node)) = contenders.next(&round.budget) {
        round.take_steps(&id, &mut node, Slots::Open);
    }
    round.decision.report.waiting.sort_by(|(one, _), (other, _)| one.cmp(other));
    round.decision
}

/// Whether a step may take slots of disruption budgets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slots {
    Closed,
    Open,
}

/// State of one decision while it is computed.
struct Round<'a> {
    state: &'a FleetState,
    active_faults: common_cause::ActiveFaults,
    now: Timestamp,
    budget: BudgetAccountant<'a>,
    decision: Decision,
}

impl Round<'_> {
    /// Takes the steps of a node until there are no more. If slots must not be taken, the function
    /// stops before a step that needs a slot, and returns true.
    fn take_steps(&mut self, id: &NodeId, node: &mut Node, slots: Slots) -> bool {
        for _ in 0..STEPS_MAX {
            let pool = self.state.policy.for_pool(&node.location.pool);
            let assessment = HealthAssessment::new(node, pool, self.now);
            let context = DecisionContext {
                id,
                node,
                assessment: &assessment,
                pool,
                state: self.state,
                active_faults: &self.active_faults,
                now: self.now,
            };
            if slots == Slots::Closed && phase_transition::needs_slot(&context) {
                return true;
            }
            let Some(event) = context.next_step(&self.budget) else { break };
            let before = NodeAvailability::new(node);
            node.apply_tentatively(&event, self.now);
            self.budget.count(id, before, node);
            self.decision.events.push(event);
        }
        let waiting = node.phase.deferred().map(|rationale| (id.clone(), rationale.clone()));
        self.decision.report.waiting.extend(waiting);
        false
    }
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
    /// Returns the next step. A phase change comes first, then the cancellation of an order, then a
    /// new order. A deferral that is already recorded is not returned again, even if other nodes
    /// use the budget by now.
    fn next_step(&self, budget: &BudgetAccountant<'_>) -> Option<Event> {
        let step = match phase_transition::step(self, budget) {
            Some(Event::Deferred { node, rationale }) => {
                orders::step_while_deferred(self).or(Some(Event::Deferred { node, rationale }))
            }
            other => other.or_else(|| orders::step(self)),
        };
        match step {
            Some(Event::Deferred { rationale, .. })
                if self
                    .node
                    .phase
                    .deferred()
                    .is_some_and(|before| before.is_same_wait(&rationale)) =>
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

impl Rationale {
    /// Whether both rationales wait for the same thing. While a node waits for a slot, other nodes
    /// may begin or stop to use the budget.
    fn is_same_wait(&self, other: &Self) -> bool {
        let slot = DisruptionSlot::from_reason(&self.reason);
        self == other || (slot.is_some() && slot == DisruptionSlot::from_reason(&other.reason))
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
