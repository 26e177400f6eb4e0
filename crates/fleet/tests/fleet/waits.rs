//! Nobody waits for ever: what was not passed, refused, forbidden or too early is looked at again, or a person is told.

use farrier_fleet::fleet::event::{Cordon, Event, OperatorRequest};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::{Autonomy, DisruptionBudget};
use farrier_fleet::fleet::{
    Domain, NodePhase, OrderKind, OrderStatus, Policy, Reason, VerificationLevel,
};
use farrier_fleet::health::{Action, Severity};
use jiff::SignedDuration;

use crate::world::{Act, NODES, World, finding, node};

fn fleet() -> World {
    let mut world = World::new();
    world.everybody_answers();
    let room = [DomainKind::Fleet, DomainKind::Pool]
        .map(|kind| (kind, DisruptionBudget { share: 0.5, nodes: None }));
    world.set_policy(Policy { disruption_budgets: room.into(), ..Policy::default() });
    world
}

fn phase(world: &World, index: usize) -> NodePhase {
    world.state.nodes[&node(index)].phase()
}

fn order(world: &World, index: usize) -> Option<OrderKind> {
    world.state.nodes[&node(index)].orders.pending().map(|it| it.order.kind.clone())
}

fn deferred(world: &World, index: usize) -> String {
    let why = world.state.nodes[&node(index)].phase.deferred().cloned();
    why.map_or_else(String::new, |why| format!("{}; until {}", why.reason, why.unblocked_by))
}

fn reboot(index: usize) -> Act {
    Act::Fault(index, 1, Severity::Fatal, Action::RebootNode, 0)
}

/// Answers well until a verification is asked for, which is not passed.
fn not_passed(world: &mut World, index: usize) {
    for _ in 0..10 {
        match order(world, index) {
            Some(OrderKind::Verify { .. }) => return world.act(&Act::OrderStatus(index, false)),
            Some(_) => world.act(&Act::OrderStatus(index, true)),
            None => panic!("no proof was asked for: {:?}", world.state.nodes[&node(index)]),
        }
    }
}

#[test]
fn a_proof_that_fails_without_a_finding_leads_to_a_repair_and_then_to_a_person() {
    let mut world = fleet();
    world.act(&Act::Hold(3));
    world.act(&Act::OrderStatus(3, true));
    world.act(&Act::Release(3));
    not_passed(&mut world, 3);
    let id = node(3);
    world.answer_until(&id, |what| *what == OrderKind::Reboot);
    not_passed(&mut world, 3);
    for _ in 0..20 {
        world.everybody_answers();
        world.act(&Act::Wait(300));
    }
    assert_eq!((phase(&world, 3), order(&world, 3)), (NodePhase::Repairing, None));
    let why = deferred(&world, 3);
    assert!(why.starts_with("verification V0 (coherence) failed: no: "), "{why}");
    assert!(why.contains("an operator repairs the node and reports it"), "{why}");
    let orders = world
        .log
        .iter()
        .filter(|it| matches!(&it.event, Event::OrderIssued { order } if order.node == id));
    assert!(orders.count() < 15, "it does not go round in circles");
    world.act(&Act::Repaired(3));
    world.everybody_answers();
    assert_eq!(phase(&world, 3), NodePhase::InService);
}

#[test]
fn who_joins_and_fails_a_proof_is_tried_again() {
    let mut world = fleet();
    world.act(&Act::Retire(2));
    world.act(&Act::Enrol(2));
    world.act(&Act::Boot(2));
    not_passed(&mut world, 2);
    assert_eq!((phase(&world, 2), order(&world, 2)), (NodePhase::Joining, None));
    let why = deferred(&world, 2);
    assert!(
        why.starts_with("verification V0 (coherence) failed: no; until the next attempt, at "),
        "{why}"
    );
    for _ in 0..8 {
        world.act(&Act::Wait(3840));
        not_passed(&mut world, 2);
    }
    world.act(&Act::Wait(3840));
    world.everybody_answers();
    assert_eq!(phase(&world, 2), NodePhase::InService);
}

