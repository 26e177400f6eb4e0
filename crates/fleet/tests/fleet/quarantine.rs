//! Quarantine, repair, verification and return to service.

use farrier_fleet::fleet::event::{
    Cordon, GpuInventory, JournalPosition, NodeInventory, OperatorRequest,
};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::{Autonomy, DisruptionBudget};
use farrier_fleet::fleet::reason::RepairsAttempted;
use farrier_fleet::fleet::replay::Replay;
use farrier_fleet::fleet::window::Window;
use farrier_fleet::fleet::{
    Domain, Event, NodeId, NodePhase, OrderKind, OrderStatus, Policy, Reason, VerificationLevel,
};
use farrier_fleet::health::{Action, GpuUuid, Severity};

use crate::test_fleet::{Act, TestFleet, node};

/// A fleet with all nodes in service and a large disruption budget.
fn fleet_in_service() -> TestFleet {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    let large_budgets = [DomainKind::Fleet, DomainKind::Pool]
        .map(|kind| (kind, DisruptionBudget { share: 0.5, nodes: None, allow_min_one: None }));
    let policy = Policy { disruption_budgets: large_budgets.into(), ..Policy::default() };
    fleet.set_policy(policy);
    assert!(fleet.state.nodes.values().all(|node| node.phase() == NodePhase::InService));
    fleet
}

fn fatal(index: usize, action: Action) -> Act {
    Act::Fault(index, 1, Severity::Fatal, action, 0)
}

fn order(fleet: &TestFleet, id: &NodeId) -> Option<OrderKind> {
    fleet.state.nodes[id].orders.pending().map(|pending| pending.order.kind.clone())
}

fn phase(fleet: &TestFleet, id: &NodeId) -> NodePhase {
    fleet.state.nodes[id].phase()
}

#[test]
fn a_faulty_gpu_is_reset_and_its_node_verified_before_it_returns_to_service() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&fatal(3, Action::ResetGpu));
    assert_eq!(phase(&fleet, &id), NodePhase::Quarantined);
    let mut orders = Vec::new();
    while let Some(kind) = order(&fleet, &id) {
        if kind.is_repair() {
            fleet.act(&Act::Clear(3, 1));
        }
        orders.push(kind);
        fleet.act(&Act::OrderStatus(3, true));
    }
    let gpu = farrier_fleet::health::GpuUuid("GPU-1".to_owned());
    assert_eq!(
        orders,
        [
            OrderKind::Cordon,
            OrderKind::Drain { wait_s: 14_400 },
            OrderKind::ResetGpu { gpu },
            OrderKind::Verify { level: VerificationLevel::V0 },
            OrderKind::Verify { level: VerificationLevel::V1 },
            OrderKind::Uncordon,
        ]
    );
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_failed_repair_leads_to_the_next_one_and_then_to_an_operator() {
    let mut fleet = fleet_in_service();
    let id = node(0);
    fleet.act(&fatal(0, Action::ResetGpu));
    let mut repairs = Vec::new();
    for _ in 0..40 {
        match order(&fleet, &id) {
            Some(kind) => {
                repairs.extend(kind.is_repair().then_some(kind));
                fleet.act(&Act::OrderStatus(0, true));
            }
            None => fleet.act(&Act::Wait(200)),
        }
    }
    assert_eq!(repairs.len(), 2, "expected a reset and a reboot: {repairs:?}");
    assert_eq!(repairs[1], OrderKind::Reboot);
    let rationale = fleet.state.nodes[&id].phase.deferred().cloned().unwrap();
    let all_attempted =
        matches!(rationale.reason, Reason::NeedsRepair { attempted: RepairsAttempted::All, .. });
    assert!(all_attempted, "{rationale:?}");
    fleet.act(&Act::Repaired(0));
    fleet.act(&Act::Clear(0, 1));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
}

/// Completes orders up to and including the first repair, and returns this repair. `None` if no
/// repair is ordered.
fn complete_next_repair(fleet: &mut TestFleet, index: usize) -> Option<OrderKind> {
    for _ in 0..20 {
        match order(fleet, &node(index)) {
            Some(kind) => {
                fleet.act(&Act::OrderStatus(index, true));
                if kind.is_repair() {
                    return Some(kind);
                }
            }
            None => fleet.act(&Act::Wait(200)),
        }
    }
    None
}

