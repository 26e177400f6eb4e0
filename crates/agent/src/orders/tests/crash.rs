//! Crashes at every step: an order is still executed once and gets a status.

use farrier_fleet::fleet::order::{OrderKind, OrderStatus, VerificationLevel};

use super::super::OrderExecutor;
use super::test_node::{TestNode, UNIT, catch_crash, gpu, job};
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
fn node_for(kind: &OrderKind) -> TestNode {
    match kind {
        OrderKind::Cordon => TestNode::new(),
        OrderKind::Drain { .. } => {
            let node = TestNode::drained();
            node.state().jobs = vec![job("7"), job("8")];
            node
        }
        _ => TestNode::drained(),
    }
}

/// Submits an order and executes it. Returns false if the agent crashed.
fn survives(
    executor: Option<OrderExecutor>,
    node: &TestNode,
    order: &farrier_fleet::fleet::Order,
) -> bool {
    let Some(executor) = executor else { return false };
    catch_crash(|| {
        executor.submit(order, node.now());
        executor.step();
    })
    .is_some()
}

#[test]
fn an_order_survives_a_crash_at_every_step_and_runs_once() {
    let mut crashes = 0;
    for kind in kinds() {
        for point in Point::ORDER_POINTS {
            for times in 1.. {
                assert!(times < 50, "{kind} never gets past {}", point.name());
                let node = node_for(&kind);
                let order = node.order(5, kind.clone());
                let crash = format!("{}:{times}:panic", point.name());
                if survives(node.open(&crash).ok(), &node, &order) {
                    break;
                }
                crashes += 1;
                let at = format!("{kind}, {} at pass {times}", point.name());
                // The server resends the order until it gets a status. The journal of the
                // reopened executor may or may not contain the order.
                let executor = node.executor();
                executor.step();
                let submitted = executor.submit(&order, node.now());
                executor.step();
                let statuses = executor.outstanding();
                let [(5, status)] = &statuses[..] else { panic!("{at}: {statuses:?}") };
                assert!(
                    submitted == OrderStatus::Accepted || submitted == *status,
                    "{at}: {submitted:?} {status:?}"
                );
                check(&node, status, &at);
                // The status is resent until the server acknowledges it, and not after that.
                drop(executor);
                let executor = node.executor();
                assert_eq!(executor.outstanding(), [(5, status.clone())], "{at}");
                executor.acknowledge(4);
                assert_eq!(executor.outstanding(), [(5, status.clone())], "{at}");
                executor.acknowledge(5);
                assert_eq!(executor.outstanding(), [], "{at}");
                drop(executor);
                let executor = node.executor();
                assert_eq!(executor.outstanding(), [], "{at}");
                assert_eq!(executor.last_order(), 5, "{at}");
                assert!(!executor.step(), "{at}");
                assert_eq!(executor.submit(&order, node.now()), *status, "{at}");
            }
        }
    }
    assert!(crashes > 100, "{crashes}");
}

/// Checks the invariants of the node and the status, wherever the crash happened.
fn check(node: &TestNode, status: &OrderStatus, at: &str) {
    let state = node.state().clone();
    assert_eq!(state.violated, None, "{at}");
    let done = matches!(status, OrderStatus::Done { .. });
    for (name, times) in
        [("resets", state.resets), ("reboots", state.reboots), ("restarts", state.restarts)]
    {
        assert!(times <= 1, "{at}: {times} {name}");
    }
    // A reset is the only change whose outcome can stay unknown.
    if !done {
        let unknown = matches!(status, OrderStatus::Failed { reason } if reason.contains("outcome of the reset is unknown"));
        assert!(
            at.starts_with("reset") && unknown && state.resets == 0,
            "{at}: {status:?} {state:?}"
        );
        return;
    }
    let made = match at.split([' ', ',']).next().unwrap() {
        "cordon" => state.cordon.is_some_and(|(owner, _)| owner == "farrier"),
        "uncordon" => state.cordon.is_none(),
        "drain" => state.jobs.is_empty(),
        "reset" => state.resets == 1,
        "reboot" => state.reboots == 1,
        "restart" => state.restarts == 1,
        "verify" | "diag" => true,
        // A restarted agent may start the tuning a second time.
        "tune" => (1..=2).contains(&state.tunes),
        other => panic!("{other}"),
    };
    assert!(made, "{at}: {status:?}");
}

#[test]
fn a_change_still_running_from_before_the_crash_is_awaited() {
    use super::super::task::CHANGE_LOCK;

    let node = TestNode::drained();
    let order = node.order(5, OrderKind::ResetGpu { gpu: gpu() });
    assert!(!survives(node.open("order-begun:panic").ok(), &node, &order));
    // The process that the agent started outlives it.
    let path = node.folder.path().join(CHANGE_LOCK);
    let running = std::fs::File::options().append(true).open(path).unwrap();
    running.lock().unwrap();
    node.stop_clock();
    let executor = node.executor();
    let execution = {
        let executor = executor.clone();
        std::thread::spawn(move || executor.step())
    };
    node.wait_for_clock_reads();
    assert_eq!(executor.outstanding(), [(5, OrderStatus::Accepted)]);
    // The process makes the change and exits.
    node.state().reset_reasons.clear();
    drop(running);
    execution.join().unwrap();
    let statuses = executor.outstanding();
    assert!(
        matches!(&statuses[..], [(5, OrderStatus::Done { evidence })] if evidence.contains("the GPU responds")),
        "{statuses:?}"
    );
    assert_eq!(node.state().resets, 0);
}

#[test]
fn a_node_with_new_jobs_is_not_repaired_after_a_crash() {
    let unit = UNIT.to_owned();
    for kind in [OrderKind::Reboot, OrderKind::RestartService { unit }] {
        let node = TestNode::drained();
        let order = node.order(5, kind);
        assert!(!survives(node.open("order-begun:panic").ok(), &node, &order));
        node.state().jobs = vec![job("7")];
        let executor = node.executor();
        executor.step();
        let statuses = executor.outstanding();
        let [(5, OrderStatus::Failed { reason })] = &statuses[..] else { panic!("{statuses:?}") };
        assert_eq!(reason, "the node is not drained: job 7");
        let state = node.state();
        assert_eq!(state.reboots + state.restarts, 0);
    }
}
