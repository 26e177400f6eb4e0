//! Generated histories: the invariants hold for any inputs in any order.

use farrier_fleet::health::{Action, Severity};
use proptest::prelude::*;

use crate::test_fleet::{Act, NODES, TestFleet};

pub(crate) fn act() -> impl Strategy<Value = Act> {
    let node = 0..NODES;
    let severity =
        prop_oneof![Just(Severity::Warning), Just(Severity::Critical), Just(Severity::Fatal)];
    let action = prop_oneof![
        Just(Action::Investigate),
        Just(Action::ResetGpu),
        Just(Action::RebootNode),
        Just(Action::DrainAndReplace)
    ];
    prop_oneof![
        2 => node.clone().prop_map(Act::Boot),
        6 => (node.clone(), 0..3_u64, severity, action, 0..3_usize)
            .prop_map(|(node, number, severity, action, code)| {
                Act::Fault(node, number, severity, action, code)
            }),
        4 => (node.clone(), 0..3_u64).prop_map(|(node, number)| Act::Clear(node, number)),
        2 => node.clone().prop_map(Act::HeartbeatLost),
        2 => node.clone().prop_map(Act::HeartbeatRestored),
        1 => node.clone().prop_map(Act::Revoke),
        1 => node.clone().prop_map(Act::ExternalCordon),
        1 => node.clone().prop_map(Act::ExternalUncordon),
        30 => (node.clone(), prop::bool::weighted(0.8))
            .prop_map(|(node, succeeds)| Act::OrderStatus(node, succeeds)),
        1 => node.clone().prop_map(Act::Hold),
        1 => node.clone().prop_map(Act::Release),
        1 => node.clone().prop_map(Act::Repaired),
        1 => node.clone().prop_map(Act::Retire),
        1 => node.clone().prop_map(Act::Enrol),
        1 => (1..2000_u32).prop_map(Act::Freeze),
        1 => (node.clone(), 0..3_u8).prop_map(|(node, which)| Act::RequestedOrder(node, which)),
        1 => node.prop_map(Act::Approve),
        1 => (any::<bool>(), 0..3_usize)
            .prop_map(|(is_rack, index)| Act::DomainRepaired(is_rack, index)),
        6 => (1..2000_u32).prop_map(Act::Wait),
        1 => (1..2000_u32).prop_map(Act::Pause),
        1 => (-900_000..900_000_i32).prop_map(Act::ClockStep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_invariants_hold(acts in prop::collection::vec(act(), 1..250)) {
        let mut fleet = TestFleet::new();
        for act in &acts {
            fleet.act(act);
        }
        fleet.replay();
    }
}
