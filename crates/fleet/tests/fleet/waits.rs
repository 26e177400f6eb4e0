//! No node waits forever. If an action fails, is refused, is not allowed or has to wait, either the
//! controller tries it again, or the rationale of the node says that it waits for an operator.

use farrier_fleet::fleet::event::{Cordon, Event, OperatorRequest};
use farrier_fleet::fleet::identity::{Actor, DomainKind};
use farrier_fleet::fleet::policy::{Autonomy, DisruptionBudget};
use farrier_fleet::fleet::{
    Domain, NodePhase, OrderKind, OrderStatus, Policy, Reason, VerificationLevel,
};
use farrier_fleet::health::{Action, Severity};
use jiff::SignedDuration;

use crate::test_fleet::{Act, NODES, TestFleet, finding, node};

fn fleet_in_service() -> TestFleet {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    let large_budgets = [DomainKind::Fleet, DomainKind::Pool]
        .map(|kind| (kind, DisruptionBudget { share: 0.5, nodes: None, allow_min_one: None }));
    fleet.set_policy(Policy { disruption_budgets: large_budgets.into(), ..Policy::default() });
    fleet
}

fn phase(fleet: &TestFleet, index: usize) -> NodePhase {
    fleet.state.nodes[&node(index)].phase()
}

fn order(fleet: &TestFleet, index: usize) -> Option<OrderKind> {
    fleet.state.nodes[&node(index)].orders.pending().map(|pending| pending.order.kind.clone())
}

fn deferred(fleet: &TestFleet, index: usize) -> String {
    let why = fleet.state.nodes[&node(index)].phase.deferred().cloned();
    why.map_or_else(String::new, |why| format!("{}; until {}", why.reason, why.unblocked_by))
}

fn reboot(index: usize) -> Act {
    Act::Fault(index, 1, Severity::Fatal, Action::RebootNode, 0)
}

/// Completes orders until a verification is ordered, and lets this verification fail.
fn fail_next_verification(fleet: &mut TestFleet, index: usize) {
    for _ in 0..10 {
        match order(fleet, index) {
            Some(OrderKind::Verify { .. }) => return fleet.act(&Act::OrderStatus(index, false)),
            Some(_) => fleet.act(&Act::OrderStatus(index, true)),
            None => panic!("no verification was ordered: {:?}", fleet.state.nodes[&node(index)]),
        }
    }
}

#[test]
fn a_verification_that_fails_without_a_finding_leads_to_a_repair_and_then_to_an_operator() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Hold(3));
    fleet.act(&Act::OrderStatus(3, true));
    fleet.act(&Act::Release(3));
    fail_next_verification(&mut fleet, 3);
    let id = node(3);
    fleet.complete_orders_until(&id, |kind| *kind == OrderKind::Reboot);
    fail_next_verification(&mut fleet, 3);
    for _ in 0..20 {
        fleet.complete_all_orders();
        fleet.act(&Act::Wait(300));
    }
    assert_eq!((phase(&fleet, 3), order(&fleet, 3)), (NodePhase::Repairing, None));
    let why = deferred(&fleet, 3);
    assert!(why.starts_with("verification V0 (coherence) failed: no: "), "{why}");
    assert!(why.contains("an operator repairs the node and reports it"), "{why}");
    let orders = fleet
        .log
        .iter()
        .filter(|entry| matches!(&entry.event, Event::OrderIssued { order } if order.node == id));
    assert!(orders.count() < 15, "orders must not repeat endlessly");
    fleet.act(&Act::Repaired(3));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, 3), NodePhase::InService);
}

#[test]
fn a_joining_node_that_fails_verification_is_verified_again() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Retire(2));
    fleet.act(&Act::Enrol(2));
    fleet.act(&Act::Boot(2));
    fail_next_verification(&mut fleet, 2);
    assert_eq!((phase(&fleet, 2), order(&fleet, 2)), (NodePhase::Joining, None));
    let why = deferred(&fleet, 2);
    assert!(
        why.starts_with("verification V0 (coherence) failed: no; until the next attempt, at "),
        "{why}"
    );
    for _ in 0..8 {
        fleet.act(&Act::Wait(3840));
        fail_next_verification(&mut fleet, 2);
    }
    fleet.act(&Act::Wait(3840));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, 2), NodePhase::InService);
}

