//! The ways out of service and back, told as stories.

use farrier_fleet::fleet::event::{Cordon, GpuInventory, NodeInventory, OperatorRequest, Record};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::{Autonomy, DisruptionBudget};
use farrier_fleet::fleet::reason::RepairsAttempted;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::window::Window;
use farrier_fleet::fleet::{
    Domain, Event, NodeId, NodePhase, OrderKind, OrderStatus, Policy, Reason, VerificationLevel,
};
use farrier_fleet::health::{Action, GpuUuid, Severity};

use crate::world::{Act, World, node};

/// All nodes in service, with room for faults.
fn fleet() -> World {
    let mut world = World::new();
    world.everybody_answers();
    let roomy = [DomainKind::Fleet, DomainKind::Pool]
        .map(|kind| (kind, DisruptionBudget { share: 0.5, nodes: None }));
    let policy = Policy { disruption_budgets: roomy.into(), ..Policy::default() };
    world.set_policy(policy);
    assert!(world.state.nodes.values().all(|it| it.phase() == NodePhase::InService));
    world
}

fn fatal(index: usize, action: Action) -> Act {
    Act::Fault(index, 1, Severity::Fatal, action, 0)
}

fn order(world: &World, id: &NodeId) -> Option<OrderKind> {
    world.state.nodes[id].orders.pending().map(|it| it.order.kind.clone())
}

fn phase(world: &World, id: &NodeId) -> NodePhase {
    world.state.nodes[id].phase()
}

#[test]
fn a_broken_gpu_is_reset_and_its_node_proven_before_it_comes_back() {
    let mut world = fleet();
    let id = node(3);
    world.act(&fatal(3, Action::ResetGpu));
    assert_eq!(phase(&world, &id), NodePhase::Quarantined);
    let mut seen = Vec::new();
    while let Some(what) = order(&world, &id) {
        if what.is_repair() {
            world.act(&Act::Clear(3, 1));
        }
        seen.push(what);
        world.act(&Act::OrderStatus(3, true));
    }
    let gpu = farrier_fleet::health::GpuUuid("GPU-1".to_owned());
    assert_eq!(
        seen,
        [
            OrderKind::Cordon,
            OrderKind::Drain { wait_s: 14_400 },
            OrderKind::ResetGpu { gpu },
            OrderKind::Verify { level: VerificationLevel::V0 },
            OrderKind::Verify { level: VerificationLevel::V1 },
            OrderKind::Uncordon,
        ]
    );
    assert_eq!(phase(&world, &id), NodePhase::InService);
    world.replay();
}

#[test]
fn a_repair_that_does_not_help_is_followed_by_the_next_and_then_by_a_person() {
    let mut world = fleet();
    let id = node(0);
    world.act(&fatal(0, Action::ResetGpu));
    let mut repairs = Vec::new();
    for _ in 0..40 {
        match order(&world, &id) {
            Some(what) => {
                repairs.extend(what.is_repair().then_some(what));
                world.act(&Act::OrderStatus(0, true));
            }
            None => world.act(&Act::Wait(200)),
        }
    }
    assert_eq!(repairs.len(), 2, "a reset, then a reboot: {repairs:?}");
    assert_eq!(repairs[1], OrderKind::Reboot);
    let why = world.state.nodes[&id].phase.deferred().cloned().unwrap();
    let is_last =
        matches!(why.reason, Reason::NeedsRepair { attempted: RepairsAttempted::All, .. });
    assert!(is_last, "{why:?}");
    world.act(&Act::Repaired(0));
    world.act(&Act::Clear(0, 1));
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::InService);
}

/// Answers what is ordered until a repair was done, and gives that.
fn repaired(world: &mut World, index: usize) -> Option<OrderKind> {
    for _ in 0..20 {
        match order(world, &node(index)) {
            Some(what) => {
                world.act(&Act::OrderStatus(index, true));
                if what.is_repair() {
                    return Some(what);
                }
            }
            None => world.act(&Act::Wait(200)),
        }
    }
    None
}