#[test]
fn whoever_joins_broken_is_taken_out_only_as_far_as_the_breaker_and_the_pool_allow() {
    for autonomy in [Autonomy::Repair, Autonomy::Observe] {
        let mut world = fleet();
        let mut policy = Policy::default(); // A tenth of the fleet: one node.
        policy.pools_default.autonomy = autonomy;
        world.set_policy(policy);
        for index in 0..NODES {
            world.act(&Act::Retire(index));
        }
        for index in 0..NODES {
            world.act(&Act::Enrol(index));
            world.act(&Act::Boot(index));
        }
        for index in 0..NODES {
            world.act(&reboot(index));
        }
        let out = world.state.nodes.values().filter(|it| it.phase() == NodePhase::Quarantined);
        assert_eq!(out.count(), usize::from(autonomy == Autonomy::Repair), "{autonomy:?}");
        let words = if autonomy == Autonomy::Observe { "only observes" } else { "used up" };
        assert!(deferred(&world, NODES - 1).contains(words), "{}", deferred(&world, NODES - 1));
    }
}

#[test]
fn room_that_comes_is_used_within_a_minute() {
    let mut world = fleet();
    world.set_policy(Policy::default());
    world.act(&reboot(0));
    world.act(&reboot(1));
    assert_eq!(phase(&world, 1), NodePhase::Suspect);
    world.act(&Act::Clear(0, 1));
    world.everybody_answers();
    assert_eq!(phase(&world, 0), NodePhase::InService);
    world.act(&Act::Wait(60));
    assert_eq!(phase(&world, 1), NodePhase::Quarantined);
}

#[test]
fn nodes_whose_clocks_are_apart_are_blamed_on_what_they_share() {
    let mut world = fleet();
    let hours = [-2, -1, 1, 2].map(SignedDuration::from_hours);
    for (index, apart) in hours.into_iter().enumerate() {
        let at = world.now + apart;
        let down = finding(1, Severity::Critical, Action::Investigate, "nic.down", at);
        world.found_on(index, down);
    }
    let domain_faults: Vec<String> =
        world.state.domain_faults.keys().map(ToString::to_string).collect();
    assert_eq!(domain_faults, ["rack r0"]);
    // All but one are well again: that one is looked at for itself.
    for index in 0..3 {
        world.act(&Act::Clear(index, 1));
    }
    assert!(world.state.domain_faults.is_empty());
    world.act(&Act::Wait(60));
    assert_eq!(phase(&world, 3), NodePhase::Quarantined);
}

#[test]
fn what_is_blamed_and_has_no_nodes_any_more_is_absolved() {
    let mut world = fleet();
    world.ports_down(0..4);
    assert_eq!(world.state.domain_faults.len(), 1);
    for index in 0..4 {
        world.act(&Act::Retire(index));
    }
    assert!(world.state.domain_faults.is_empty());
}

#[test]
fn a_policy_counts_for_those_who_wait_already() {
    let mut world = fleet();
    let doubt = Act::Fault(5, 1, Severity::Warning, Action::ResetGpu, 0);
    world.act(&doubt);
    assert_eq!(phase(&world, 5), NodePhase::Suspect);
    let mut policy = world.state.policy.clone();
    policy.pools_default.suspect_timeout_s = 60;
    world.set_policy(policy);
    world.act(&Act::Wait(60));
    assert_eq!(phase(&world, 5), NodePhase::Quarantined);
}

#[test]
fn who_was_out_of_reach_is_cordoned_when_heard_again() {
    let mut world = fleet();
    world.act(&reboot(5));
    assert_eq!(order(&world, 5), Some(OrderKind::Cordon));
    for _ in 0..10 {
        world.act(&Act::Wait(2000));
    }
    assert!(
        world.state.nodes[&node(5)].orders.failures().unwrap().count.get() >= 3,
        "nobody answers"
    );
    world.act(&Act::Silent(5));
    world.act(&Act::Heard(5));
    assert_eq!(order(&world, 5), Some(OrderKind::Cordon));
}