#[test]
fn a_faulty_joining_node_is_quarantined_only_as_budget_and_pool_allow() {
    for autonomy in [Autonomy::Repair, Autonomy::Observe] {
        let mut fleet = fleet_in_service();
        // One node, a tenth of the fleet, may be out of service.
        let mut policy = Policy::default();
        policy.pools_default.autonomy = autonomy;
        fleet.set_policy(policy);
        for index in 0..NODES {
            fleet.act(&Act::Retire(index));
        }
        for index in 0..NODES {
            fleet.act(&Act::Enrol(index));
            fleet.act(&Act::Boot(index));
        }
        for index in 0..NODES {
            fleet.act(&reboot(index));
        }
        let out = fleet.state.nodes.values().filter(|node| node.phase() == NodePhase::Quarantined);
        assert_eq!(out.count(), usize::from(autonomy == Autonomy::Repair), "{autonomy:?}");
        let expected_text = if autonomy == Autonomy::Observe { "only observes" } else { "used up" };
        assert!(
            deferred(&fleet, NODES - 1).contains(expected_text),
            "{}",
            deferred(&fleet, NODES - 1)
        );
    }
}

#[test]
fn nodes_with_different_clocks_share_a_domain_fault() {
    let mut fleet = fleet_in_service();
    let hours = [-2, -1, 1, 2].map(SignedDuration::from_hours);
    for (index, apart) in hours.into_iter().enumerate() {
        let at = fleet.now + apart;
        let down = finding(1, Severity::Critical, Action::Investigate, "nic.down", at);
        fleet.report_finding(index, down);
    }
    let domain_faults: Vec<String> =
        fleet.state.domain_faults.keys().map(ToString::to_string).collect();
    assert_eq!(domain_faults, ["rack r0"]);
    // Three of the four nodes recover. The remaining finding is then a fault of its own node.
    for index in 0..3 {
        fleet.act(&Act::Clear(index, 1));
    }
    assert!(fleet.state.domain_faults.is_empty());
    fleet.act(&Act::Wait(180));
    assert_eq!(phase(&fleet, 3), NodePhase::Quarantined);
}

#[test]
fn a_domain_fault_clears_when_the_domain_has_no_nodes() {
    let mut fleet = fleet_in_service();
    fleet.ports_down(0..4);
    assert_eq!(fleet.state.domain_faults.len(), 1);
    for index in 0..4 {
        fleet.act(&Act::Retire(index));
    }
    assert!(fleet.state.domain_faults.is_empty());
}

#[test]
fn a_new_policy_applies_to_nodes_that_already_wait() {
    let mut fleet = fleet_in_service();
    let warning = Act::Fault(5, 1, Severity::Warning, Action::ResetGpu, 0);
    fleet.act(&warning);
    assert_eq!(phase(&fleet, 5), NodePhase::Suspect);
    let mut policy = fleet.state.policy.clone();
    policy.pools_default.suspect_timeout_s = 60;
    fleet.set_policy(policy);
    fleet.act(&Act::Wait(60));
    assert_eq!(phase(&fleet, 5), NodePhase::Quarantined);
}

#[test]
fn an_unreachable_node_is_cordoned_when_its_heartbeat_returns() {
    let mut fleet = fleet_in_service();
    fleet.act(&reboot(5));
    assert_eq!(order(&fleet, 5), Some(OrderKind::Cordon));
    for _ in 0..10 {
        fleet.act(&Act::Wait(2000));
    }
    assert!(
        fleet.state.nodes[&node(5)].orders.failures().unwrap().count.get() >= 3,
        "the node reports no order status"
    );
    fleet.act(&Act::HeartbeatLost(5));
    fleet.act(&Act::HeartbeatRestored(5));
    assert_eq!(order(&fleet, 5), Some(OrderKind::Cordon));
}

#[test]
fn a_manually_repaired_node_is_verified_in_every_phase() {
    let mut fleet = fleet_in_service();
    fleet.act(&reboot(5));
    assert_eq!(phase(&fleet, 5), NodePhase::Quarantined);
    fleet.act(&Act::Clear(5, 1));
    fleet.act(&reboot(5));
    fleet.act(&Act::Repaired(5));
    assert_eq!(phase(&fleet, 5), NodePhase::Verifying, "nothing is rebooted");
}