#[test]
fn each_fault_gets_one_reboot() {
    let mut fleet = fleet_in_service();
    let fault = |number| Act::Fault(0, number, Severity::Fatal, Action::RebootNode, 0);
    fleet.act(&fault(1));
    assert_eq!(complete_next_repair(&mut fleet, 0), Some(OrderKind::Reboot));
    // The repair succeeds. Before verification, another GPU has the same fault for the first time.
    fleet.act(&Act::Clear(0, 1));
    fleet.act(&fault(2));
    assert_eq!(complete_next_repair(&mut fleet, 0), Some(OrderKind::Reboot));
    fleet.act(&Act::Clear(0, 2));
    // The first GPU has the fault again, so another reboot would not help.
    fleet.act(&fault(1));
    assert_eq!(complete_next_repair(&mut fleet, 0), None);
    let text = |fleet: &TestFleet| {
        fleet.state.nodes[&node(0)].phase.deferred().cloned().unwrap().reason.to_string()
    };
    assert!(
        text(&fleet).contains("all automatic repairs were attempted without success"),
        "{}",
        text(&fleet)
    );
    // A series of different faults does not reboot a node forever.
    fleet.act(&Act::Clear(0, 1));
    fleet.act(&fault(3));
    assert_eq!(complete_next_repair(&mut fleet, 0), Some(OrderKind::Reboot));
    fleet.act(&Act::Clear(0, 3));
    fleet.act(&fault(4));
    assert_eq!(complete_next_repair(&mut fleet, 0), None);
    let spent = "`reboot` already ran 3 times since the node was last in service";
    assert!(text(&fleet).contains(spent), "{}", text(&fleet));
    // A manual repair resets the attempts.
    fleet.act(&Act::Repaired(0));
    fleet.act(&Act::Clear(0, 4));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &node(0)), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_gpu_is_described_by_location_even_after_it_left_the_inventory() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    let gpu = |index: u32| GpuInventory {
        uuid: GpuUuid(format!("GPU-{index}")),
        name: None,
        index: Some(index),
        pci: Some(format!("0000:{index}b:00.0")),
        serial: None,
    };
    let boot = fleet.state.nodes[&id].reported_inventory().cloned().unwrap().boot.clone();
    let inventory = |gpus: &[u32], boot: &str| Event::InventoryReported {
        node: node(3),
        inventory: NodeInventory {
            boot: boot.to_owned(),
            gpus: Some(gpus.iter().copied().map(gpu).collect()),
            ..NodeInventory::default()
        },
    };
    fleet.batch(vec![(Actor::Node(id.clone()), inventory(&[0, 1], &boot))]);
    // The GPU leaves the inventory, and then a finding names it.
    fleet.batch(vec![(Actor::Node(id.clone()), inventory(&[0], &boot))]);
    fleet.act(&fatal(3, Action::ResetGpu));
    let current_node = |fleet: &TestFleet| fleet.state.nodes[&id].clone();
    assert_eq!(
        current_node(&fleet).phase.rationale().reason.to_string(),
        "fatal gpu.xid on GPU 1 at 0000:1b:00.0"
    );
    let reset = OrderKind::ResetGpu { gpu: GpuUuid("GPU-1".to_owned()) };
    assert_eq!(current_node(&fleet).describe_order(&reset), "reset GPU 1 at 0000:1b:00.0");
    // After a boot, the inventory still lists the missing GPU while it has an open finding.
    fleet.batch(vec![(Actor::Node(id.clone()), inventory(&[0], "next"))]);
    assert_eq!(current_node(&fleet).inventory.as_ref().unwrap().missing_gpus.len(), 1);
    fleet.act(&Act::Clear(3, 1));
    fleet.batch(vec![(Actor::Node(id.clone()), inventory(&[0], "third"))]);
    assert_eq!(current_node(&fleet).inventory.as_ref().unwrap().missing_gpus, []);
    fleet.replay();
}