#[test]
fn each_fault_has_a_reboot_of_its_own_and_the_same_one_no_second() {
    let mut world = fleet();
    let fault = |number| Act::Fault(0, number, Severity::Fatal, Action::RebootNode, 0);
    world.act(&fault(1));
    assert_eq!(repaired(&mut world, 0), Some(OrderKind::Reboot));
    // Mended; and before it is proven another GPU has it for the first time.
    world.act(&Act::Clear(0, 1));
    world.act(&fault(2));
    assert_eq!(repaired(&mut world, 0), Some(OrderKind::Reboot));
    world.act(&Act::Clear(0, 2));
    // The first again: a reboot does not help it.
    world.act(&fault(1));
    assert_eq!(repaired(&mut world, 0), None);
    let text = |world: &World| {
        world.state.nodes[&node(0)].phase.deferred().cloned().unwrap().reason.to_string()
    };
    assert!(
        text(&world).contains("all automatic repairs were attempted without success"),
        "{}",
        text(&world)
    );
    // Nor is a node rebooted for ever because its faults follow one another.
    world.act(&Act::Clear(0, 1));
    world.act(&fault(3));
    assert_eq!(repaired(&mut world, 0), Some(OrderKind::Reboot));
    world.act(&Act::Clear(0, 3));
    world.act(&fault(4));
    assert_eq!(repaired(&mut world, 0), None);
    let spent = "`reboot` already ran 3 times since the node was last in service";
    assert!(text(&world).contains(spent), "{}", text(&world));
    // A person's repair begins anew.
    world.act(&Act::Repaired(0));
    world.act(&Act::Clear(0, 4));
    world.everybody_answers();
    assert_eq!(phase(&world, &node(0)), NodePhase::InService);
    world.replay();
}

#[test]
fn a_gpu_is_named_as_people_find_it_also_when_it_is_in_no_list_any_more() {
    let mut world = fleet();
    let id = node(3);
    let gpu = |index: u32| GpuInventory {
        uuid: GpuUuid(format!("GPU-{index}")),
        name: None,
        index: Some(index),
        pci: Some(format!("0000:{index}b:00.0")),
    };
    let boot = world.state.nodes[&id].reported_inventory().cloned().unwrap().boot.clone();
    let seen = |gpus: &[u32], boot: &str| Event::InventoryReported {
        node: node(3),
        inventory: NodeInventory {
            boot: boot.to_owned(),
            gpus: Some(gpus.iter().copied().map(gpu).collect()),
            ..NodeInventory::default()
        },
    };
    world.batch(vec![(Actor::Node(id.clone()), seen(&[0, 1], &boot))]);
    // It leaves the list, and then the log speaks of it.
    world.batch(vec![(Actor::Node(id.clone()), seen(&[0], &boot))]);
    world.act(&fatal(3, Action::ResetGpu));
    let node_of = |world: &World| world.state.nodes[&id].clone();
    assert_eq!(
        node_of(&world).phase.rationale().reason.to_string(),
        "fatal gpu.xid on GPU 1 at 0000:1b:00.0"
    );
    let reset = OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) };
    assert_eq!(node_of(&world).describe_order(&reset), "reset GPU 1 at 0000:1b:00.0");
    // In another boot it is remembered for as long as something is wrong with it.
    world.batch(vec![(Actor::Node(id.clone()), seen(&[0], "next"))]);
    assert_eq!(node_of(&world).inventory.as_ref().unwrap().missing_gpus.len(), 1);
    world.act(&Act::Clear(3, 1));
    world.batch(vec![(Actor::Node(id.clone()), seen(&[0], "third"))]);
    assert_eq!(node_of(&world).inventory.as_ref().unwrap().missing_gpus, []);
    world.replay();
}