#[test]
fn a_hold_or_a_freeze_cancels_orders_that_were_not_accepted() {
    for by_freeze in [true, false] {
        let mut fleet = fleet_in_service();
        fleet.act(&reboot(4));
        for _ in 0..2 {
            fleet.act(&Act::OrderStatus(4, true));
        }
        assert_eq!(order(&fleet, 4), Some(OrderKind::Reboot));
        if by_freeze {
            let until = fleet.now + SignedDuration::from_hours(1);
            let reason = "launch".to_owned();
            fleet.request(OperatorRequest::Freeze { domain: Domain::Fleet, until, reason });
        } else {
            fleet.act(&Act::Hold(4));
        }
        assert_eq!(order(&fleet, 4), None, "by freeze: {by_freeze}");
    }
}

#[test]
fn a_node_in_service_is_verified_on_request() {
    let mut fleet = fleet_in_service();
    let request_verification = |fleet: &mut TestFleet| {
        fleet.request(OperatorRequest::Verify { node: node(1), level: VerificationLevel::V1 });
    };
    request_verification(&mut fleet);
    assert_eq!(order(&fleet, 1), Some(OrderKind::Verify { level: VerificationLevel::V1 }));
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&fleet, 1), order(&fleet, 1)), (NodePhase::InService, None));
    request_verification(&mut fleet);
    fleet.act(&Act::OrderStatus(1, false));
    assert_eq!(phase(&fleet, 1), NodePhase::Quarantined);
}

#[test]
fn an_operator_requested_order_runs_once_and_its_result_is_stored() {
    let tune = OrderKind::Tune { profile: "training".to_owned() };
    let diag = OrderKind::Diag { level: 3, minutes: 10 };
    let last_result =
        |fleet: &TestFleet| fleet.state.nodes[&node(1)].requests.results.last().cloned().unwrap();
    let is_done = |status: &OrderStatus| matches!(status, OrderStatus::Done { .. });
    let mut fleet = fleet_in_service();
    // A held node is cordoned by Farrier first.
    fleet.act(&Act::Hold(1));
    request_order(&mut fleet, 1, &tune);
    assert_eq!(order(&fleet, 1), Some(OrderKind::Cordon));
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&fleet, 1), Some(tune.clone()));
    let issued = fleet.state.nodes[&node(1)].orders.pending().cloned().unwrap().order;
    assert_eq!(issued.reason.to_string(), "requested by ann");
    assert!(issued.boot.is_some(), "a change is valid only in the current boot");
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&fleet, 1), None, "the order is not issued again");
    assert!(is_done(&last_result(&fleet).status) && last_result(&fleet).order == tune);
    // A change waits for the end of a freeze. A diagnostic changes nothing and does not wait. Its
    // lease covers its duration.
    fleet.act(&Act::Freeze(1000));
    request_order(&mut fleet, 1, &tune);
    assert_eq!(order(&fleet, 1), None);
    let why = fleet.state.nodes[&node(1)].phase.deferred().cloned().unwrap();
    assert!(why.reason.to_string().contains("frozen by ann"), "{why:?}");
    request_order(&mut fleet, 1, &diag);
    let issued = fleet.state.nodes[&node(1)].orders.pending().cloned().unwrap().order;
    assert_eq!(
        (&issued.kind, issued.lease_until >= fleet.now + SignedDuration::from_secs(600)),
        (&diag, true)
    );
    // A held node stays held whatever the result, and a failed diagnostic is not retried.
    fleet.act(&Act::OrderStatus(1, false));
    assert_eq!((phase(&fleet, 1), order(&fleet, 1)), (NodePhase::Held, None));
    assert!(!is_done(&last_result(&fleet).status));
    assert_eq!(
        fleet.state.nodes[&node(1)].requests.results.len(),
        2,
        "the last result of each kind is stored"
    );
    // The failed level must pass before the node returns to service, although the pool does not
    // require this level.
    fleet.act(&Act::Release(1));
    for level in [VerificationLevel::V0, VerificationLevel::V1, VerificationLevel::V3] {
        assert_eq!(order(&fleet, 1), Some(OrderKind::Verify { level }));
        fleet.act(&Act::OrderStatus(1, level != VerificationLevel::V3));
    }
    assert!(!phase(&fleet, 1).in_service());
    fleet.request(OperatorRequest::Repaired { node: node(1), repair: "a new board".to_owned() });
    let is_v3 = |kind: &OrderKind| *kind == OrderKind::Verify { level: VerificationLevel::V3 };
    fleet.complete_orders_until(&node(1), is_v3);
    assert_eq!(
        order(&fleet, 1),
        Some(OrderKind::Uncordon),
        "the uncordon comes only after verification"
    );
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, 1), NodePhase::InService);
    fleet.act(&Act::Wait(1001));
    // Another request does not replace the running order.
    fleet.act(&Act::Hold(3));
    fleet.act(&Act::OrderStatus(3, true));
    request_order(&mut fleet, 3, &diag);
    request_order(&mut fleet, 3, &tune);
    assert_eq!(order(&fleet, 3), Some(diag.clone()));
    fleet.act(&Act::OrderStatus(3, false));
    let other = &fleet.state.nodes[&node(3)];
    assert!(
        other
            .requests
            .results
            .iter()
            .any(|result| result.order == diag && !is_done(&result.status))
    );
    assert_eq!(order(&fleet, 3), Some(tune));
    // A diagnostic does not run on a node in service.
    request_order(&mut fleet, 2, &diag);
    assert_eq!(order(&fleet, 2), None);
    let why = fleet.state.nodes[&node(2)].phase.deferred().cloned().unwrap();
    assert!(why.unblocked_by.to_string().contains("farrier fleet cordon"), "{why:?}");
}

