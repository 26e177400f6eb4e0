//! How steps of the wall clock and pauses of the server affect freezes, leases and timeouts.

use farrier_fleet::fleet::event::{Cordon, OperatorRequest};
use farrier_fleet::fleet::{Domain, Event, NodePhase, OrderKind};
use farrier_fleet::health::{Action, Severity};
use jiff::SignedDuration;

use crate::test_fleet::{Act, TestFleet, node};

const TEN_DAYS_S: i32 = 10 * 24 * 3600;

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

fn freeze_for_2h(fleet: &mut TestFleet) {
    let until = fleet.now + SignedDuration::from_hours(2);
    let reason = "launch".to_owned();
    fleet.request(OperatorRequest::Freeze { domain: Domain::Fleet, until, reason });
}

/// Completes orders of the node until none is pending, and returns these orders.
fn complete_orders(fleet: &mut TestFleet, index: usize) -> Vec<OrderKind> {
    let mut done = Vec::new();
    while let Some(kind) = order(fleet, index) {
        done.push(kind);
        fleet.act(&Act::OrderStatus(index, true));
    }
    done
}

#[test]
fn a_freeze_stays_in_effect_while_the_clock_is_stepped() {
    for step_s in [TEN_DAYS_S, -TEN_DAYS_S] {
        let mut fleet = fleet_in_service();
        freeze_for_2h(&mut fleet);
        fleet.act(&Act::ClockStep(step_s));
        fleet.act(&Act::Wait(3600));
        fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
        let done = complete_orders(&mut fleet, 3);
        assert!(
            !done.contains(&OrderKind::Reboot),
            "rebooted in a freeze after a step of {step_s} s: {done:?}"
        );
        fleet.replay();
    }
}

#[test]
fn a_freeze_requested_under_a_wrong_clock_keeps_its_duration() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::ClockStep(TEN_DAYS_S));
    freeze_for_2h(&mut fleet);
    fleet.act(&Act::ClockStep(-TEN_DAYS_S));
    let left =
        |fleet: &TestFleet| fleet.state.freezes[&Domain::Fleet].until.duration_since(fleet.now);
    assert_eq!(left(&fleet), SignedDuration::from_hours(2));
    fleet.act(&Act::Wait(2 * 3600));
    assert!(fleet.state.freezes.is_empty());
    fleet.replay();
}

#[test]
fn a_clock_step_neither_expires_an_order_nor_extends_it_by_days() {
    for step_s in [TEN_DAYS_S, -TEN_DAYS_S] {
        let mut fleet = fleet_in_service();
        fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
        assert_eq!(order(&fleet, 3), Some(OrderKind::Cordon));
        fleet.act(&Act::ClockStep(step_s));
        assert_eq!(order(&fleet, 3), Some(OrderKind::Cordon), "after a step of {step_s} s");
        fleet.act(&Act::Wait(599));
        assert_eq!(order(&fleet, 3), Some(OrderKind::Cordon), "599 s after a step of {step_s} s");
        fleet.act(&Act::Wait(2));
        let is_cancelled = |event: &Event| matches!(event, Event::OrderCancelled { .. });
        assert!(
            fleet.log.iter().any(|entry| is_cancelled(&entry.event)),
            "the order did not expire after a step of {step_s} s"
        );
        fleet.replay();
    }
}

#[test]
fn a_heartbeat_timeout_counts_only_time_in_which_the_server_ran() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::HeartbeatLost(3));
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect);
    fleet.act(&Act::Wait(100));
    fleet.act(&Act::Pause(320));
    fleet.act(&Act::Wait(1));
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect, "a pause does not count as missed heartbeats");
    fleet.act(&Act::Wait(198));
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect);
    fleet.act(&Act::Wait(1));
    assert_eq!(
        phase(&fleet, 3),
        NodePhase::Quarantined,
        "300 s have passed, not counting the pause"
    );
    fleet.replay();
}

#[test]
fn an_order_does_not_expire_while_the_server_is_paused() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    fleet.act(&Act::Pause(3600));
    fleet.act(&Act::Wait(1));
    assert_eq!(order(&fleet, 3), Some(OrderKind::Cordon));
    assert!(!fleet.log.iter().any(|entry| matches!(entry.event, Event::OrderCancelled { .. })));
    fleet.replay();
}

