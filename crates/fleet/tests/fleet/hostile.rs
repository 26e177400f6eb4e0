//! Nodes that report wrong or excessive data.

use farrier_fleet::fleet::event::{Cordon, JournalPosition};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, NodePhase, OrderKind, OrderStatus};
use farrier_fleet::health::{Action, Severity};

use crate::test_fleet::{Act, NODES, TestFleet, finding, node};

fn fleet_in_service() -> TestFleet {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    assert!(fleet.state.nodes.values().all(|node| node.phase() == NodePhase::InService));
    fleet
}

fn phase(fleet: &TestFleet, index: usize) -> NodePhase {
    fleet.state.nodes[&node(index)].phase()
}

fn order(fleet: &TestFleet, index: usize) -> Option<OrderKind> {
    fleet.state.nodes[&node(index)].orders.pending().map(|pending| pending.order.kind.clone())
}

fn observe_cordon(fleet: &mut TestFleet, index: usize, cordon: Cordon) {
    let id = node(index);
    fleet.batch(vec![(Actor::Node(id.clone()), Event::CordonObserved { node: id, cordon })]);
}

#[test]
fn a_node_with_thousands_of_findings_has_small_decisions() {
    let mut fleet = fleet_in_service();
    let (id, at) = (node(3), fleet.now);
    let open = (1..=5000).map(|number| {
        let mut finding = finding(number, Severity::Fatal, Action::RebootNode, "gpu.xid", at);
        finding.detail = "x".repeat(4000);
        finding
    });
    let record = JournalPosition { journal: "first".to_owned(), number: 9 };
    let all_findings = Event::FindingsSnapshot { node: id.clone(), record, open: open.collect() };
    fleet.batch(vec![(Actor::Node(id), all_findings)]);
    for _ in 0..10 {
        fleet.act(&Act::OrderStatus(3, true));
        observe_cordon(&mut fleet, 3, Cordon::None);
    }
    // Decisions also quote other texts from nodes: the reason of an external cordon, and the reason
    // why an order failed.
    let reason = "x".repeat(16_000);
    observe_cordon(
        &mut fleet,
        4,
        Cordon::External { owner: "slurm".to_owned(), reason: reason.clone() },
    );
    observe_cordon(&mut fleet, 4, Cordon::None);
    for _ in 0..4 {
        let id = node(4);
        let generation = fleet.state.nodes[&id].orders.generation();
        let status = OrderStatus::Failed { reason: reason.clone() };
        let report = Event::OrderStatusReported { node: id.clone(), generation, status };
        fleet.batch(vec![(Actor::Node(id), report)]);
        fleet.act(&Act::Wait(600));
    }
    assert!(fleet.state.nodes[&node(4)].orders.failures().is_some(), "the cordon failed");
    let decided = fleet.log.iter().filter(|entry| entry.event.is_decision());
    let largest = decided.map(|entry| entry.encode().unwrap().len()).max();
    assert!(largest.is_some_and(|bytes| bytes < 4096), "{largest:?}");
    fleet.replay();
}

#[test]
fn a_node_that_was_never_in_service_uses_up_no_disruption_budget() {
    let mut fleet = fleet_in_service();
    for index in 0..2 {
        fleet.act(&Act::Retire(index));
        fleet.act(&Act::Enrol(index));
        fleet.act(&Act::ExternalCordon(index));
        assert_eq!(phase(&fleet, index), NodePhase::Held);
    }
    // The cordon of one node is removed, and the node reports no status of its verification.
    observe_cordon(&mut fleet, 0, Cordon::None);
    assert_eq!(phase(&fleet, 0), NodePhase::Verifying);
    fleet.act(&Act::Fault(5, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&fleet, 5), NodePhase::Quarantined);
    // A node that was in service counts towards the budget, regardless of who cordoned it.
    fleet.act(&Act::ExternalCordon(NODES - 1));
    fleet.act(&Act::Fault(7, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&fleet, 7), NodePhase::Suspect);
    fleet.replay();
}

#[test]
fn a_cordon_that_is_removed_during_a_drain_is_ordered_again_at_once() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    fleet.act(&Act::OrderStatus(3, true));
    assert!(matches!(order(&fleet, 3), Some(OrderKind::Drain { .. })));
    observe_cordon(&mut fleet, 3, Cordon::None);
    fleet.act(&Act::OrderStatus(3, false));
    assert_eq!(
        order(&fleet, 3),
        Some(OrderKind::Cordon),
        "the node takes work until it is cordoned"
    );
    fleet.act(&Act::OrderStatus(3, false));
    assert_eq!(order(&fleet, 3), None, "the cordon itself is retried with back-off");
    fleet.replay();
}

#[test]
fn an_uncordon_is_cancelled_when_the_node_becomes_faulty() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    fleet.act(&Act::OrderStatus(3, true));
    fleet.act(&Act::Clear(3, 1));
    while order(&fleet, 3).is_some_and(|order| order != OrderKind::Uncordon) {
        fleet.act(&Act::OrderStatus(3, true));
    }
    assert_eq!(order(&fleet, 3), Some(OrderKind::Uncordon));
    fleet.act(&Act::Fault(3, 2, Severity::Fatal, Action::RebootNode, 0));
    assert_ne!(order(&fleet, 3), Some(OrderKind::Uncordon));
    fleet.replay();
}

/// Earlier failed drains do not delay the cordon of a node that takes work again.
#[test]
fn a_failed_cordon_is_retried_as_if_no_other_order_had_failed() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    fleet.act(&Act::OrderStatus(3, true));
    for _ in 0..2 {
        assert!(matches!(order(&fleet, 3), Some(OrderKind::Drain { .. })));
        fleet.act(&Act::OrderStatus(3, false));
        fleet.act(&Act::Wait(3600));
    }
    observe_cordon(&mut fleet, 3, Cordon::None);
    while order(&fleet, 3) != Some(OrderKind::Cordon) {
        fleet.act(&Act::OrderStatus(3, false));
    }
    fleet.act(&Act::OrderStatus(3, false));
    assert_eq!(fleet.state.nodes[&node(3)].orders.failures().unwrap().count.get(), 1);
    fleet.replay();
}

/// The node is connected, but the server cannot read its findings. The node may be unhealthy.
#[test]
fn a_node_with_unreadable_findings_is_suspect_until_they_are_readable() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    let by = Actor::Node(id.clone());
    fleet.batch(vec![(by.clone(), Event::ReportsUnreadable { node: id.clone() })]);
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect);
    fleet.batch(vec![(by.clone(), Event::ReportsReadable { node: id.clone() })]);
    assert_eq!(phase(&fleet, 3), NodePhase::InService);
    fleet.batch(vec![(by, Event::ReportsUnreadable { node: id })]);
    let suspect_timeout_s = fleet.state.policy.pools_default.suspect_timeout_s;
    fleet.act(&Act::Wait(suspect_timeout_s + 1));
    assert_eq!(phase(&fleet, 3), NodePhase::Quarantined);
    fleet.replay();
}