#[test]
fn logs_are_collected_under_work_and_never_delay_a_cordon() {
    let logs = OrderKind::CollectLogs;
    let mut fleet = fleet_in_service();
    request_order(&mut fleet, 1, &logs);
    assert_eq!((phase(&fleet, 1), order(&fleet, 1)), (NodePhase::InService, Some(logs.clone())));
    // A fatal finding quarantines the node, and the cordon does not wait for the logs.
    fleet.act(&Act::Fault(1, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&fleet, 1), NodePhase::Quarantined);
    assert_eq!(order(&fleet, 1), Some(OrderKind::Cordon));
    let cancelled = fleet.log.iter().find_map(|entry| match &entry.event {
        Event::OrderCancelled { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(cancelled, Some(Reason::OrderSuperseded { by: OrderKind::Cordon }));
    // The request for logs remains, and runs before the drain.
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&fleet, 1), Some(logs.clone()));
    fleet.act(&Act::OrderStatus(1, true));
    assert!(matches!(order(&fleet, 1), Some(OrderKind::Drain { .. })));
    // A new request does not wait for a running drain, which may last for hours. The drain is
    // ordered again afterwards.
    request_order(&mut fleet, 1, &logs);
    assert_eq!(order(&fleet, 1), Some(logs.clone()));
    fleet.act(&Act::OrderStatus(1, true));
    assert!(matches!(order(&fleet, 1), Some(OrderKind::Drain { .. })));
    assert!(
        fleet.state.nodes[&node(1)].orders.failures().is_none(),
        "a superseded order is not a failure"
    );
    let results = &fleet.state.nodes[&node(1)].requests.results;
    assert_eq!(results.iter().map(|result| result.order.clone()).collect::<Vec<_>>(), [logs]);
}

/// In a large incident, operators request the logs of nodes that the budget keeps in service.
#[test]
fn a_node_that_the_budget_keeps_in_service_has_its_logs_collected_and_its_leases_end() {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    fleet.set_policy(zero_budget());
    fleet.act(&reboot(1));
    let waits = deferred(&fleet, 1);
    assert!(phase(&fleet, 1).in_service() && !waits.is_empty(), "{waits}");
    request_order(&mut fleet, 1, &OrderKind::CollectLogs);
    assert_eq!(order(&fleet, 1), Some(OrderKind::CollectLogs));
    assert_eq!(deferred(&fleet, 1), waits, "the deferral is still recorded");
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&fleet, 1), None);
    // Orders that need an idle node do not run while the node is in service.
    request_order(&mut fleet, 1, &OrderKind::Diag { level: 2, minutes: 0 });
    assert_eq!((order(&fleet, 1), deferred(&fleet, 1)), (None, waits.clone()));
    request_order(&mut fleet, 1, &OrderKind::CollectLogs);
    let lease_until = fleet.state.nodes[&node(1)].orders.pending().unwrap().order.lease_until;
    let left_s = lease_until.duration_since(fleet.now).as_secs();
    fleet.act(&Act::Wait(u32::try_from(left_s).unwrap() + 1));
    assert_eq!((order(&fleet, 1), deferred(&fleet, 1)), (None, waits));
    let result = fleet.state.nodes[&node(1)].requests.results.last().cloned().unwrap();
    assert!(matches!(result.cancelled, Some(Reason::OrderExpired { .. })), "{result:?}");
    fleet.replay();
}