#[test]
fn a_verification_that_failed_for_a_cleared_finding_runs_again() {
    let mut fleet = fleet_in_service();
    let id = node(0);
    fleet.act(&fatal(0, Action::RebootNode));
    fleet.complete_orders_until(&id, OrderKind::is_repair);
    fleet.act(&Act::OrderStatus(0, true));
    assert_eq!(order(&fleet, &id), Some(OrderKind::Verify { level: VerificationLevel::V1 }));
    // The finding clears only after the verification has failed.
    fleet.act(&Act::OrderStatus(0, false));
    assert_eq!((phase(&fleet, &id), order(&fleet, &id)), (NodePhase::Repairing, None));
    fleet.act(&Act::Clear(0, 1));
    assert_eq!(phase(&fleet, &id), NodePhase::Verifying);
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.replay();
}

#[test]
fn the_agent_acknowledges_a_manual_repair_before_verification() {
    let mut fleet = fleet_in_service();
    let id = node(0);
    fleet.act(&fatal(0, Action::DrainAndReplace));
    fleet.complete_orders_until(&id, |kind| matches!(kind, OrderKind::Drain { .. }));
    assert_eq!((phase(&fleet, &id), order(&fleet, &id)), (NodePhase::Repairing, None));
    fleet.act(&Act::Repaired(0));
    let acknowledge = OrderKind::AcknowledgeRepair { repair: "board".to_owned() };
    assert_eq!(order(&fleet, &id), Some(acknowledge));
    fleet.act(&Act::OrderStatus(0, true));
    assert_eq!(order(&fleet, &id), Some(OrderKind::Verify { level: VerificationLevel::V0 }));
    fleet.act(&Act::Clear(0, 1));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    // An older agent does not acknowledge the repair. Its node is verified anyway.
    fleet.act(&fatal(0, Action::DrainAndReplace));
    fleet.complete_orders_until(&id, |kind| matches!(kind, OrderKind::Drain { .. }));
    fleet.act(&Act::Repaired(0));
    fleet.act(&Act::OrderStatus(0, false));
    assert_eq!(order(&fleet, &id), Some(OrderKind::Verify { level: VerificationLevel::V0 }));
    fleet.replay();
}

#[test]
fn a_revoked_node_is_held_at_once_and_returns_after_enrolment_and_verification() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Revoke(3));
    let rationale = fleet.state.nodes[&id].phase.rationale().clone();
    assert_eq!(phase(&fleet, &id), NodePhase::Held);
    assert!(
        rationale
            .reason
            .to_string()
            .starts_with("its certificate was revoked at 2026-11-15T00:00:00Z"),
        "{rationale:?}"
    );
    assert!(
        rationale.unblocked_by.to_string().contains("token create --pool serve --node n03"),
        "{rationale:?}"
    );
    assert_eq!(fleet.state.domain_counts[&Domain::Fleet].out, 1);
    // A hold and a release do not return the node to service. Lost heartbeats of revoked nodes do
    // not count as symptoms of a domain fault.
    fleet.act(&Act::Hold(3));
    fleet.act(&Act::Release(3));
    for index in 0..3 {
        fleet.act(&Act::Revoke(index));
        fleet.act(&Act::HeartbeatLost(index));
    }
    fleet.act(&Act::Wait(5000));
    assert_eq!((phase(&fleet, &id), order(&fleet, &id)), (NodePhase::Held, None));
    assert_eq!(*fleet.state.nodes[&id].phase.rationale(), rationale);
    assert_eq!(fleet.state.domain_faults.len(), 0);
    fleet.act(&Act::HeartbeatRestored(3));
    assert_eq!(phase(&fleet, &id), NodePhase::Verifying);
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.replay();
}

#[test]
fn the_disruption_budget_keeps_the_other_nodes_in_service_with_a_reason() {
    let mut fleet = fleet_in_service();
    fleet.set_policy(Policy::default()); // One node, a tenth of the fleet, may be out of service.
    fleet.act(&fatal(0, Action::RebootNode));
    fleet.act(&fatal(1, Action::RebootNode));
    assert_eq!(phase(&fleet, &node(0)), NodePhase::Quarantined);
    assert_eq!(phase(&fleet, &node(1)), NodePhase::Suspect);
    let rationale = fleet.state.nodes[&node(1)].phase.deferred().cloned().unwrap();
    assert_eq!(
        rationale.reason.to_string(),
        "disruption budget of the fleet used up: Farrier keeps 1 of 12 nodes out of service, 1 allowed (n00)"
    );
    fleet.act(&Act::Clear(0, 1));
    for _ in 0..10 {
        fleet.act(&Act::OrderStatus(0, true));
    }
    assert_eq!(phase(&fleet, &node(1)), NodePhase::Quarantined, "the budget has a free slot now");
}

