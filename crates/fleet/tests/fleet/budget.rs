//! Who gets the next free slot of a disruption budget, who uses the budget, and how many nodes have
//! to take work.

use std::collections::BTreeSet;

use farrier_fleet::fleet::budget::BudgetAccountant;
use farrier_fleet::fleet::event::{JournalPosition, NodeInventory};
use farrier_fleet::fleet::explain::{current_deferral, explain};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::DisruptionBudget;
use farrier_fleet::fleet::{
    Domain, Entry, Event, FleetState, LOGIC_VERSION, Location, NodeId, NodePhase, Policy, Reason,
    decide,
};
use farrier_fleet::health::{Action, Change, Severity};

use crate::test_fleet::{Act, NODES, TestFleet, finding, node, start};

/// One node of the fleet may be out of service.
fn fleet_in_service() -> TestFleet {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    fleet
}

/// Limits only the fleet: `nodes` may be out of service, and a share of them must take work.
fn limits(nodes: u32, floor: f64) -> Policy {
    let budget = DisruptionBudget { share: 1.0, nodes: Some(nodes), allow_min_one: None };
    Policy {
        disruption_budgets: [(DomainKind::Fleet, budget)].into(),
        capacity_floors: [(DomainKind::Fleet, floor)].into(),
        ..Policy::default()
    }
}

fn fault(index: usize, severity: Severity) -> Act {
    Act::Fault(index, 1, severity, Action::RebootNode, 0)
}

fn phase(fleet: &TestFleet, index: usize) -> NodePhase {
    fleet.state.nodes[&node(index)].phase()
}

fn reason(fleet: &TestFleet, index: usize) -> Reason {
    current_deferral(&fleet.state, &fleet.state.nodes[&node(index)]).unwrap().reason
}

/// The fault of the node clears, and it returns to service.
fn recover(fleet: &mut TestFleet, index: usize) {
    fleet.act(&Act::Clear(index, 1));
    for _ in 0..20 {
        fleet.act(&Act::OrderStatus(index, true));
    }
    assert_eq!(phase(fleet, index), NodePhase::InService);
}

#[test]
fn the_older_fatal_node_gets_the_slot_before_a_newer_or_milder_one() {
    let mut fleet = fleet_in_service();
    fleet.act(&fault(0, Severity::Critical));
    fleet.act(&fault(5, Severity::Critical));
    fleet.act(&Act::Wait(10));
    fleet.act(&fault(9, Severity::Fatal));
    fleet.act(&Act::Wait(10));
    fleet.act(&fault(3, Severity::Fatal));
    assert_eq!(phase(&fleet, 0), NodePhase::Quarantined);
    for next in [9, 3, 5] {
        assert_eq!(phase(&fleet, next), NodePhase::Suspect, "n{next:02} waits");
        let previous = (0..NODES).find(|index| phase(&fleet, *index) == NodePhase::Quarantined);
        recover(&mut fleet, previous.unwrap());
        assert_eq!(phase(&fleet, next), NodePhase::Quarantined, "n{next:02} is next");
    }
    fleet.replay();
}

#[test]
fn a_slot_that_frees_is_taken_in_the_same_batch() {
    let mut fleet = fleet_in_service();
    fleet.act(&fault(0, Severity::Fatal));
    fleet.act(&fault(1, Severity::Fatal));
    let before = fleet.log.len();
    recover(&mut fleet, 0);
    let phase_change = |wanted: &NodeId, phase: NodePhase| {
        let mut entries = fleet.log[before..].iter();
        let found = entries.find(|entry| match &entry.event {
            Event::PhaseChanged { node, to, .. } => node == wanted && *to == phase,
            _ => false,
        });
        found.unwrap().batch
    };
    let (returned, quarantined) = (
        phase_change(&node(0), NodePhase::InService),
        phase_change(&node(1), NodePhase::Quarantined),
    );
    assert_eq!(returned, quarantined);
}

/// An operator who takes over a quarantined node frees its slot.
#[test]
fn holds_and_external_cordons_use_no_budget() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Hold(0));
    fleet.act(&Act::ExternalCordon(1));
    fleet.act(&Act::Revoke(2));
    fleet.act(&fault(3, Severity::Fatal));
    assert_eq!(phase(&fleet, 3), NodePhase::Quarantined);
    fleet.act(&fault(4, Severity::Fatal));
    assert_eq!(phase(&fleet, 4), NodePhase::Suspect);
    fleet.act(&Act::Hold(3));
    assert_eq!(phase(&fleet, 4), NodePhase::Quarantined);
    // A node that fails its verification after its release does not count as a new disruption.
    fleet.act(&Act::Release(3));
    for _ in 0..3 {
        fleet.act(&Act::OrderStatus(3, false));
    }
    assert!(!fleet.state.nodes[&node(3)].is_disrupted());
    assert_eq!(fleet.state.domain_counts[&Domain::Fleet].disrupted, 1);
    fleet.replay();
}