/// A policy under which no node may be taken out of service.
fn zero_budget() -> Policy {
    let none =
        [(DomainKind::Fleet, DisruptionBudget { share: 0.0, nodes: Some(0), allow_min_one: None })];
    Policy { disruption_budgets: none.into(), ..Policy::default() }
}

#[test]
fn a_joining_node_that_the_budget_keeps_from_quarantine_is_cordoned_and_sends_logs() {
    let mut fleet = TestFleet::new();
    let mut policy = zero_budget();
    policy.pools_default.cordon_joining = true;
    fleet.set_policy(policy);
    fleet.act(&reboot(1));
    // The verification that was ordered before the fault passes.
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&fleet, 1), order(&fleet, 1)), (NodePhase::Joining, Some(OrderKind::Cordon)));
    request_order(&mut fleet, 1, &OrderKind::CollectLogs);
    assert_eq!(order(&fleet, 1), Some(OrderKind::Cordon), "the cordon comes first");
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&fleet, 1), Some(OrderKind::CollectLogs));
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&fleet, 1), order(&fleet, 1)), (NodePhase::Joining, None));
    assert!(!deferred(&fleet, 1).is_empty());
    fleet.replay();
}

#[test]
fn a_suspect_node_that_the_budget_keeps_in_service_is_verified_on_request() {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    fleet.set_policy(zero_budget());
    fleet.act(&reboot(1));
    assert_eq!((phase(&fleet, 1), order(&fleet, 1)), (NodePhase::Suspect, None));
    let level = VerificationLevel::V1;
    fleet.request(OperatorRequest::Verify { node: node(1), level });
    assert_eq!(order(&fleet, 1), Some(OrderKind::Verify { level }));
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!((phase(&fleet, 1), order(&fleet, 1)), (NodePhase::Suspect, None));
    fleet.replay();
}

fn request_order(fleet: &mut TestFleet, index: usize, order: &OrderKind) {
    fleet.request(OperatorRequest::RunOrder { node: node(index), order: order.clone() });
}

#[test]
fn an_expired_freeze_is_removed() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Freeze(100));
    assert_eq!(fleet.state.freezes.len(), 1);
    fleet.act(&Act::Wait(101));
    assert!(fleet.state.freezes.is_empty());
    fleet.batch(vec![(Actor::Server, Event::Tick)]);
}

/// If Farrier's cordon is removed while the drain runs, new work may have started.
#[test]
fn a_drain_that_ends_without_a_cordon_does_not_count() {
    let mut fleet = fleet_in_service();
    let diag = OrderKind::Diag { level: 1, minutes: 0 };
    let is_drain = |fleet: &TestFleet| matches!(order(fleet, 1), Some(OrderKind::Drain { .. }));
    fleet.act(&Act::Fault(1, 1, Severity::Fatal, Action::Investigate, 0));
    fleet.act(&Act::OrderStatus(1, true));
    assert!(is_drain(&fleet));
    request_order(&mut fleet, 1, &diag);
    let gone = Event::CordonObserved { node: node(1), cordon: Cordon::None };
    fleet.batch(vec![(Actor::Server, gone)]);
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&fleet, 1), Some(OrderKind::Cordon), "not the requested diagnostic");
    fleet.act(&Act::OrderStatus(1, true));
    assert!(is_drain(&fleet));
    fleet.act(&Act::OrderStatus(1, true));
    assert_eq!(order(&fleet, 1), Some(diag));
    fleet.replay();
}
