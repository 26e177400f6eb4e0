//! Time that is not what it seems: clocks that are stepped, and a server that was paused.

use farrier_fleet::fleet::event::{Cordon, OperatorRequest};
use farrier_fleet::fleet::{Domain, Event, NodePhase, OrderKind};
use farrier_fleet::health::{Action, Severity};
use jiff::SignedDuration;

use crate::world::{Act, World, node};

const TEN_DAYS_S: i32 = 10 * 24 * 3600;

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

fn freeze_for_2h(world: &mut World) {
    let until = world.now + SignedDuration::from_hours(2);
    let reason = "launch".to_owned();
    world.ask(OperatorRequest::Freeze { domain: Domain::Fleet, until, reason });
}

/// Orders of the node that are done until it waits.
fn orders_done(world: &mut World, index: usize) -> Vec<OrderKind> {
    let mut done = Vec::new();
    while let Some(what) = order(world, index) {
        done.push(what);
        world.act(&Act::OrderStatus(index, true));
    }
    done
}

#[test]
fn a_freeze_holds_while_the_clock_is_stepped() {
    for step_s in [TEN_DAYS_S, -TEN_DAYS_S] {
        let mut world = in_service();
        freeze_for_2h(&mut world);
        world.act(&Act::ClockStep(step_s));
        world.act(&Act::Wait(3600));
        world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
        let done = orders_done(&mut world, 3);
        assert!(
            !done.contains(&OrderKind::Reboot),
            "rebooted in a freeze after {step_s} s: {done:?}"
        );
        world.replay();
    }
}

#[test]
fn a_freeze_that_was_asked_for_by_a_wrong_clock_lasts_as_long_as_it_was_asked_for() {
    let mut world = in_service();
    world.act(&Act::ClockStep(TEN_DAYS_S));
    freeze_for_2h(&mut world);
    world.act(&Act::ClockStep(-TEN_DAYS_S));
    let left = |world: &World| world.state.freezes[&Domain::Fleet].until.duration_since(world.now);
    assert_eq!(left(&world), SignedDuration::from_hours(2));
    world.act(&Act::Wait(2 * 3600));
    assert!(world.state.freezes.is_empty());
    world.replay();
}

#[test]
fn no_order_expires_by_a_step_and_none_lasts_for_days() {
    for step_s in [TEN_DAYS_S, -TEN_DAYS_S] {
        let mut world = in_service();
        world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
        assert_eq!(order(&world, 3), Some(OrderKind::Cordon));
        world.act(&Act::ClockStep(step_s));
        assert_eq!(order(&world, 3), Some(OrderKind::Cordon), "after {step_s} s");
        world.act(&Act::Wait(599));
        assert_eq!(order(&world, 3), Some(OrderKind::Cordon), "after {step_s} s and 599 s");
        world.act(&Act::Wait(2));
        let withdrawn = |it: &Event| matches!(it, Event::OrderCancelled { .. });
        assert!(world.log.iter().any(|it| withdrawn(&it.event)), "it waits for days: {step_s} s");
        world.replay();
    }
}

#[test]
fn a_heartbeat_timeout_counts_only_time_in_which_the_server_ran() {
    let mut world = in_service();
    world.act(&Act::Silent(3));
    assert_eq!(phase(&world, 3), NodePhase::Suspect);
    world.act(&Act::Wait(100));
    world.act(&Act::Pause(320));
    world.act(&Act::Wait(1));
    assert_eq!(phase(&world, 3), NodePhase::Suspect, "a pause is no heartbeat that was missed");
    world.act(&Act::Wait(198));
    assert_eq!(phase(&world, 3), NodePhase::Suspect);
    world.act(&Act::Wait(1));
    assert_eq!(phase(&world, 3), NodePhase::Quarantined, "300 s without the pause");
    world.replay();
}

#[test]
fn an_order_does_not_expire_while_the_server_is_paused() {
    let mut world = in_service();
    world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    world.act(&Act::Pause(3600));
    world.act(&Act::Wait(1));
    assert_eq!(order(&world, 3), Some(OrderKind::Cordon));
    assert!(!world.log.iter().any(|it| matches!(it.event, Event::OrderCancelled { .. })));
    world.replay();
}

#[test]
fn a_node_that_another_owner_releases_is_cordoned_before_it_is_verified() {
    let mut world = in_service();
    world.act(&Act::Theirs(3));
    world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    assert_eq!(phase(&world, 3), NodePhase::Held);
    world.act(&Act::TheirsGone(3));
    assert_eq!(world.state.nodes[&node(3)].scheduling.cordon(), Cordon::None);
    assert_eq!(
        order(&world, 3),
        Some(OrderKind::Cordon),
        "it takes work, and has an open fatal finding"
    );
    world.act(&Act::Clear(3, 1));
    let done = orders_done(&mut world, 3);
    assert_eq!(done.last(), Some(&OrderKind::Uncordon), "{done:?}");
    assert_eq!(phase(&world, 3), NodePhase::InService);
    world.replay();
}

