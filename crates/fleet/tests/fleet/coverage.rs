//! Coverage gaps: a lasting one makes a node suspect, and a verification that could not read
//! something is repeated when the reading returns.

use farrier_fleet::fleet::policy::PoolPolicy;
use farrier_fleet::fleet::{
    Domain, NodeId, NodePhase, OrderKind, Policy, Reason, UnblockedBy, VerificationLevel, explain,
};
use farrier_fleet::health::{Action, Severity};

use crate::test_fleet::{Act, TestFleet, node};

const V1: OrderKind = OrderKind::Verify { level: VerificationLevel::V1 };

fn fleet_in_service() -> TestFleet {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    assert!(fleet.state.nodes.values().all(|node| node.phase() == NodePhase::InService));
    fleet
}

/// A fleet whose policy quarantines nodes with a lasting gap.
fn strict_fleet() -> TestFleet {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::GapPolicy(Some(900), true));
    fleet
}

fn phase(fleet: &TestFleet, id: &NodeId) -> NodePhase {
    fleet.state.nodes[id].phase()
}

fn order(fleet: &TestFleet, id: &NodeId) -> Option<OrderKind> {
    fleet.state.nodes[id].orders.pending().map(|pending| pending.order.kind.clone())
}

fn reason(fleet: &TestFleet, id: &NodeId) -> Reason {
    fleet.state.nodes[id].phase.rationale().reason.clone()
}

#[test]
fn a_lasting_gap_makes_a_node_suspect_until_the_reading_returns() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Gaps(3, 0b11, 0));
    fleet.act(&Act::Wait(899));
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.act(&Act::Wait(1));
    let rationale = fleet.state.nodes[&id].phase.rationale().clone();
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    assert!(matches!(rationale.reason, Reason::CoverageGap { more: 1, .. }), "{rationale:?}");
    assert_eq!(rationale.unblocked_by, UnblockedBy::Coverage { retry_at: None });
    let text = rationale.reason.to_string();
    assert_eq!(
        text,
        "GPU-0: gpu.power_w cannot be read (NVML_ERROR_UNKNOWN) since 2026-11-15T00:00:00Z, and 1 more coverage gaps"
    );
    fleet.act(&Act::Gaps(3, 0, 0));
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_gap_that_the_server_learns_of_late_has_lasted_already() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Gaps(3, 1, 900));
    assert_eq!(phase(&fleet, &node(3)), NodePhase::Suspect);
}

#[test]
fn a_gap_alone_never_leads_to_a_quarantine_unless_the_policy_says_so() {
    let mut fleet = fleet_in_service();
    for index in 0..4 {
        fleet.act(&Act::Gaps(index, 1, 900));
    }
    for _ in 0..20 {
        fleet.act(&Act::Wait(3600));
    }
    for index in 0..4 {
        assert_eq!(phase(&fleet, &node(index)), NodePhase::Suspect);
        assert_eq!(order(&fleet, &node(index)), None);
    }
    assert_eq!(fleet.state.domain_counts[&Domain::Fleet].disrupted, 0, "no slot of a budget");
    let due = fleet.state.deadlines.iter().filter(|(at, _)| *at <= fleet.now).count();
    assert_eq!(due, 0, "nothing to decide at every tick");
    fleet.replay();
}

#[test]
fn a_policy_may_quarantine_a_node_with_a_lasting_gap() {
    let mut fleet = strict_fleet();
    let id = node(0);
    fleet.act(&Act::Gaps(0, 1, 900));
    fleet.act(&Act::Gaps(2, 1, 900));
    let rationale = fleet.state.nodes[&id].phase.rationale();
    assert_eq!(rationale.unblocked_by, UnblockedBy::ConditionChange);
    fleet.act(&Act::Wait(899));
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    fleet.act(&Act::Wait(1));
    assert_eq!(phase(&fleet, &id), NodePhase::Quarantined);
    // One node of twelve uses up the budgets, as for a fault.
    assert_eq!(phase(&fleet, &node(2)), NodePhase::Suspect);
    let deferred = fleet.state.nodes[&node(2)].phase.deferred().unwrap();
    assert!(matches!(deferred.reason, Reason::DisruptionBudget { .. }), "{deferred:?}");
    // The node is drained, and then waits for the reading or a repair.
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::Repairing);
    let deferred = fleet.state.nodes[&id].phase.deferred().unwrap();
    assert_eq!(deferred.unblocked_by, UnblockedBy::Coverage { retry_at: None });
    fleet.act(&Act::Gaps(0, 0, 0));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_fault_after_a_gap_gets_its_own_suspect_timeout() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Gaps(3, 1, 900));
    fleet.act(&Act::Wait(5000));
    fleet.act(&Act::Fault(3, 1, Severity::Warning, Action::ResetGpu, 0));
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    assert!(matches!(reason(&fleet, &id), Reason::OpenFindings { .. }));
    fleet.act(&Act::Wait(899));
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    // The fault clears, and the gap remains.
    fleet.act(&Act::Clear(3, 1));
    assert!(matches!(reason(&fleet, &id), Reason::CoverageGap { .. }));
    fleet.act(&Act::Wait(5000));
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    fleet.act(&Act::Fault(3, 1, Severity::Warning, Action::ResetGpu, 0));
    fleet.act(&Act::Wait(900));
    assert_eq!(phase(&fleet, &id), NodePhase::Quarantined);
    fleet.replay();
}