#[test]
fn what_was_repaired_by_hand_is_proven_wherever_it_stands() {
    let mut world = fleet();
    world.act(&reboot(5));
    assert_eq!(phase(&world, 5), NodePhase::Quarantined);
    world.act(&Act::Clear(5, 1));
    world.act(&reboot(5));
    world.act(&Act::Repaired(5));
    assert_eq!(phase(&world, 5), NodePhase::Verifying, "and nothing is rebooted");
}

#[test]
fn a_hold_and_a_freeze_stop_what_was_ordered_and_not_begun() {
    for by_freeze in [true, false] {
        let mut world = fleet();
        world.act(&reboot(4));
        for _ in 0..2 {
            world.act(&Act::OrderStatus(4, true));
        }
        assert_eq!(order(&world, 4), Some(OrderKind::Reboot));
        if by_freeze {
            let until = world.now + SignedDuration::from_hours(1);
            let reason = "launch".to_owned();
            world.ask(OperatorRequest::Freeze { domain: Domain::Fleet, until, reason });
        } else {
            world.act(&Act::Hold(4));
        }
        assert_eq!(order(&world, 4), None, "by freeze: {by_freeze}");
    }
}

#[test]
fn a_node_in_service_is_proven_when_a_person_wants_it() {
    let mut world = fleet();
    let ask = |world: &mut World| {
        world.ask(OperatorRequest::Verify { node: node(1), level: VerificationLevel::V1 })
    };
    ask(&mut world);
    assert_eq!(order(&world, 1), Some(OrderKind::Verify { level: VerificationLevel::V1 }));
    world.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&world, 1), order(&world, 1)), (NodePhase::InService, None));
    ask(&mut world);
    world.act(&Act::OrderStatus(1, false));
    assert_eq!(phase(&world, 1), NodePhase::Quarantined);
}

#[test]
fn what_a_person_wants_done_is_ordered_once_and_told() {
    let tune = OrderKind::Tune { profile: "training".to_owned() };
    let diag = OrderKind::Diag { level: 3, minutes: 10 };
    let ended =
        |world: &World| world.state.nodes[&node(1)].requests.results.last().cloned().unwrap();
    let is_done = |answer: &OrderStatus| matches!(answer, OrderStatus::Done { .. });
    let mut world = fleet();
    // Held by a person it gets our mark first.
    world.act(&Act::Hold(1));
    ask_of(&mut world, 1, &tune);
    assert_eq!(order(&world, 1), Some(OrderKind::Cordon));
    world.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&world, 1), Some(tune.clone()));
    let given = world.state.nodes[&node(1)].orders.pending().cloned().unwrap().order;
    assert_eq!(given.reason.to_string(), "requested by ann");
    assert!(given.boot.is_some(), "a change is for this boot");
    world.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&world, 1), None, "once");
    assert!(is_done(&ended(&world).status) && ended(&world).order == tune);
    // A change waits for a freeze to be over, a look does not; its lease is as long as it takes.
    world.act(&Act::Freeze(1000));
    ask_of(&mut world, 1, &tune);
    assert_eq!(order(&world, 1), None);
    let why = world.state.nodes[&node(1)].phase.deferred().cloned().unwrap();
    assert!(why.reason.to_string().contains("frozen by ann"), "{why:?}");
    ask_of(&mut world, 1, &diag);
    let given = world.state.nodes[&node(1)].orders.pending().cloned().unwrap().order;
    assert_eq!(
        (&given.kind, given.lease_until >= world.now + SignedDuration::from_secs(600)),
        (&diag, true)
    );
    // Whatever comes of it, a node that is held stays so, and it is not tried again.
    world.act(&Act::OrderStatus(1, false));
    assert_eq!((phase(&world, 1), order(&world, 1)), (NodePhase::Held, None));
    assert!(!is_done(&ended(&world).status));
    assert_eq!(world.state.nodes[&node(1)].requests.results.len(), 2, "the last of each kind");
    // What failed has to be passed before it comes back, though its pool does not ask for it.
    world.act(&Act::Release(1));
    for level in [VerificationLevel::V0, VerificationLevel::V1, VerificationLevel::V3] {
        assert_eq!(order(&world, 1), Some(OrderKind::Verify { level }));
        world.act(&Act::OrderStatus(1, level != VerificationLevel::V3));
    }
    assert!(!phase(&world, 1).in_service());
    world.ask(OperatorRequest::Repaired { node: node(1), repair: "a new board".to_owned() });
    let is_v3 = |what: &OrderKind| *what == OrderKind::Verify { level: VerificationLevel::V3 };
    world.answer_until(&node(1), is_v3);
    assert_eq!(order(&world, 1), Some(OrderKind::Uncordon), "it was proven, and not before");
    world.everybody_answers();
    assert_eq!(phase(&world, 1), NodePhase::InService);
    world.act(&Act::Wait(1001));
    // Another that is asked for meanwhile does not take the place of what is under way.
    world.act(&Act::Hold(3));
    world.act(&Act::OrderStatus(3, true));
    ask_of(&mut world, 3, &diag);
    ask_of(&mut world, 3, &tune);
    assert_eq!(order(&world, 3), Some(diag.clone()));
    world.act(&Act::OrderStatus(3, false));
    let other = &world.state.nodes[&node(3)];
    assert!(other.requests.results.iter().any(|it| it.order == diag && !is_done(&it.status)));
    assert_eq!(order(&world, 3), Some(tune));
    // On a node in service nothing is tested.
    ask_of(&mut world, 2, &diag);
    assert_eq!(order(&world, 2), None);
    let why = world.state.nodes[&node(2)].phase.deferred().cloned().unwrap();
    assert!(why.unblocked_by.to_string().contains("farrier fleet cordon"), "{why:?}");
}