#[test]
fn a_pool_may_have_its_nodes_cordoned_until_they_are_verified() {
    let mut world = World::new();
    world.everybody_answers();
    let mut policy = world.state.policy.clone();
    policy.pools_default.cordon_joining = true;
    world.set_policy(policy);
    world.act(&Act::Retire(3));
    world.act(&Act::Enrol(3));
    world.act(&Act::Boot(3));
    assert_eq!(order(&world, 3), Some(OrderKind::Cordon));
    let done = orders_done(&mut world, 3);
    assert_eq!((done.first(), done.last()), (Some(&OrderKind::Cordon), Some(&OrderKind::Uncordon)));
    assert_eq!(phase(&world, 3), NodePhase::InService);
    world.replay();
}

#[test]
fn a_clock_that_was_wrong_for_a_while_delays_no_timeout_by_days() {
    // Stepped forward and back while the server runs, and by a start with a clock that is ahead.
    for begin in [Act::ClockStep(TEN_DAYS_S), Act::Pause(TEN_DAYS_S.unsigned_abs())] {
        let mut world = in_service();
        world.act(&Act::Silent(3));
        world.act(&begin);
        world.act(&Act::ClockStep(-TEN_DAYS_S));
        world.act(&Act::Wait(301));
        assert_eq!(phase(&world, 3), NodePhase::Quarantined, "after {begin:?}");
        world.replay();
    }
}

#[test]
fn a_clock_that_flaps_keeps_no_timer_from_ending() {
    let mut world = in_service();
    world.act(&Act::Silent(3));
    for _ in 0..120 {
        world.act(&Act::ClockStep(3));
        world.act(&Act::Wait(3));
        world.act(&Act::ClockStep(-3));
    }
    assert_eq!(phase(&world, 3), NodePhase::Quarantined);
    world.replay();
}

#[test]
fn a_silent_node_has_time_to_connect_after_a_pause() {
    let mut world = in_service();
    world.act(&Act::Silent(3));
    world.act(&Act::Wait(299));
    world.act(&Act::Pause(3600));
    world.act(&Act::Wait(99));
    assert_eq!(phase(&world, 3), NodePhase::Suspect);
    world.act(&Act::Wait(2));
    assert_eq!(phase(&world, 3), NodePhase::Quarantined);
    world.replay();
}

#[test]
fn a_controller_that_stops_again_and_again_still_finds_a_dead_node() {
    let mut world = in_service();
    world.act(&Act::Silent(3));
    let cycles = (1..=20).find(|_| {
        world.act(&Act::Wait(60));
        world.act(&Act::Pause(110));
        phase(&world, 3) == NodePhase::Quarantined
    });
    assert!(cycles.is_some_and(|it| it > 4), "{cycles:?}");
    world.replay();
}

#[test]
fn time_that_did_not_count_before_a_silence_does_not_lengthen_it() {
    let mut world = in_service();
    world.act(&Act::Fault(3, 1, Severity::Warning, Action::ResetGpu, 0));
    assert_eq!(phase(&world, 3), NodePhase::Suspect);
    world.act(&Act::Pause(3600));
    world.act(&Act::Silent(3));
    world.act(&Act::Wait(299));
    assert_eq!(phase(&world, 3), NodePhase::Suspect);
    world.act(&Act::Wait(2));
    assert_eq!(phase(&world, 3), NodePhase::Quarantined);
    world.replay();
}

#[test]
fn a_small_step_back_ends_no_timer() {
    let mut world = in_service();
    world.act(&Act::Fault(3, 1, Severity::Warning, Action::ResetGpu, 0));
    world.act(&Act::Pause(3600));
    world.act(&Act::Silent(3));
    world.act(&Act::ClockStep(-3));
    world.act(&Act::Wait(1));
    assert_eq!(phase(&world, 3), NodePhase::Suspect, "of 900 s one has passed");
    world.replay();
}

#[test]
fn a_cordon_is_tried_until_it_succeeds_and_so_is_an_uncordon() {
    let mut world = in_service();
    world.act(&Act::Fault(3, 1, Severity::Fatal, Action::RebootNode, 0));
    let fails_and_is_tried_again = |world: &mut World, what: OrderKind| {
        for times in 0..10 {
            assert_eq!(order(world, 3), Some(what.clone()), "after {times} failures");
            world.act(&Act::OrderStatus(3, false));
            let why = world.state.nodes[&node(3)].phase.deferred().cloned();
            assert_eq!(
                why.is_some_and(|it| it.unblocked_by.changes_at().is_some()),
                times >= 2,
                "{times}"
            );
            world.act(&Act::Wait(24 * 3600));
        }
    };
    fails_and_is_tried_again(&mut world, OrderKind::Cordon);
    world.act(&Act::OrderStatus(3, true));
    world.act(&Act::Clear(3, 1));
    while order(&world, 3).is_some_and(|it| it != OrderKind::Uncordon) {
        world.act(&Act::OrderStatus(3, true));
    }
    fails_and_is_tried_again(&mut world, OrderKind::Uncordon);
    world.act(&Act::OrderStatus(3, true));
    assert_eq!(phase(&world, 3), NodePhase::InService);
    world.replay();
}
