//! Generated histories: orders, crashes at any point, external reboots, lost acknowledgements.
//! Checks the invariants.

use farrier_fleet::fleet::order::{Order, OrderKind, OrderStatus, VerificationLevel};
use proptest::prelude::*;

use super::super::OrderExecutor;
use super::world::{UNIT, World, dies, gpu, job};
use crate::failpoint::Point;

#[derive(Debug, Clone)]
enum Act {
    /// The server sends an order. The agent crashes at the n-th pass of this failpoint, if it gets
    /// there.
    Order {
        kind: usize,
        point: usize,
        times: u32,
    },
    /// The server resends the last order.
    Again,
    /// The server acknowledges every status.
    Acknowledge,
    /// An external reboot.
    Reboot,
    /// An external drain starts or ends.
    Theirs(bool),
    /// A job starts or ends.
    Work(bool),
    Pass(i64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..9_usize, 0..Point::OF_ORDERS.len(), 1..6_u32)
            .prop_map(|(kind, point, times)| Act::Order { kind, point, times }),
        2 => Just(Act::Again),
        1 => Just(Act::Acknowledge),
        1 => Just(Act::Reboot),
        1 => any::<bool>().prop_map(Act::Theirs),
        1 => any::<bool>().prop_map(Act::Work),
        1 => (1..1000_i64).prop_map(Act::Pass),
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

/// Changes so far that must not be made twice.
fn changes(world: &World) -> u32 {
    let state = world.state();
    state.resets + state.reboots + state.restarts
}

/// Starts an agent that accepts the order and executes what it has. It may crash.
fn live(world: &World, crash: &str, order: Option<&Order>) {
    let open = |crash: &str| -> Option<OrderExecutor> { dies(|| world.open(crash).unwrap()) };
    let Some(desk) = open(crash) else { return };
    dies(|| {
        if let Some(order) = order {
            desk.offer(order, world.now());
        }
        desk.step();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_done_twice_lost_or_undone_for_others(acts in prop::collection::vec(act(), 1..25)) {
        let world = World::drained();
        let mut generation = 0;
        let mut last: Option<Order> = None;
        let mut changed_before = 0;
        for act in acts {
            match act {
                Act::Order { kind: number, point, times } => {
                    generation += 1;
                    let order = world.order(generation, kind(number));
                    changed_before = changes(&world);
                    let crash = format!("{}:{times}:panic", Point::OF_ORDERS[point].name());
                    live(&world, &crash, Some(&order));
                    last = Some(order);
                }
                Act::Again => live(&world, "", last.as_ref()),
                Act::Acknowledge => {
                    let desk = world.desk();
                    for (generation, _) in desk.outstanding() {
                        desk.acknowledged(generation);
                    }
                    let left = desk.outstanding();
                    prop_assert!(left.iter().all(|(_, answer)| *answer == OrderStatus::Accepted), "{left:?}");
                }
                Act::Reboot => world.state().boot += 1,
                Act::Theirs(on) => {
                    let mark = &mut world.state().mark;
                    let theirs = |mark: &(String, String)| mark.0 == "alice";
                    if on && mark.is_none() {
                        *mark = Some(("alice".to_owned(), "disk".to_owned()));
                    } else if !on && mark.as_ref().is_some_and(theirs) {
                        *mark = None;
                    }
                }
                Act::Work(on) => world.state().jobs = if on { vec![job("7")] } else { Vec::new() },
                Act::Pass(seconds) => world.pass(seconds),
            }
            // One order makes at most one change, however often the agent crashes.
            prop_assert!(changes(&world) - changed_before <= 1, "{last:?}");
            prop_assert_eq!(world.state().violated, None);
            let desk = world.desk();
            let ledger = desk.ledger();
            prop_assert!(ledger.generation <= generation, "{ledger:?}");
        }
        // Every accepted order gets a status, and the generation never decreases.
        live(&world, "", last.as_ref());
        let desk = world.desk();
        prop_assert_eq!(desk.ledger().generation, generation);
        prop_assert!(desk.outstanding().iter().all(|(_, answer)| *answer != OrderStatus::Accepted));
        prop_assert_eq!(desk.ledger().last.map(|(order, _)| order.generation), last.map(|it| it.generation));
    }
}
