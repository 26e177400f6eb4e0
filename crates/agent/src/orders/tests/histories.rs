//! Checks invariants of the order executor over generated histories. A history contains orders,
//! crashes at any failpoint, external reboots and cordons, and acknowledgements that may be late.

use farrier_fleet::fleet::order::{Order, OrderKind, OrderStatus, VerificationLevel};
use proptest::prelude::*;

use super::super::OrderExecutor;
use super::test_node::{TestNode, UNIT, catch_crash, gpu, job};
use crate::failpoint::Point;

#[derive(Debug, Clone)]
enum Action {
    /// The server sends an order. The agent crashes if it reaches this failpoint for the n-th time.
    Order {
        kind: usize,
        point: usize,
        times: u32,
    },
    /// The server resends the last order.
    Resend,
    /// The server acknowledges every status that the agent has reported.
    Acknowledge,
    /// Someone else reboots the node.
    Reboot,
    /// Another person sets a cordon if there is none, or removes their own.
    ExternalCordon(bool),
    /// A job starts or ends.
    Job(bool),
    Advance(i64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0..9_usize, 0..Point::ORDER_POINTS.len(), 1..6_u32)
            .prop_map(|(kind, point, times)| Action::Order { kind, point, times }),
        2 => Just(Action::Resend),
        1 => Just(Action::Acknowledge),
        1 => Just(Action::Reboot),
        1 => any::<bool>().prop_map(Action::ExternalCordon),
        1 => any::<bool>().prop_map(Action::Job),
        1 => (1..1000_i64).prop_map(Action::Advance),
    ]
}

fn kind(number: usize) -> OrderKind {
    match number {
        0 => OrderKind::Cordon,
        1 => OrderKind::Uncordon,
        2 => OrderKind::Drain { wait_s: 30 },
        3 => OrderKind::ResetGpu { gpu: gpu() },
        4 => OrderKind::Reboot,
        5 => OrderKind::RestartService { unit: UNIT.to_owned() },
        6 => OrderKind::Tune { profile: "training".to_owned() },
        7 => OrderKind::Diag { level: 1, minutes: 0 },
        _ => OrderKind::Verify { level: VerificationLevel::V0 },
    }
}

/// How many resets, reboots and service restarts the agent has made so far.
fn changes(node: &TestNode) -> u32 {
    let state = node.state();
    state.resets + state.reboots + state.restarts
}

/// Starts an agent, submits `order` if there is one, and executes the active order. The agent
/// crashes if it reaches the failpoint that `crash` names.
fn run_agent(node: &TestNode, crash: &str, order: Option<&Order>) {
    let open = |crash: &str| -> Option<OrderExecutor> { catch_crash(|| node.open(crash).unwrap()) };
    let Some(executor) = open(crash) else { return };
    catch_crash(|| {
        if let Some(order) = order {
            executor.submit(order, node.now());
        }
        executor.step();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_is_repeated_or_lost_and_external_cordons_stay(actions in prop::collection::vec(action(), 1..25)) {
        let node = TestNode::drained();
        let mut generation = 0;
        let mut last: Option<Order> = None;
        let mut changed_before = 0;
        for action in actions {
            match action {
                Action::Order { kind: number, point, times } => {
                    generation += 1;
                    let order = node.order(generation, kind(number));
                    changed_before = changes(&node);
                    let crash = format!("{}:{times}:panic", Point::ORDER_POINTS[point].name());
                    run_agent(&node, &crash, Some(&order));
                    last = Some(order);
                }
                Action::Resend => run_agent(&node, "", last.as_ref()),
                Action::Acknowledge => {
                    let executor = node.executor();
                    for (generation, _) in executor.outstanding() {
                        executor.acknowledge(generation);
                    }
                    let remaining = executor.outstanding();
                    prop_assert!(remaining.iter().all(|(_, status)| *status == OrderStatus::Accepted), "{remaining:?}");
                }
                Action::Reboot => node.state().boot += 1,
                Action::ExternalCordon(on) => {
                    let cordon = &mut node.state().cordon;
                    let is_external = |cordon: &(String, String)| cordon.0 == "alice";
                    if on && cordon.is_none() {
                        *cordon = Some(("alice".to_owned(), "disk".to_owned()));
                    } else if !on && cordon.as_ref().is_some_and(is_external) {
                        *cordon = None;
                    }
                }
                Action::Job(on) => node.state().jobs = if on { vec![job("7")] } else { Vec::new() },
                Action::Advance(seconds) => node.advance(seconds),
            }
            // An order makes at most one change, however often the agent crashes and the server
            // resends the order.
            prop_assert!(changes(&node) - changed_before <= 1, "{last:?}");
            prop_assert_eq!(node.state().violated, None);
            let executor = node.executor();
            let ledger = executor.ledger();
            prop_assert!(ledger.generation <= generation, "{ledger:?}");
        }
        // An agent that does not crash completes the last order. No order is left without a final
        // status, and the ledger has the generation of the last order.
        run_agent(&node, "", last.as_ref());
        let executor = node.executor();
        prop_assert_eq!(executor.ledger().generation, generation);
        prop_assert!(executor.outstanding().iter().all(|(_, status)| *status != OrderStatus::Accepted));
        prop_assert_eq!(executor.ledger().last.map(|(order, _)| order.generation), last.map(|order| order.generation));
    }
}