#[test]
fn the_capacity_floor_counts_every_node_that_takes_no_work() {
    let mut fleet = fleet_in_service();
    fleet.set_policy(limits(12, 0.75));
    fleet.act(&Act::Hold(0));
    fleet.act(&Act::ExternalCordon(1));
    fleet.act(&fault(2, Severity::Fatal));
    assert_eq!(phase(&fleet, 2), NodePhase::Quarantined);
    fleet.act(&fault(3, Severity::Fatal));
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect);
    assert_eq!(
        reason(&fleet, 3).to_string(),
        "capacity floor of the fleet reached: 9 of 12 nodes take work, at least 9 must (n00, n01, n02)"
    );
    fleet.act(&Act::ExternalUncordon(1));
    for _ in 0..4 {
        fleet.act(&Act::OrderStatus(1, true));
    }
    assert_eq!(phase(&fleet, 1), NodePhase::InService);
    assert_eq!(phase(&fleet, 3), NodePhase::Quarantined, "the same batch");
    fleet.replay();
}

/// The reason in the log is from when the wait began. The explanation names the nodes that use the
/// budget now.
#[test]
fn the_explanation_names_the_nodes_that_use_the_budget_now() {
    let mut fleet = fleet_in_service();
    fleet.act(&fault(0, Severity::Fatal));
    fleet.act(&fault(1, Severity::Fatal));
    fleet.act(&fault(2, Severity::Critical));
    recover(&mut fleet, 0);
    let deferred = |scope: &str| {
        let explained = explain(&fleet.state, &node(2), &scope.parse().unwrap()).unwrap();
        explained.deferred.unwrap().reason.to_string()
    };
    let text = "disruption budget of the fleet used up: Farrier keeps 1 of 12 nodes out of service, 1 allowed (n01)";
    assert_eq!(deferred("fleet"), text);
    assert_eq!(deferred("pool:train"), "the disruption budget of the fleet is used up");
}

/// A node whose pool has no slot does not keep the slot of the fleet from others.
#[test]
fn a_node_that_waits_for_another_limit_lets_others_pass() {
    let mut fleet = fleet_in_service();
    let pool = DisruptionBudget { share: 0.0, nodes: Some(1), allow_min_one: None };
    let fleet_wide = DisruptionBudget { share: 1.0, nodes: Some(2), allow_min_one: None };
    let budgets = [(DomainKind::Pool, pool), (DomainKind::Fleet, fleet_wide)];
    fleet.set_policy(Policy { disruption_budgets: budgets.into(), ..Policy::default() });
    fleet.act(&fault(0, Severity::Fatal));
    fleet.act(&fault(2, Severity::Fatal));
    assert!(matches!(reason(&fleet, 2), Reason::DisruptionBudget { domain: Domain::Pool(_), .. }));
    fleet.act(&fault(1, Severity::Critical));
    assert_eq!(phase(&fleet, 1), NodePhase::Quarantined);
}

struct LargeFleet {
    state: FleetState,
    dirty: BTreeSet<NodeId>,
}

impl LargeFleet {
    fn apply(&mut self, event: Event) {
        let (seq, by, logic) = (self.state.seq + 1, Actor::Server, LOGIC_VERSION);
        let entry = Entry { seq, batch: seq, at: start(), by, logic, event };
        self.dirty.extend(self.state.apply(&entry));
    }

    fn decide(&mut self) -> Vec<Event> {
        let dirty = std::mem::take(&mut self.dirty);
        let events = decide(&self.state, &dirty, start()).events;
        events.iter().cloned().for_each(|event| self.apply(event));
        self.dirty.clear();
        events
    }
}