#[test]
fn logs_are_collected_under_work_and_never_delay_a_cordon() {
    let logs = OrderKind::CollectLogs;
    let mut world = fleet();
    ask_of(&mut world, 1, &logs);
    assert_eq!((phase(&world, 1), order(&world, 1)), (NodePhase::InService, Some(logs.clone())));
    // The node has to be taken out of service: that does not wait for the logs.
    world.act(&Act::Fault(1, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&world, 1), NodePhase::Quarantined);
    assert_eq!(order(&world, 1), Some(OrderKind::Cordon));
    let withdrawn = world.log.iter().find_map(|it| match &it.event {
        Event::OrderCancelled { reason: why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(withdrawn, Some(Reason::OrderSuperseded { by: OrderKind::Cordon }));
    // What was asked for is not forgotten, and does not wait for the drain.
    world.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&world, 1), Some(logs.clone()));
    world.act(&Act::OrderStatus(1, true));
    assert!(matches!(order(&world, 1), Some(OrderKind::Drain { .. })));
    // Nor for one that is under way, which may last for hours: it begins again.
    ask_of(&mut world, 1, &logs);
    assert_eq!(order(&world, 1), Some(logs.clone()));
    world.act(&Act::OrderStatus(1, true));
    assert!(matches!(order(&world, 1), Some(OrderKind::Drain { .. })));
    assert!(world.state.nodes[&node(1)].orders.failures().is_none(), "that is no failure");
    let ended = &world.state.nodes[&node(1)].requests.results;
    assert_eq!(ended.iter().map(|it| it.order.clone()).collect::<Vec<_>>(), [logs]);
}

/// In a large incident these are the nodes whose logs are asked for.
#[test]
fn a_node_that_the_budget_keeps_in_service_has_its_logs_collected_and_its_leases_end() {
    let mut world = World::new();
    world.everybody_answers();
    world.set_policy(zero_budget());
    world.act(&reboot(1));
    let waits = deferred(&world, 1);
    assert!(phase(&world, 1).in_service() && !waits.is_empty(), "{waits}");
    ask_of(&mut world, 1, &OrderKind::CollectLogs);
    assert_eq!(order(&world, 1), Some(OrderKind::CollectLogs));
    assert_eq!(deferred(&world, 1), waits, "it is told all the same");
    world.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&world, 1), None);
    // What must not run on a node in service does not run there.
    ask_of(&mut world, 1, &OrderKind::Diag { level: 2, minutes: 0 });
    assert_eq!((order(&world, 1), deferred(&world, 1)), (None, waits.clone()));
    ask_of(&mut world, 1, &OrderKind::CollectLogs);
    let lease_until = world.state.nodes[&node(1)].orders.pending().unwrap().order.lease_until;
    let left_s = lease_until.duration_since(world.now).as_secs();
    world.act(&Act::Wait(u32::try_from(left_s).unwrap() + 1));
    assert_eq!((order(&world, 1), deferred(&world, 1)), (None, waits));
    let ended = world.state.nodes[&node(1)].requests.results.last().cloned().unwrap();
    assert!(matches!(ended.cancelled, Some(Reason::OrderExpired { .. })), "{ended:?}");
    world.replay();
}