#[test]
fn a_critical_fault_quarantines_a_node_that_is_suspect_because_of_a_gap() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Gaps(3, 1, 900));
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::ResetGpu, 0));
    assert_eq!(phase(&fleet, &node(3)), NodePhase::Quarantined);
    let changes = fleet.log.iter().filter(|entry| entry.batch == fleet.log.last().unwrap().batch);
    assert_eq!(changes.count(), 3, "the finding, the quarantine and the cordon");
}

#[test]
fn time_in_which_the_controller_did_not_run_does_not_count() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Gaps(3, 1, 0));
    fleet.act(&Act::Pause(2000));
    fleet.act(&Act::Wait(899));
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.act(&Act::ClockStep(2000));
    fleet.act(&Act::ClockStep(-2000));
    fleet.act(&Act::Wait(1));
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    fleet.replay();
}

#[test]
fn without_a_timeout_or_a_report_a_node_stays_in_service() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Gaps(3, 1, 900));
    assert_eq!(phase(&fleet, &node(3)), NodePhase::Suspect);
    let pool = PoolPolicy { coverage_gap_timeout_s: None, ..PoolPolicy::default() };
    fleet.set_policy(Policy { pools_default: pool, ..Policy::default() });
    fleet.act(&Act::Wait(100_000));
    assert_eq!(phase(&fleet, &node(3)), NodePhase::InService);
    assert_eq!(fleet.state.nodes[&node(3)].coverage().count(), Some(1));
    assert_eq!(fleet.state.nodes[&node(4)].coverage().count(), None, "an older agent");
    assert_eq!(phase(&fleet, &node(4)), NodePhase::InService);
}

/// An operator verifies a node in service whose reading fails.
#[test]
fn a_verification_without_a_result_is_repeated_when_the_reading_returns() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Gaps(3, 1, 0));
    fleet.act(&Act::Verify(3));
    assert_eq!(order(&fleet, &id), Some(V1));
    fleet.act(&Act::Inconclusive(3));
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    assert!(matches!(reason(&fleet, &id), Reason::VerificationInconclusive { .. }));
    // It is repeated with increasing back-off, and never leads to a quarantine.
    for _ in 0..30 {
        fleet.act(&Act::Inconclusive(3));
        fleet.act(&Act::Wait(600));
    }
    assert_eq!(phase(&fleet, &id), NodePhase::Suspect);
    fleet.act(&Act::Inconclusive(3));
    assert_eq!(order(&fleet, &id), None);
    let explained = explain::explain(&fleet.state, &id, &Domain::Fleet).unwrap();
    let deferred = explained.deferred.unwrap();
    assert!(matches!(deferred.unblocked_by, UnblockedBy::Coverage { retry_at: Some(_) }));
    fleet.act(&Act::Gaps(3, 0, 0));
    assert_eq!(order(&fleet, &id), Some(V1), "the back-off ends with the gap");
    fleet.act(&Act::OrderStatus(3, true));
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_node_out_of_service_is_verified_again_when_the_reading_returns() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::ResetGpu, 0));
    fleet.act(&Act::Gaps(3, 1, 5000));
    fleet.act(&Act::Clear(3, 1));
    assert_eq!(phase(&fleet, &id), NodePhase::Verifying, "a gap does not keep it from V1");
    fleet.complete_orders_until(&id, |kind| {
        *kind == OrderKind::Verify { level: VerificationLevel::V0 }
    });
    assert_eq!(order(&fleet, &id), Some(V1));
    fleet.act(&Act::Inconclusive(3));
    fleet.act(&Act::Wait(30));
    assert_eq!((phase(&fleet, &id), order(&fleet, &id)), (NodePhase::Verifying, None));
    fleet.act(&Act::Wait(30));
    assert_eq!(order(&fleet, &id), Some(V1), "the back-off is over");
    fleet.act(&Act::Inconclusive(3));
    fleet.act(&Act::Gaps(3, 0, 0));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_verified_node_waits_for_a_lasting_gap() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Hold(3));
    fleet.act(&Act::Gaps(3, 1, 900));
    fleet.act(&Act::Release(3));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::Verifying);
    let deferred = fleet.state.nodes[&id].phase.deferred().unwrap();
    assert!(matches!(deferred.reason, Reason::CoverageGap { .. }), "{deferred:?}");
    fleet.act(&Act::Gaps(3, 0, 0));
    fleet.complete_all_orders();
    assert_eq!(phase(&fleet, &id), NodePhase::InService);
}

#[test]
fn a_verification_that_really_failed_is_not_undone_by_a_reading() {
    let mut fleet = fleet_in_service();
    let id = node(3);
    fleet.act(&Act::Gaps(3, 1, 0));
    fleet.act(&Act::Verify(3));
    fleet.act(&Act::Inconclusive(3));
    fleet.act(&Act::OrderStatus(3, false));
    assert_eq!(phase(&fleet, &id), NodePhase::Quarantined);
    fleet.complete_all_orders();
    fleet.act(&Act::Gaps(3, 0, 0));
    fleet.act(&Act::Wait(100_000));
    assert_eq!(phase(&fleet, &id), NodePhase::Repairing);
    let deferred = fleet.state.nodes[&id].phase.deferred().unwrap();
    assert_eq!(deferred.unblocked_by, UnblockedBy::OperatorRepair);
}
