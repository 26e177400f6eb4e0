//! Which failure domain explains a symptom, and what happens after its fault has ended.

use farrier_fleet::fleet::event::{Event, OperatorRequest};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::DisruptionBudget;
use farrier_fleet::fleet::{Domain, NodePhase, OrderKind, Policy, Reason};
use farrier_fleet::health::{Action, Severity};

use crate::test_fleet::{Act, NODES, TestFleet, finding, location, node};

fn fleet_in_service() -> TestFleet {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    let budget = DisruptionBudget { share: 0.5, nodes: None, allow_min_one: None };
    let disruption_budgets = [(DomainKind::Fleet, budget)].into();
    fleet.set_policy(Policy { disruption_budgets, ..Policy::default() });
    fleet
}

/// All nodes are in one NVLink domain, one row and on one PDU, behind one spine switch.
fn fleet_with_whole_locations() -> TestFleet {
    let mut fleet = fleet_in_service();
    for index in 0..NODES {
        let mut location = location(index);
        location.nvlink = "nv1".parse().ok();
        location.spine = "s1".parse().ok();
        location.row = "row1".parse().ok();
        location.pdu = "p1".parse().ok();
        fleet.batch(vec![(Actor::Server, Event::LocationChanged { node: node(index), location })]);
    }
    fleet
}

fn open(fleet: &mut TestFleet, index: usize, code: &str) {
    let finding = finding(1, Severity::Critical, Action::Investigate, code, fleet.now);
    fleet.report_finding(index, finding);
}

fn faulty_domains(fleet: &TestFleet) -> Vec<String> {
    fleet.state.domain_faults.keys().map(ToString::to_string).collect()
}

fn phase(fleet: &TestFleet, index: usize) -> NodePhase {
    fleet.state.nodes[&node(index)].phase()
}

fn deferred(fleet: &TestFleet, index: usize) -> Option<Reason> {
    let deferred = fleet.state.nodes[&node(index)].phase.deferred();
    deferred.map(|deferred| deferred.reason.clone())
}

/// `rack:r0` is faulty: the ports of its nodes are down.
fn fleet_with_faulty_rack() -> TestFleet {
    let mut fleet = fleet_in_service();
    fleet.ports_down(0..4);
    assert_eq!(faulty_domains(&fleet), ["rack r0"]);
    fleet
}

fn rack() -> Domain {
    "rack:r0".parse().unwrap()
}

fn say_repaired(fleet: &mut TestFleet) {
    fleet.request(OperatorRequest::DomainRepaired {
        domain: rack(),
        repair: "new optics".to_owned(),
    });
}

#[test]
fn a_symptom_implicates_only_domains_that_can_cause_it() {
    for (code, at_first, whole) in [
        ("link.down", vec![], "NVLink domain nv1"),
        ("nic.down", vec!["leaf switch l0"], "spine switch s1"),
        ("gpu.slowdown-thermal", vec!["rack r0"], "row row1"),
    ] {
        // Rack r0 and half of rack r1 are behind leaf switch l0.
        let mut fleet = fleet_in_service();
        let nodes = if code == "gpu.slowdown-thermal" { 4 } else { 5 };
        (0..nodes).for_each(|index| open(&mut fleet, index, code));
        let found = faulty_domains(&fleet);
        assert!(at_first.iter().all(|domain| found.contains(&(*domain).to_owned())), "{found:?}");
        assert_eq!(found.is_empty(), at_first.is_empty(), "{code}: {found:?}");
        let mut fleet = fleet_with_whole_locations();
        let inputs = (0..NODES).map(|index| (index, code));
        inputs.for_each(|(index, code)| open(&mut fleet, index, code));
        let found = faulty_domains(&fleet);
        assert!(found.contains(&whole.to_owned()), "{code}: {found:?}");
    }
}

#[test]
fn after_a_domain_fault_the_findings_get_time_to_clear() {
    let mut fleet = fleet_with_faulty_rack();
    fleet.act(&Act::Clear(0, 1));
    fleet.act(&Act::Clear(1, 1));
    assert!(fleet.state.domain_faults.is_empty());
    assert!(matches!(deferred(&fleet, 3), Some(Reason::DomainRecovering { .. })));
    fleet.act(&Act::Wait(100));
    fleet.act(&Act::Clear(3, 1));
    assert_eq!(phase(&fleet, 3), NodePhase::InService, "it recovered with its rack");
    fleet.act(&Act::Wait(80));
    assert_eq!(phase(&fleet, 2), NodePhase::Quarantined, "it did not, so it is judged on its own");
    fleet.act(&Act::Wait(600));
    assert!(fleet.state.domain_recoveries.is_empty());
    fleet.replay();
}

#[test]
fn nodes_of_a_repaired_domain_are_judged_on_their_own() {
    let mut fleet = fleet_with_faulty_rack();
    // One of the nodes also has a fault of its own, so it is out of service.
    fleet.act(&Act::Fault(3, 2, Severity::Fatal, Action::RebootNode, 0));
    fleet.complete_orders_until(&node(3), OrderKind::is_repair);
    fleet.act(&Act::Clear(3, 2));
    fleet.complete_all_orders();
    fleet.act(&Act::Wait(1000));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, 3), NodePhase::Repairing);
    assert!(matches!(deferred(&fleet, 3), Some(Reason::FailureDomainFault { .. })));

    say_repaired(&mut fleet);
    assert!(fleet.state.domain_faults.is_empty(), "old symptoms are no new fault");
    assert_eq!(phase(&fleet, 3), NodePhase::Verifying, "verified before it returns");
    assert!(matches!(deferred(&fleet, 0), Some(Reason::DomainRecovering { .. })));
    for index in [1, 2, 3] {
        fleet.act(&Act::Clear(index, 1));
    }
    fleet.complete_all_orders();
    assert_eq!([1, 2, 3].map(|index| phase(&fleet, index)), [NodePhase::InService; 3]);
    fleet.act(&Act::Wait(180));
    assert_eq!(phase(&fleet, 0), NodePhase::Quarantined, "its own port is faulty");
    fleet.replay();
}

#[test]
fn a_domain_fault_that_returns_is_detected_again() {
    let mut fleet = fleet_with_faulty_rack();
    say_repaired(&mut fleet);
    (0..4).for_each(|index| fleet.act(&Act::Clear(index, 1)));
    fleet.act(&Act::Wait(20));
    assert!(fleet.state.domain_faults.is_empty());
    fleet.ports_down(0..4);
    assert_eq!(faulty_domains(&fleet), ["rack r0"]);
    fleet.replay();
}

#[test]
fn a_repair_of_a_domain_without_a_fault_changes_nothing() {
    let mut fleet = fleet_in_service();
    let before = fleet.state.clone();
    say_repaired(&mut fleet);
    assert_eq!(fleet.state.nodes, before.nodes);
    assert!(fleet.state.domain_recoveries.is_empty());
}