#[test]
fn what_failed_for_a_finding_that_is_over_is_proven_again() {
    let mut world = fleet();
    let id = node(0);
    world.act(&fatal(0, Action::RebootNode));
    world.answer_until(&id, OrderKind::is_repair);
    world.act(&Act::OrderStatus(0, true));
    assert_eq!(order(&world, &id), Some(OrderKind::Verify { level: VerificationLevel::V1 }));
    // It clears later than the agent waits for.
    world.act(&Act::OrderStatus(0, false));
    assert_eq!((phase(&world, &id), order(&world, &id)), (NodePhase::Repairing, None));
    world.act(&Act::Clear(0, 1));
    assert_eq!(phase(&world, &id), NodePhase::Verifying);
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::InService);
    world.replay();
}

#[test]
fn the_agent_hears_of_a_repair_by_hand_before_anything_is_proven() {
    let mut world = fleet();
    let id = node(0);
    world.act(&fatal(0, Action::DrainAndReplace));
    world.answer_until(&id, |what| matches!(what, OrderKind::Drain { .. }));
    assert_eq!((phase(&world, &id), order(&world, &id)), (NodePhase::Repairing, None));
    world.act(&Act::Repaired(0));
    let told = OrderKind::AcknowledgeRepair { repair: "board".to_owned() };
    assert_eq!(order(&world, &id), Some(told));
    world.act(&Act::OrderStatus(0, true));
    assert_eq!(order(&world, &id), Some(OrderKind::Verify { level: VerificationLevel::V0 }));
    world.act(&Act::Clear(0, 1));
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::InService);
    // An agent that does not know of repairs refuses, and is proven all the same.
    world.act(&fatal(0, Action::DrainAndReplace));
    world.answer_until(&id, |what| matches!(what, OrderKind::Drain { .. }));
    world.act(&Act::Repaired(0));
    world.act(&Act::OrderStatus(0, false));
    assert_eq!(order(&world, &id), Some(OrderKind::Verify { level: VerificationLevel::V0 }));
    world.replay();
}

#[test]
fn a_revoked_node_is_out_at_once_and_comes_back_when_it_is_heard_and_proven() {
    let mut world = fleet();
    let id = node(3);
    world.act(&Act::Revoke(3));
    let why = world.state.nodes[&id].phase.rationale().clone();
    assert_eq!(phase(&world, &id), NodePhase::Held);
    assert!(
        why.reason.to_string().starts_with("its certificate was revoked at 2026-11-15T00:00:00Z"),
        "{why:?}"
    );
    assert!(
        why.unblocked_by.to_string().contains("token create --pool serve --node n03"),
        "{why:?}"
    );
    assert_eq!(world.state.domain_counts[&Domain::Fleet].out, 1);
    // Nothing that is known of it from before counts, nobody else lets it in, and its silence accuses no switch.
    world.act(&Act::Hold(3));
    world.act(&Act::Release(3));
    for index in 0..3 {
        world.act(&Act::Revoke(index));
        world.act(&Act::Silent(index));
    }
    world.act(&Act::Wait(5000));
    assert_eq!((phase(&world, &id), order(&world, &id)), (NodePhase::Held, None));
    assert_eq!(*world.state.nodes[&id].phase.rationale(), why);
    assert_eq!(world.state.domain_faults.len(), 0);
    world.act(&Act::Heard(3));
    assert_eq!(phase(&world, &id), NodePhase::Verifying);
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::InService);
    world.replay();
}

#[test]
fn the_breaker_keeps_the_rest_in_service_and_says_so() {
    let mut world = fleet();
    world.set_policy(Policy::default()); // A tenth of the fleet: one node.
    world.act(&fatal(0, Action::RebootNode));
    world.act(&fatal(1, Action::RebootNode));
    assert_eq!(phase(&world, &node(0)), NodePhase::Quarantined);
    assert_eq!(phase(&world, &node(1)), NodePhase::Suspect);
    let why = world.state.nodes[&node(1)].phase.deferred().cloned().unwrap();
    assert_eq!(
        why.reason.to_string(),
        "disruption budget of the fleet used up: 1 of 12 nodes are out of service, 1 allowed"
    );
    world.act(&Act::Clear(0, 1));
    world.everybody_answers();
    world.act(&Act::Wait(1000));
    assert_eq!(phase(&world, &node(1)), NodePhase::Quarantined, "there is room now");
}