/// A policy under which no node may be taken out of service.
fn zero_budget() -> Policy {
    let none = [(DomainKind::Fleet, DisruptionBudget { share: 0.0, nodes: Some(0) })];
    Policy { disruption_budgets: none.into(), ..Policy::default() }
}

#[test]
fn a_joining_node_that_the_budget_keeps_from_quarantine_is_cordoned_and_sends_logs() {
    let mut world = World::new();
    let mut policy = zero_budget();
    policy.pools_default.cordon_joining = true;
    world.set_policy(policy);
    world.act(&reboot(1));
    // The verification that was ordered before the fault.
    world.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&world, 1), order(&world, 1)), (NodePhase::Joining, Some(OrderKind::Cordon)));
    ask_of(&mut world, 1, &OrderKind::CollectLogs);
    assert_eq!(order(&world, 1), Some(OrderKind::Cordon), "the cordon comes first");
    world.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&world, 1), Some(OrderKind::CollectLogs));
    world.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&world, 1), order(&world, 1)), (NodePhase::Joining, None));
    assert!(!deferred(&world, 1).is_empty());
    world.replay();
}

#[test]
fn a_suspect_node_that_the_budget_keeps_in_service_is_verified_on_request() {
    let mut world = World::new();
    world.everybody_answers();
    world.set_policy(zero_budget());
    world.act(&reboot(1));
    assert_eq!((phase(&world, 1), order(&world, 1)), (NodePhase::Suspect, None));
    let level = VerificationLevel::V1;
    world.ask(OperatorRequest::Verify { node: node(1), level });
    assert_eq!(order(&world, 1), Some(OrderKind::Verify { level }));
    world.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&world, 1), order(&world, 1)), (NodePhase::Suspect, None));
    world.replay();
}

fn ask_of(world: &mut World, index: usize, what: &OrderKind) {
    world.ask(OperatorRequest::RunOrder { node: node(index), order: what.clone() });
}

#[test]
fn a_freeze_that_is_over_is_forgotten() {
    let mut world = fleet();
    world.act(&Act::Freeze(100));
    assert_eq!(world.state.freezes.len(), 1);
    world.act(&Act::Wait(101));
    assert!(world.state.freezes.is_empty());
    world.batch(vec![(Actor::Server, Event::Tick)]);
}

/// Somebody removes our cordon while the drain runs: work may have come since.
#[test]
fn a_drain_that_ends_without_a_cordon_does_not_count() {
    let mut world = fleet();
    let diag = OrderKind::Diag { level: 1, minutes: 0 };
    let is_drain = |world: &World| matches!(order(world, 1), Some(OrderKind::Drain { .. }));
    world.act(&Act::Fault(1, 1, Severity::Fatal, Action::Investigate, 0));
    world.act(&Act::OrderStatus(1, true));
    assert!(is_drain(&world));
    ask_of(&mut world, 1, &diag);
    let gone = Event::CordonObserved { node: node(1), cordon: Cordon::None };
    world.batch(vec![(Actor::Server, gone)]);
    world.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&world, 1), Some(OrderKind::Cordon), "and not the test that was asked for");
    world.act(&Act::OrderStatus(1, true));
    assert!(is_drain(&world));
    world.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&world, 1), Some(diag));
    world.replay();
}