#[test]
fn a_node_that_another_owner_releases_is_cordoned_before_it_is_verified() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::ExternalCordon(3));
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&fleet, 3), NodePhase::Held);
    fleet.act(&Act::ExternalUncordon(3));
    assert_eq!(fleet.state.nodes[&node(3)].scheduling.cordon(), Cordon::None);
    assert_eq!(
        order(&fleet, 3),
        Some(OrderKind::Cordon),
        "without a cordon, the faulty node would take work"
    );
    fleet.act(&Act::Clear(3, 1));
    let done = complete_orders(&mut fleet, 3);
    assert_eq!(done.last(), Some(&OrderKind::Uncordon), "{done:?}");
    assert_eq!(phase(&fleet, 3), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_pool_can_have_joining_nodes_cordoned_until_they_are_verified() {
    let mut fleet = TestFleet::new();
    fleet.complete_all_orders();
    let mut policy = fleet.state.policy.clone();
    policy.pools_default.cordon_joining = true;
    fleet.set_policy(policy);
    fleet.act(&Act::Retire(3));
    fleet.act(&Act::Enrol(3));
    fleet.act(&Act::Boot(3));
    assert_eq!(order(&fleet, 3), Some(OrderKind::Cordon));
    let done = complete_orders(&mut fleet, 3);
    assert_eq!((done.first(), done.last()), (Some(&OrderKind::Cordon), Some(&OrderKind::Uncordon)));
    assert_eq!(phase(&fleet, 3), NodePhase::InService);
    fleet.replay();
}

#[test]
fn a_temporarily_wrong_clock_does_not_delay_timeouts_by_days() {
    // The clock steps forward while the server runs, or is ahead after a pause of the server. Then
    // it steps back.
    for begin in [Act::ClockStep(TEN_DAYS_S), Act::Pause(TEN_DAYS_S.unsigned_abs())] {
        let mut fleet = fleet_in_service();
        fleet.act(&Act::HeartbeatLost(3));
        fleet.act(&begin);
        fleet.act(&Act::ClockStep(-TEN_DAYS_S));
        fleet.act(&Act::Wait(301));
        assert_eq!(phase(&fleet, 3), NodePhase::Quarantined, "after {begin:?}");
        fleet.replay();
    }
}

#[test]
fn a_flapping_clock_does_not_keep_timers_from_expiring() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::HeartbeatLost(3));
    for _ in 0..120 {
        fleet.act(&Act::ClockStep(3));
        fleet.act(&Act::Wait(3));
        fleet.act(&Act::ClockStep(-3));
    }
    assert_eq!(phase(&fleet, 3), NodePhase::Quarantined);
    fleet.replay();
}

#[test]
fn a_node_without_heartbeats_has_time_to_connect_after_a_pause() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::HeartbeatLost(3));
    fleet.act(&Act::Wait(299));
    fleet.act(&Act::Pause(3600));
    fleet.act(&Act::Wait(99));
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect);
    fleet.act(&Act::Wait(2));
    assert_eq!(phase(&fleet, 3), NodePhase::Quarantined);
    fleet.replay();
}

#[test]
fn a_controller_that_pauses_repeatedly_still_detects_a_dead_node() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::HeartbeatLost(3));
    let cycles = (1..=20).find(|_| {
        fleet.act(&Act::Wait(60));
        fleet.act(&Act::Pause(110));
        phase(&fleet, 3) == NodePhase::Quarantined
    });
    assert!(cycles.is_some_and(|cycles| cycles > 4), "{cycles:?}");
    fleet.replay();
}

#[test]
fn uncounted_time_before_a_heartbeat_loss_does_not_extend_its_timeout() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(3, 1, Severity::Warning, Action::ResetGpu, 0));
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect);
    fleet.act(&Act::Pause(3600));
    fleet.act(&Act::HeartbeatLost(3));
    fleet.act(&Act::Wait(299));
    assert_eq!(phase(&fleet, 3), NodePhase::Suspect);
    fleet.act(&Act::Wait(2));
    assert_eq!(phase(&fleet, 3), NodePhase::Quarantined);
    fleet.replay();
}

#[test]
fn a_small_step_back_expires_no_timer() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(3, 1, Severity::Warning, Action::ResetGpu, 0));
    fleet.act(&Act::Pause(3600));
    fleet.act(&Act::HeartbeatLost(3));
    fleet.act(&Act::ClockStep(-3));
    fleet.act(&Act::Wait(1));
    assert_eq!(
        phase(&fleet, 3),
        NodePhase::Suspect,
        "only 1 s of either timeout, 300 s and 900 s, has passed"
    );
    fleet.replay();
}

#[test]
fn a_cordon_is_tried_until_it_succeeds_and_so_is_an_uncordon() {
    let mut fleet = fleet_in_service();
    fleet.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    let fail_ten_times = |fleet: &mut TestFleet, kind: OrderKind| {
        for times in 0..10 {
            assert_eq!(order(fleet, 3), Some(kind.clone()), "after {times} failures");
            fleet.act(&Act::OrderStatus(3, false));
            let deferred = fleet.state.nodes[&node(3)].phase.deferred().cloned();
            assert_eq!(
                deferred.is_some_and(|rationale| rationale.unblocked_by.changes_at().is_some()),
                times >= 2,
                "after {times} earlier failures"
            );
            fleet.act(&Act::Wait(24 * 3600));
        }
    };
    fail_ten_times(&mut fleet, OrderKind::Cordon);
    fleet.act(&Act::OrderStatus(3, true));
    fleet.act(&Act::Clear(3, 1));
    while order(&fleet, 3).is_some_and(|order| order != OrderKind::Uncordon) {
        fleet.act(&Act::OrderStatus(3, true));
    }
    fail_ten_times(&mut fleet, OrderKind::Uncordon);
    fleet.act(&Act::OrderStatus(3, true));
    assert_eq!(phase(&fleet, 3), NodePhase::InService);
    fleet.replay();
}