#[test]
fn another_tools_cordon_is_left_alone() {
    let mut world = fleet();
    let id = node(5);
    world.act(&Act::Theirs(5));
    assert_eq!(phase(&world, &id), NodePhase::Held);
    world.act(&fatal(5, Action::ResetGpu));
    world.act(&Act::Clear(5, 1));
    world.act(&Act::Wait(5000));
    assert_eq!((phase(&world, &id), order(&world, &id)), (NodePhase::Held, None));
    world.act(&Act::TheirsGone(5));
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::InService);
    assert_eq!(world.state.nodes[&id].scheduling.cordon(), Cordon::None);
}

#[test]
fn what_explains_most_is_blamed_alone() {
    let mut world = fleet();
    // All of rack r0 is behind leaf switch l0, and half of rack r1; one node there still works.
    world.ports_down(0..5);
    let domain_faults: Vec<String> =
        world.state.domain_faults.keys().map(ToString::to_string).collect();
    assert_eq!(domain_faults, ["leaf switch l0"]);
}

#[test]
fn a_rack_is_blamed_and_its_nodes_stay() {
    let mut world = fleet();
    for index in 0..4 {
        world.act(&Act::Fault(index, 1, Severity::Critical, Action::Investigate, 1));
    }
    let domain_faults: Vec<String> =
        world.state.domain_faults.keys().map(ToString::to_string).collect();
    assert_eq!(domain_faults, ["rack r0"], "all of the rack, and not all behind the leaf switch");
    assert_eq!(phase(&world, &node(3)), NodePhase::Suspect);
    let why = world.state.nodes[&node(3)].phase.deferred().cloned().unwrap();
    assert!(
        why.reason
            .to_string()
            .contains("has a fault (network faults); the node itself is not the cause"),
        "{why:?}"
    );
    for index in 0..4 {
        world.act(&Act::Clear(index, 1));
    }
    assert!(world.state.domain_faults.is_empty());
    assert_eq!(phase(&world, &node(3)), NodePhase::InService);
}

#[test]
fn a_node_that_was_mended_does_not_wait_for_a_person_but_for_what_is_to_blame() {
    let mut world = fleet();
    for index in 0..4 {
        world.act(&Act::Fault(index, 1, Severity::Critical, Action::Investigate, 1));
    }
    // One of them has a fault of its own besides, which a reboot mends.
    let id = node(3);
    world.act(&Act::Fault(3, 2, Severity::Fatal, Action::RebootNode, 0));
    world.answer_until(&id, OrderKind::is_repair);
    world.act(&Act::Clear(3, 2));
    world.everybody_answers();
    // Findings have their time to clear.
    world.act(&Act::Wait(1000));
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::Repairing);
    let why = world.state.nodes[&id].phase.deferred().cloned().unwrap();
    assert!(
        why.reason.to_string().ends_with("rack r0 has a fault, the node itself is not the cause"),
        "{why:?}"
    );
    assert_eq!(why.unblocked_by.to_string(), "rack r0 is repaired");
    for index in 0..4 {
        world.act(&Act::Clear(index, 1));
    }
    world.everybody_answers();
    world.act(&Act::Wait(1000));
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::InService);
}

#[test]
fn a_node_that_fails_again_and_again_waits_for_a_person() {
    let mut world = fleet();
    let id = node(2);
    for _ in 0..5 {
        world.act(&fatal(2, Action::RebootNode));
        world.answer_until(&id, OrderKind::is_repair);
        world.act(&Act::Clear(2, 1));
        world.everybody_answers();
    }
    world.act(&fatal(2, Action::RebootNode));
    world.everybody_answers();
    assert_eq!(phase(&world, &id), NodePhase::Repairing);
    let why = world.state.nodes[&id].phase.deferred().cloned().unwrap();
    assert!(
        why.reason.to_string().contains("out of service 5 times in 28 days")
            || why.reason.to_string().contains("6 times"),
        "{why:?}"
    );
}

