//! Nodes that say what is not so, or more than anybody needs.

use farrier_fleet::fleet::event::{Cordon, Record};
use farrier_fleet::fleet::identity::Actor;
use farrier_fleet::fleet::{Event, NodePhase, OrderKind, OrderStatus};
use farrier_fleet::health::{Action, Severity};

use crate::world::{Act, NODES, World, finding, node};

fn in_service() -> World {
    let mut world = World::new();
    world.everybody_answers();
    assert!(world.state.nodes.values().all(|it| it.phase() == NodePhase::InService));
    world
}

fn phase(world: &World, index: usize) -> NodePhase {
    world.state.nodes[&node(index)].phase()
}

fn order(world: &World, index: usize) -> Option<OrderKind> {
    world.state.nodes[&node(index)].orders.pending().map(|it| it.order.kind.clone())
}

fn cordon_is(world: &mut World, index: usize, cordon: Cordon) {
    let id = node(index);
    world.batch(vec![(Actor::Node(id.clone()), Event::CordonObserved { node: id, cordon })]);
}

#[test]
fn a_node_with_thousands_of_findings_has_small_decisions() {
    let mut world = in_service();
    let (id, at) = (node(3), world.now);
    let open = (1..=5000).map(|number| {
        let mut finding = finding(number, Severity::Fatal, Action::RebootNode, "gpu.xid", at);
        finding.detail = "x".repeat(4000);
        finding
    });
    let record = Record { journal: "first".to_owned(), number: 9 };
    let resynced = Event::FindingsSnapshot { node: id.clone(), record, open: open.collect() };
    world.batch(vec![(Actor::Node(id), resynced)]);
    for _ in 0..10 {
        world.act(&Act::OrderStatus(3, true));
        cordon_is(&mut world, 3, Cordon::None);
    }
    // Other texts of nodes that decisions repeat: of another owner's cordon, and of a verification that failed.
    let reason = "x".repeat(16_000);
    cordon_is(
        &mut world,
        4,
        Cordon::External { owner: "slurm".to_owned(), reason: reason.clone() },
    );
    cordon_is(&mut world, 4, Cordon::None);
    for _ in 0..4 {
        let id = node(4);
        let generation = world.state.nodes[&id].orders.generation();
        let answer = OrderStatus::Failed { reason: reason.clone() };
        let answered = Event::OrderStatusReported { node: id.clone(), generation, status: answer };
        world.batch(vec![(Actor::Node(id), answered)]);
        world.act(&Act::Wait(600));
    }
    assert!(world.state.nodes[&node(4)].orders.failures().is_some(), "it failed to cordon");
    let decided = world.log.iter().filter(|it| it.event.is_decision());
    let largest = decided.map(|it| it.encode().unwrap().len()).max();
    assert!(largest.is_some_and(|it| it < 4096), "{largest:?}");
    world.replay();
}

#[test]
fn a_node_that_was_never_in_service_uses_up_no_disruption_budget() {
    let mut world = in_service();
    for index in 0..2 {
        world.act(&Act::Retire(index));
        world.act(&Act::Enrol(index));
        world.act(&Act::Theirs(index));
        assert_eq!(phase(&world, index), NodePhase::Held);
    }
    // Its cordon goes, and it answers no verification.
    cordon_is(&mut world, 0, Cordon::None);
    assert_eq!(phase(&world, 0), NodePhase::Verifying);
    world.act(&Act::Fault(5, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&world, 5), NodePhase::Quarantined);
    // One that was in service counts, whoever cordoned it.
    world.act(&Act::Theirs(NODES - 1));
    world.act(&Act::Fault(7, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&world, 7), NodePhase::Suspect);
    world.replay();
}

#[test]
fn a_cordon_that_is_removed_during_a_drain_is_ordered_again_at_once() {
    let mut world = in_service();
    world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    world.act(&Act::OrderStatus(3, true));
    assert!(matches!(order(&world, 3), Some(OrderKind::Drain { .. })));
    cordon_is(&mut world, 3, Cordon::None);
    world.act(&Act::OrderStatus(3, false));
    assert_eq!(order(&world, 3), Some(OrderKind::Cordon), "it takes work until then");
    world.act(&Act::OrderStatus(3, false));
    assert_eq!(order(&world, 3), None, "the cordon itself is retried with back-off");
    world.replay();
}

#[test]
fn an_uncordon_is_withdrawn_when_the_node_becomes_unfit() {
    let mut world = in_service();
    world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    world.act(&Act::OrderStatus(3, true));
    world.act(&Act::Clear(3, 1));
    while order(&world, 3).is_some_and(|it| it != OrderKind::Uncordon) {
        world.act(&Act::OrderStatus(3, true));
    }
    assert_eq!(order(&world, 3), Some(OrderKind::Uncordon));
    world.act(&Act::Fault(3, 2, Severity::Fatal, Action::RebootNode, 0));
    assert_ne!(order(&world, 3), Some(OrderKind::Uncordon));
    world.replay();
}

/// Drains that failed do not delay the cordon of a node that takes work again.
#[test]
fn a_failed_cordon_is_retried_as_if_no_other_order_had_failed() {
    let mut world = in_service();
    world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    world.act(&Act::OrderStatus(3, true));
    for _ in 0..2 {
        assert!(matches!(order(&world, 3), Some(OrderKind::Drain { .. })));
        world.act(&Act::OrderStatus(3, false));
        world.act(&Act::Wait(3600));
    }
    cordon_is(&mut world, 3, Cordon::None);
    while order(&world, 3) != Some(OrderKind::Cordon) {
        world.act(&Act::OrderStatus(3, false));
    }
    world.act(&Act::OrderStatus(3, false));
    assert_eq!(world.state.nodes[&node(3)].orders.failures().unwrap().count.get(), 1);
    world.replay();
}

/// That it is connected says nothing of its health: what it finds does not reach the server.
#[test]
fn a_node_whose_findings_cannot_be_read_is_in_doubt_until_they_can() {
    let mut world = in_service();
    let id = node(3);
    let by = Actor::Node(id.clone());
    world.batch(vec![(by.clone(), Event::ReportsUnreadable { node: id.clone() })]);
    assert_eq!(phase(&world, 3), NodePhase::Suspect);
    world.batch(vec![(by.clone(), Event::ReportsReadable { node: id.clone() })]);
    assert_eq!(phase(&world, 3), NodePhase::InService);
    world.batch(vec![(by, Event::ReportsUnreadable { node: id })]);
    let suspect_timeout_s = world.state.policy.pools_default.suspect_timeout_s;
    world.act(&Act::Wait(suspect_timeout_s + 1));
    assert_eq!(phase(&world, 3), NodePhase::Quarantined);
    world.replay();
}
