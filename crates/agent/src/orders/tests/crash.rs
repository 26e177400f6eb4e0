//! Crashes at every step: an order is still executed once and gets a status.

use farrier_fleet::fleet::order::{OrderKind, OrderStatus, VerificationLevel};

use super::super::OrderExecutor;
use super::world::{UNIT, World, dies, gpu, job};
use crate::failpoint::Point;

fn kinds() -> Vec<OrderKind> {
    vec![
        OrderKind::Cordon,
        OrderKind::Uncordon,
        OrderKind::Drain { wait_s: 30 },
        OrderKind::ResetGpu { gpu: gpu() },
        OrderKind::Reboot,
        OrderKind::RestartService { unit: UNIT.to_owned() },
        OrderKind::Verify { level: VerificationLevel::V1 },
        OrderKind::Diag { level: 2, minutes: 0 },
        OrderKind::Tune { profile: "training".to_owned() },
    ]
}

/// A node on which the order has something to do.
fn world(what: &OrderKind) -> World {
    match what {
        OrderKind::Cordon => World::new(),
        OrderKind::Drain { .. } => {
            let world = World::drained();
            world.state().jobs = vec![job("7"), job("8")];
            world
        }
        _ => World::drained(),
    }
}

/// Submits an order and executes it. Returns false if the agent crashed.
fn lives(desk: Option<OrderExecutor>, world: &World, order: &farrier_fleet::fleet::Order) -> bool {
    let Some(desk) = desk else { return false };
    dies(|| {
        desk.offer(order, world.now());
        desk.step();
    })
    .is_some()
}

#[test]
fn killed_at_every_step_an_order_is_carried_out_once_and_answered() {
    let mut deaths = 0;
    for what in kinds() {
        for point in Point::OF_ORDERS {
            for times in 1.. {
                assert!(times < 50, "{what} never gets past {}", point.name());
                let world = world(&what);
                let order = world.order(5, what.clone());
                let crash = format!("{}:{times}:panic", point.name());
                if lives(world.open(&crash).ok(), &world, &order) {
                    break;
                }
                deaths += 1;
                let at = format!("{what}, {} for the {times}. time", point.name());
                // The server resends the order until it gets a status. A reopened executor may or
                // may not have it.
                let desk = world.desk();
                desk.step();
                let answer = desk.offer(&order, world.now());
                desk.step();
                let told = desk.outstanding();
                let [(5, told)] = &told[..] else { panic!("{at}: {told:?}") };
                assert!(
                    answer == OrderStatus::Accepted || answer == *told,
                    "{at}: {answer:?} {told:?}"
                );
                check(&world, told, &at);
                // The status is resent until acknowledged, and not after that.
                drop(desk);
                let desk = world.desk();
                assert_eq!(desk.outstanding(), [(5, told.clone())], "{at}");
                desk.acknowledged(4);
                assert_eq!(desk.outstanding(), [(5, told.clone())], "{at}");
                desk.acknowledged(5);
                assert_eq!(desk.outstanding(), [], "{at}");
                drop(desk);
                let desk = world.desk();
                assert_eq!(desk.outstanding(), [], "{at}");
                assert_eq!(desk.last_order(), 5, "{at}");
                assert!(!desk.step(), "{at}");
                assert_eq!(desk.offer(&order, world.now()), *told, "{at}");
            }
        }
    }
    assert!(deaths > 100, "{deaths}");
}

/// Invariants of the node and the status, wherever the crash was.
fn check(world: &World, told: &OrderStatus, at: &str) {
    let state = world.state().clone();
    assert_eq!(state.violated, None, "{at}");
    let done = matches!(told, OrderStatus::Done { .. });
    for (name, times) in
        [("resets", state.resets), ("reboots", state.reboots), ("restarts", state.restarts)]
    {
        assert!(times <= 1, "{at}: {times} {name}");
    }
    // Only for a reset it can be unknown whether it happened.
    if !done {
        let unknown = matches!(told, OrderStatus::Failed { reason } if reason.contains("whether it was is not known"));
        assert!(
            at.starts_with("reset") && unknown && state.resets == 0,
            "{at}: {told:?} {state:?}"
        );
        return;
    }
    let made = match at.split([' ', ',']).next().unwrap() {
        "cordon" => state.mark.is_some_and(|(owner, _)| owner == "farrier"),
        "uncordon" => state.mark.is_none(),
        "drain" => state.jobs.is_empty(),
        "reset" => state.resets == 1,
        "reboot" => state.reboots == 1,
        "restart" => state.restarts == 1,
        "verify" | "diag" => true,
        // Settings already in place are not applied again.
        "tune" => (1..=2).contains(&state.tunes),
        other => panic!("{other}"),
    };
    assert!(made, "{at}: {told:?}");
}

#[test]
fn what_still_runs_from_before_is_waited_for() {
    use super::super::task::ALIVE;

    let world = World::drained();
    let order = world.order(5, OrderKind::ResetGpu { gpu: gpu() });
    assert!(!lives(world.open("order-begun:panic").ok(), &world, &order));
    // The process that the agent started outlives it.
    let path = world.folder.path().join(ALIVE);
    let running = std::fs::File::options().append(true).open(path).unwrap();
    running.lock().unwrap();
    world.stand_still();
    let desk = world.desk();
    let carried = {
        let desk = desk.clone();
        std::thread::spawn(move || desk.step())
    };
    world.wait_for_looks();
    assert_eq!(desk.outstanding(), [(5, OrderStatus::Accepted)]);
    // It exits, and has made the change.
    world.state().gpu_wrong.clear();
    drop(running);
    carried.join().unwrap();
    let told = desk.outstanding();
    assert!(
        matches!(&told[..], [(5, OrderStatus::Done { evidence })] if evidence.contains("it answers")),
        "{told:?}"
    );
    assert_eq!(world.state().resets, 0);
}

#[test]
fn a_node_that_got_work_meanwhile_is_left_as_it_is() {
    let unit = UNIT.to_owned();
    for what in [OrderKind::Reboot, OrderKind::RestartService { unit }] {
        let world = World::drained();
        let order = world.order(5, what);
        assert!(!lives(world.open("order-begun:panic").ok(), &world, &order));
        world.state().jobs = vec![job("7")];
        let desk = world.desk();
        desk.step();
        let told = desk.outstanding();
        let [(5, OrderStatus::Failed { reason })] = &told[..] else { panic!("{told:?}") };
        assert_eq!(reason, "the node is not empty: job 7");
        let state = world.state();
        assert_eq!(state.reboots + state.restarts, 0);
    }
}
