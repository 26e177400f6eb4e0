//! Random sequences of faults.

use farrier_fleet::change::{ActionFailure, ChangeState, LoadFailure};
use proptest::prelude::*;

use crate::run::{Fault, Injection, Run};
use crate::scenario::scenarios;

fn failure() -> impl Strategy<Value = ActionFailure> {
    let detail = String::new;
    prop_oneof![
        Just(ActionFailure::Network { detail: detail() }),
        Just(ActionFailure::PackageManager { detail: detail() }),
        Just(ActionFailure::PackageLock { detail: detail() }),
        Just(ActionFailure::DiskFull { path: "/usr".to_owned() }),
        Just(ActionFailure::Scheduler { detail: detail() }),
        Just(ActionFailure::ModuleInUse { module: "nvidia".to_owned() }),
        Just(ActionFailure::Hung { program: "rmmod".to_owned() }),
        Just(ActionFailure::Load { kind: LoadFailure::InitFailed, detail: detail() }),
        Just(ActionFailure::Load { kind: LoadFailure::NoDevice, detail: detail() }),
        Just(ActionFailure::CheckFailed { check: "gemm".to_owned(), detail: detail() }),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        4 => (failure(), 0..5usize).prop_map(|(failure, effects)| Fault::Error { failure, effects }),
        1 => (failure(), 0..5usize)
            .prop_map(|(failure, effects)| Fault::ErrorForever { failure, effects }),
        4 => (0..5usize).prop_map(|effects| Fault::Kill { effects }),
        3 => (0..5usize).prop_map(|effects| Fault::PowerCut { effects }),
        2 => Just(Fault::KillAfter),
        1 => Just(Fault::ControllerLost),
        2 => Just(Fault::ControllerAway),
        2 => (1..200u32).prop_map(Fault::Blind),
        1 => Just(Fault::ExternalCordon),
        1 => Just(Fault::CordonRemoved),
        1 => Just(Fault::Cancel),
        1 => Just(Fault::RollBack),
        1 => Just(Fault::RollbackBundleLost),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_ends_in_a_known_state(
        scenario in 0..22usize,
        faults in proptest::collection::vec((0..80usize, fault()), 1..8),
    ) {
        let scenario = scenarios().swap_remove(scenario);
        let mut injections = scenario.injections;
        injections.extend(faults.into_iter().map(|(at, fault)| Injection { at, fault }));
        let end = Run::new(scenario.node, injections).run();
        prop_assert!(end.is_end() || matches!(end, ChangeState::VerifiedHeld(_)));
    }
}