/// 375 of 1,500 nodes fail at once. A slot that frees later concerns one waiting node, and not all
/// of them.
#[test]
fn a_free_slot_wakes_only_the_nodes_that_can_use_it() {
    let mut fleet = LargeFleet { state: FleetState::default(), dirty: BTreeSet::new() };
    let ids: Vec<NodeId> = (0..1500).map(|index| format!("n{index:04}").parse().unwrap()).collect();
    let location = Location::in_pool("train".parse().unwrap());
    let rationale = || {
        let reason = Reason::Verified { joining: true };
        farrier_fleet::fleet::Rationale::new(reason, farrier_fleet::fleet::UnblockedBy::Finding)
    };
    for id in &ids {
        fleet.apply(Event::Enrolled { node: id.clone(), location: location.clone() });
        let inventory = NodeInventory { gpus: Some(Vec::new()), ..NodeInventory::default() };
        fleet.apply(Event::InventoryReported { node: id.clone(), inventory });
        let (node, to) = (id.clone(), NodePhase::InService);
        fleet.apply(Event::PhaseChanged { node, to, rationale: rationale() });
    }
    fleet.dirty.clear();
    for id in &ids[..375] {
        let fatal = finding(1, Severity::Fatal, Action::RebootNode, "gpu.xid", start());
        let record = JournalPosition { journal: "first".to_owned(), number: 1 };
        let (node, changes) = (id.clone(), vec![Change::Opened(fatal)]);
        fleet.apply(Event::FindingsReported { node, record, changes });
    }
    let events = fleet.decide();
    let quarantined = |events: &[Event]| {
        let is_quarantine = |event: &&Event| {
            matches!(event, Event::PhaseChanged { to: NodePhase::Quarantined, .. })
        };
        events.iter().filter(is_quarantine).count()
    };
    assert_eq!(quarantined(&events), 150, "a tenth of the fleet");
    fleet.apply(Event::Retired { node: ids[0].clone(), reason: "sold".to_owned() });
    fleet.apply(Event::Enrolled { node: ids[0].clone(), location });
    let events = fleet.decide();
    assert_eq!(quarantined(&events), 1);
    let concerned: BTreeSet<&NodeId> = events.iter().filter_map(Event::node).collect();
    assert!(concerned.len() <= 2, "{concerned:?}");
}

/// Why maintenance of a node may not start.
fn maintenance(fleet: &TestFleet, index: usize) -> Option<Reason> {
    let accountant = BudgetAccountant::new(&fleet.state);
    let blocker = accountant.maintenance_blocker(&node(index), &fleet.state.nodes[&node(index)]);
    blocker.map(|rationale| rationale.reason)
}

fn text(reason: Option<Reason>) -> String {
    reason.map(|reason| reason.to_string()).unwrap_or_default()
}

#[test]
fn maintenance_counts_every_node_that_takes_no_work() {
    let mut fleet = fleet_in_service();
    let mut policy = limits(12, 0.0);
    let budget = DisruptionBudget { share: 1.0, nodes: Some(2), allow_min_one: None };
    policy.version = 2;
    policy.changes.budgets = [(DomainKind::Fleet, budget)].into();
    fleet.set_policy(policy);
    fleet.act(&Act::Hold(0));
    assert_eq!(maintenance(&fleet, 5), None);
    fleet.act(&Act::ExternalCordon(1));
    assert_eq!(
        text(maintenance(&fleet, 5)),
        "2 of 12 nodes of the fleet take no work, 2 may while nodes are changed (n00, n01)"
    );
    // A node that takes no work does not count for its own maintenance.
    assert_eq!(maintenance(&fleet, 0), None);
    fleet.act(&fault(2, Severity::Fatal));
    assert_eq!(phase(&fleet, 2), NodePhase::Quarantined, "a fault has its own budget");
    assert!(matches!(maintenance(&fleet, 0), Some(Reason::MaintenanceBudget { .. })));
}

#[test]
fn a_waiting_quarantine_takes_precedence_over_maintenance() {
    let mut fleet = fleet_in_service();
    let mut policy = limits(1, 0.0);
    let budget = DisruptionBudget { share: 1.0, nodes: None, allow_min_one: None };
    policy.version = 2;
    policy.changes.budgets = [(DomainKind::Fleet, budget)].into();
    fleet.set_policy(policy);
    fleet.act(&fault(0, Severity::Fatal));
    assert_eq!(maintenance(&fleet, 5), None);
    fleet.act(&fault(1, Severity::Fatal));
    assert_eq!(phase(&fleet, 1), NodePhase::Suspect);
    assert_eq!(
        text(maintenance(&fleet, 5)),
        "nodes of the fleet wait for their quarantine, which takes precedence (n01)"
    );
    // The node that waits may be changed: that takes it out of service too.
    assert_eq!(maintenance(&fleet, 1), None);
    recover(&mut fleet, 0);
    assert_eq!(phase(&fleet, 1), NodePhase::Quarantined);
    assert_eq!(maintenance(&fleet, 5), None);
}

#[test]
fn maintenance_keeps_the_capacity_floor_and_uses_the_disruption_budget_by_default() {
    let mut fleet = fleet_in_service();
    fleet.set_policy(limits(2, 11.0 / 12.0));
    assert_eq!(maintenance(&fleet, 5), None);
    fleet.act(&Act::Hold(0));
    assert_eq!(
        text(maintenance(&fleet, 5)),
        "capacity floor of the fleet reached: 11 of 12 nodes take work, at least 11 must (n00)"
    );
    assert_eq!(maintenance(&fleet, 0), None, "a node that takes no work lowers no floor");
    fleet.set_policy(limits(1, 0.0));
    assert!(matches!(maintenance(&fleet, 5), Some(Reason::MaintenanceBudget { .. })));
}