#[test]
fn a_reboot_waits_for_approval_and_for_the_thaw() {
    let mut world = fleet();
    let mut policy = world.state.policy.clone();
    policy.pools_default.reboot_needs_approval = true;
    world.set_policy(policy);
    let id = node(4);
    world.act(&fatal(4, Action::RebootNode));
    world.everybody_answers();
    assert_eq!(
        world.state.nodes[&id].phase.deferred().cloned().unwrap().reason.to_string(),
        "`reboot` needs approval"
    );
    let until = world.now + jiff::SignedDuration::from_hours(1);
    let freeze =
        OperatorRequest::Freeze { domain: Domain::Fleet, until, reason: "launch".to_owned() };
    world.ask(freeze);
    world.ask(OperatorRequest::Approve { node: id.clone() });
    assert_eq!(
        world.state.nodes[&id].phase.deferred().cloned().unwrap().reason.to_string(),
        "the fleet is frozen by ann: launch"
    );
    world.ask(OperatorRequest::Unfreeze { domain: Domain::Fleet });
    assert_eq!(order(&world, &id), Some(OrderKind::Reboot));
}

#[test]
fn a_freeze_that_ends_by_itself_lets_go_on() {
    let mut world = fleet();
    let until = world.now + jiff::SignedDuration::from_hours(2);
    world.ask(OperatorRequest::Freeze {
        domain: Domain::Fleet,
        until,
        reason: "launch".to_owned(),
    });
    let id = node(4);
    world.act(&fatal(4, Action::RebootNode));
    world.everybody_answers();
    assert_eq!((phase(&world, &id), order(&world, &id)), (NodePhase::Repairing, None));
    world.act(&Act::Wait(7199));
    assert_eq!(order(&world, &id), None);
    world.act(&Act::Wait(1));
    assert_eq!(order(&world, &id), Some(OrderKind::Reboot));
    assert_eq!(
        world.state.nodes[&id].phase.deferred(),
        None,
        "what is ordered is held back no more"
    );
}

/// A fleet whose repairs wait for a window that opens in an hour.
fn shut_for_an_hour() -> World {
    let mut world = fleet();
    let opens = world.now + jiff::SignedDuration::from_hours(1);
    let from = opens.to_zoned(jiff::tz::TimeZone::UTC).time();
    let mut policy = world.state.policy.clone();
    policy.pools_default.repair_windows = vec![Window { days: Vec::new(), from, hours: 2 }];
    world.set_policy(policy);
    world
}

#[test]
fn a_repair_waits_for_the_window_and_taking_out_does_not() {
    let mut world = shut_for_an_hour();
    let id = node(4);
    world.act(&fatal(4, Action::RebootNode));
    world.everybody_answers();
    assert_eq!((phase(&world, &id), order(&world, &id)), (NodePhase::Repairing, None));
    let why = world.state.nodes[&id].phase.deferred().cloned().unwrap();
    assert_eq!(why.reason.to_string(), "`reboot` waits for a repair window of pool train");
    assert!(
        why.unblocked_by
            .to_string()
            .ends_with("or an approver approves it (`farrier fleet approve`)"),
        "{why:?}"
    );
    world.act(&Act::Wait(3600));
    assert_eq!(order(&world, &id), Some(OrderKind::Reboot));
}

#[test]
fn a_person_need_not_wait_for_the_window() {
    let mut world = shut_for_an_hour();
    let id = node(4);
    world.act(&fatal(4, Action::RebootNode));
    world.everybody_answers();
    assert!(world.state.nodes[&id].waits_for_approval());
    world.ask(OperatorRequest::Approve { node: id.clone() });
    assert_eq!(order(&world, &id), Some(OrderKind::Reboot));
}