#[test]
fn an_external_cordon_is_never_removed() {
    let mut fleet = fleet_in_service();
    let id = node(5);
    fleet.act(&Act::ExternalCordon(5));
    assert_eq!(phase(&fleet, &id), NodePhase::Held);
    fleet.act(&fatal(5, Action::ResetGpu));
    fleet.act(&Act::Clear(5, 1));
    fleet.act(&Act::Wait(5000));
    assert_eq!((phase(&fleet, &id), order(&fleet, &id)), (NodePhase::Held, None));
    fleet.act(&Act::ExternalUncordon(5));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    assert_eq!(fleet.state.nodes[&id].scheduling.cordon(), Cordon::None);
}

#[test]
fn the_domain_that_explains_most_nodes_is_the_only_domain_fault() {
    let mut fleet = fleet_in_service();
    // Rack r0 and half of rack r1 are behind leaf switch l0. All of these nodes but one, in rack
    // r1, have the fault.
    fleet.ports_down(0..5);
    let domain_faults: Vec<String> =
        fleet.state.domain_faults.keys().map(ToString::to_string).collect();
    assert_eq!(domain_faults, ["leaf switch l0"]);
}

#[test]
fn nodes_of_a_faulty_rack_stay_in_service() {
    let mut fleet = fleet_in_service();
    for index in 0..4 {
        fleet.act(&Act::Fault(index, 1, Severity::Critical, Action::Investigate, 1));
    }
    let domain_faults: Vec<String> =
        fleet.state.domain_faults.keys().map(ToString::to_string).collect();
    assert_eq!(
        domain_faults,
        ["rack r0"],
        "every node of the rack has the fault, not every node behind the leaf switch"
    );
    assert_eq!(phase(&fleet, &node(3)), NodePhase::Suspect);
    let rationale = fleet.state.nodes[&node(3)].phase.deferred().cloned().unwrap();
    assert!(
        rationale
            .reason
            .to_string()
            .contains("has a fault (network faults); the node itself is not the cause"),
        "{rationale:?}"
    );
    for index in 0..4 {
        fleet.act(&Act::Clear(index, 1));
    }
    assert!(fleet.state.domain_faults.is_empty());
    assert_eq!(phase(&fleet, &node(3)), NodePhase::InService);
}

#[test]
fn a_repaired_node_waits_for_the_domain_fault_and_not_for_an_operator() {
    let mut fleet = fleet_in_service();
    for index in 0..4 {
        fleet.act(&Act::Fault(index, 1, Severity::Critical, Action::Investigate, 1));
    }
    // One of these nodes also has a fault of its own, which a reboot repairs.
    let id = node(3);
    fleet.act(&Act::Fault(3, 2, Severity::Fatal, Action::RebootNode, 0));
    fleet.complete_orders_until(&id, OrderKind::is_repair);
    fleet.act(&Act::Clear(3, 2));
    fleet.complete_all_orders();
    // Wait until the settle time, in which findings may clear, is over.
    fleet.act(&Act::Wait(1000));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::Repairing);
    let rationale = fleet.state.nodes[&id].phase.deferred().cloned().unwrap();
    assert!(
        rationale
            .reason
            .to_string()
            .ends_with("rack r0 has a fault, the node itself is not the cause"),
        "{rationale:?}"
    );
    let unblocked_by = rationale.unblocked_by.to_string();
    assert!(unblocked_by.contains("`farrier fleet domain repaired rack:r0`"), "{unblocked_by}");
    for index in 0..4 {
        fleet.act(&Act::Clear(index, 1));
    }
    fleet.complete_all_orders();
    fleet.act(&Act::Wait(1000));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
}