#[test]
fn a_pool_that_only_observes_gets_no_orders() {
    let mut world = fleet();
    let mut policy = world.state.policy.clone();
    policy.pools_default.autonomy = Autonomy::Observe;
    world.set_policy(policy);
    world.act(&fatal(6, Action::RebootNode));
    assert_eq!((phase(&world, &node(6)), order(&world, &node(6))), (NodePhase::Suspect, None));
    let why = world.state.nodes[&node(6)].phase.deferred().cloned().unwrap();
    assert!(why.reason.to_string().contains("the pool only observes"), "{why:?}");
}

#[test]
fn a_silent_node_is_doubted_and_then_taken_out() {
    let mut world = fleet();
    world.act(&Act::Silent(7));
    assert_eq!(phase(&world, &node(7)), NodePhase::Suspect);
    world.act(&Act::Wait(301));
    assert_eq!(phase(&world, &node(7)), NodePhase::Quarantined);
    world.act(&Act::Heard(7));
    assert_eq!(phase(&world, &node(7)), NodePhase::Verifying, "what was silent is proven first");
}

#[test]
fn an_answer_to_an_order_that_is_not_waited_for_changes_nothing() {
    let mut world = fleet();
    let id = node(8);
    world.act(&fatal(8, Action::RebootNode));
    let generation = world.state.nodes[&id].orders.generation();
    let before = world.state.nodes[&id].clone();
    let answer = OrderStatus::Done { evidence: "old".to_owned() };
    let late =
        Event::OrderStatusReported { node: id.clone(), generation: generation - 1, status: answer };
    world.batch(vec![(Actor::Node(id.clone()), late)]);
    assert_eq!(world.state.nodes[&id], before);
}

#[test]
fn a_record_that_comes_again_is_not_taken_in_twice() {
    let mut world = fleet();
    let id = node(9);
    world.act(&Act::Fault(9, 1, Severity::Warning, Action::Investigate, 0));
    let twice = world
        .log
        .iter()
        .rfind(|it| matches!(it.event, Event::FindingsReported { .. }))
        .unwrap()
        .clone();
    world.act(&Act::Clear(9, 1));
    let before = world.state.nodes[&id].clone();
    world.batch(vec![(twice.by, twice.event)]);
    assert_eq!(world.state.nodes[&id], before, "what was cleared stays so");
}

#[test]
fn a_new_journal_tells_everything_anew() {
    let mut world = fleet();
    let id = node(9);
    world.act(&fatal(9, Action::ResetGpu));
    let record = Record { journal: "second".to_owned(), number: 1 };
    let open =
        Event::FindingsSnapshot { node: id.clone(), record: record.clone(), open: Vec::new() };
    world.batch(vec![(Actor::Node(id.clone()), open)]);
    assert!(world.state.nodes[&id].findings().is_empty());
    assert!(world.state.nodes[&id].reports.has(&record));
    assert_eq!(phase(&world, &id), NodePhase::Verifying, "proven first");
}

#[test]
fn a_decision_that_does_not_follow_is_found_in_replay() {
    let mut world = fleet();
    world.act(&Act::Fault(1, 1, Severity::Fatal, Action::ResetGpu, 0));
    let mut replay = Replay::default();
    let mut found = None;
    for entry in &world.log {
        let mut entry = entry.clone();
        if let Event::PhaseChanged { to, .. } = &mut entry.event
            && *to == NodePhase::Quarantined
        {
            *to = NodePhase::Repairing;
        }
        if let Err(divergence) = replay.take(entry) {
            found = Some(divergence);
            break;
        }
    }
    let found = found.unwrap_or_else(|| replay.finish().unwrap_err());
    assert_eq!(found.batch, world.log.last().unwrap().batch);
    assert_ne!(found.decided, found.recorded);
}