#[test]
fn a_lemon_waits_for_an_operator() {
    let mut fleet = fleet_in_service();
    let id = node(2);
    for _ in 0..5 {
        fleet.act(&fatal(2, Action::RebootNode));
        fleet.complete_orders_until(&id, OrderKind::is_repair);
        fleet.act(&Act::Clear(2, 1));
        fleet.complete_all_orders();
    }
    fleet.act(&fatal(2, Action::RebootNode));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::Repairing);
    let rationale = fleet.state.nodes[&id].phase.deferred().cloned().unwrap();
    assert!(
        rationale.reason.to_string().contains("out of service 5 times in 28 days")
            || rationale.reason.to_string().contains("6 times"),
        "{rationale:?}"
    );
}

#[test]
fn a_reboot_waits_for_approval_and_for_the_end_of_a_freeze() {
    let mut fleet = fleet_in_service();
    let mut policy = fleet.state.policy.clone();
    policy.pools_default.reboot_needs_approval = true;
    fleet.set_policy(policy);
    let id = node(4);
    fleet.act(&fatal(4, Action::RebootNode));
    fleet.complete_all_orders();
    assert_eq!(
        fleet.state.nodes[&id].phase.deferred().cloned().unwrap().reason.to_string(),
        "`reboot` needs approval"
    );
    let until = fleet.now + jiff::SignedDuration::from_hours(1);
    let freeze =
        OperatorRequest::Freeze { domain: Domain::Fleet, until, reason: "launch".to_owned() };
    fleet.request(freeze);
    fleet.request(OperatorRequest::Approve { node: id.clone() });
    assert_eq!(
        fleet.state.nodes[&id].phase.deferred().cloned().unwrap().reason.to_string(),
        "the fleet is frozen by ann: launch"
    );
    fleet.request(OperatorRequest::Unfreeze { domain: Domain::Fleet });
    assert_eq!(order(&fleet, &id), Some(OrderKind::Reboot));
}

#[test]
fn orders_resume_when_a_freeze_expires() {
    let mut fleet = fleet_in_service();
    let until = fleet.now + jiff::SignedDuration::from_hours(2);
    fleet.request(OperatorRequest::Freeze {
        domain: Domain::Fleet,
        until,
        reason: "launch".to_owned(),
    });
    let id = node(4);
    fleet.act(&fatal(4, Action::RebootNode));
    fleet.complete_all_orders();
    assert_eq!((phase(&fleet, &id), order(&fleet, &id)), (NodePhase::Repairing, None));
    fleet.act(&Act::Wait(7199));
    assert_eq!(order(&fleet, &id), None);
    fleet.act(&Act::Wait(1));
    assert_eq!(order(&fleet, &id), Some(OrderKind::Reboot));
    assert_eq!(fleet.state.nodes[&id].phase.deferred(), None, "an issued order is not deferred");
}

/// A fleet whose repair window begins in an hour.
fn fleet_outside_its_window() -> TestFleet {
    let mut fleet = fleet_in_service();
    let begin = fleet.now + jiff::SignedDuration::from_hours(1);
    let from = begin.to_zoned(jiff::tz::TimeZone::UTC).time();
    let mut policy = fleet.state.policy.clone();
    policy.pools_default.repair_windows =
        vec![Window { days: Vec::new(), from, hours: 2, tz: None }];
    fleet.set_policy(policy);
    fleet
}

#[test]
fn a_repair_waits_for_the_window_and_a_quarantine_does_not() {
    let mut fleet = fleet_outside_its_window();
    let id = node(4);
    fleet.act(&fatal(4, Action::RebootNode));
    fleet.complete_all_orders();
    assert_eq!((phase(&fleet, &id), order(&fleet, &id)), (NodePhase::Repairing, None));
    let rationale = fleet.state.nodes[&id].phase.deferred().cloned().unwrap();
    assert_eq!(rationale.reason.to_string(), "`reboot` waits for a repair window of pool train");
    assert!(
        rationale
            .unblocked_by
            .to_string()
            .ends_with("or an approver approves it (`farrier fleet approve`)"),
        "{rationale:?}"
    );
    fleet.act(&Act::Wait(3600));
    assert_eq!(order(&fleet, &id), Some(OrderKind::Reboot));
}

#[test]
fn an_approved_repair_does_not_wait_for_the_window() {
    let mut fleet = fleet_outside_its_window();
    let id = node(4);
    fleet.act(&fatal(4, Action::RebootNode));
    fleet.complete_all_orders();
    assert!(fleet.state.nodes[&id].waits_for_approval());
    fleet.request(OperatorRequest::Approve { node: id.clone() });
    assert_eq!(order(&fleet, &id), Some(OrderKind::Reboot));
}

#[test]
fn a_pool_that_only_observes_gets_no_orders() {
    let mut fleet = fleet_in_service();
    let mut policy = fleet.state.policy.clone();
    policy.pools_default.autonomy = Autonomy::Observe;
    fleet.set_policy(policy);
    fleet.act(&fatal(6, Action::RebootNode));
    assert_eq!((phase(&fleet, &node(6)), order(&fleet, &node(6))), (NodePhase::Suspect, None));
    let rationale = fleet.state.nodes[&node(6)].phase.deferred().cloned().unwrap();
    assert!(rationale.reason.to_string().contains("the pool only observes"), "{rationale:?}");
}

#[test]
fn a_node_without_heartbeats_becomes_suspect_and_then_quarantined() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::HeartbeatLost(7));
    assert_eq!(phase(&fleet, &node(7)), NodePhase::Suspect);
    fleet.act(&Act::Wait(301));
    assert_eq!(phase(&fleet, &node(7)), NodePhase::Quarantined);
    fleet.act(&Act::HeartbeatRestored(7));
    assert_eq!(
        phase(&fleet, &node(7)),
        NodePhase::Verifying,
        "a node that lost heartbeats is verified first"
    );
}

#[test]
fn a_status_of_an_order_that_is_not_pending_changes_nothing() {
    let mut fleet = fleet_in_service();
    let id = node(8);
    fleet.act(&fatal(8, Action::RebootNode));
    let generation = fleet.state.nodes[&id].orders.generation();
    let before = fleet.state.nodes[&id].clone();
    let status = OrderStatus::Done { evidence: "old".to_owned() };
    let late = Event::OrderStatusReported { node: id.clone(), generation: generation - 1, status };
    fleet.batch(vec![(Actor::Node(id.clone()), late)]);
    assert_eq!(fleet.state.nodes[&id], before);
}

#[test]
fn a_repeated_record_is_applied_once() {
    let mut fleet = fleet_in_service();
    let id = node(9);
    fleet.act(&Act::Fault(9, 1, Severity::Warning, Action::Investigate, 0));
    let repeated = fleet
        .log
        .iter()
        .rfind(|entry| matches!(entry.event, Event::FindingsReported { .. }))
        .unwrap()
        .clone();
    fleet.act(&Act::Clear(9, 1));
    let before = fleet.state.nodes[&id].clone();
    fleet.batch(vec![(repeated.by, repeated.event)]);
    assert_eq!(fleet.state.nodes[&id], before, "cleared findings stay cleared");
}

#[test]
fn a_new_journal_replaces_all_findings() {
    let mut fleet = fleet_in_service();
    let id = node(9);
    fleet.act(&fatal(9, Action::ResetGpu));
    let record = JournalPosition { journal: "second".to_owned(), number: 1 };
    let open =
        Event::FindingsSnapshot { node: id.clone(), record: record.clone(), open: Vec::new() };
    fleet.batch(vec![(Actor::Node(id.clone()), open)]);
    assert!(fleet.state.nodes[&id].findings().is_empty());
    assert!(fleet.state.nodes[&id].reports.has(&record));
    assert_eq!(phase(&fleet, &id), NodePhase::Verifying, "the node is verified first");
}

#[test]
fn a_replay_detects_a_decision_that_its_inputs_do_not_explain() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(1, 1, Severity::Fatal, Action::ResetGpu, 0));
    let mut replay = Replay::default();
    let mut found = None;
    for entry in &fleet.log {
        let mut entry = entry.clone();
        if let Event::PhaseChanged { to, .. } = &mut entry.event
            && *to == NodePhase::Quarantined
        {
            *to = NodePhase::Repairing;
        }
        if let Err(divergence) = replay.apply(entry) {
            found = Some(divergence);
            break;
        }
    }
    let found = found.unwrap_or_else(|| replay.finish().unwrap_err());
    assert_eq!(found.batch, fleet.log.last().unwrap().batch);
    assert_ne!(found.decided, found.recorded);
}
