//! The committed output of every command: a changed word, key or exit code shows as a difference.
//!
//! `FARRIER_BLESS=1 cargo test -p farrier --test golden` writes the new output to `cases/`; review
//! the difference.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod case;
mod fleet_server;
mod help;
mod scenario;
mod scenario_log;
#[path = "../support/mod.rs"]
mod support;
mod volatile;

use case::{CaseEnv, run_case};
use fleet_server::FleetServer;

/// Defines one test per case file, and the list of these files.
macro_rules! cases {
    ($($name:ident in $env:expr;)*) => {
        $(
            #[test]
            fn $name() {
                run_case(stringify!($name), &$env);
            }
        )*

        /// Case files with a test above.
        const CASES: &[&str] = &[$(stringify!($name)),*];
    };
}

cases! {
    agent in CaseEnv::with_config();
    bundle in CaseEnv::folder();
    change in CaseEnv::folder();
    check in CaseEnv::checkout();
    decode in CaseEnv::checkout();
    diag in CaseEnv::folder();
    facts in CaseEnv::checkout();
    fleet_asks in FleetServer::environment();
    fleet_events in FleetServer::environment();
    fleet_explain in FleetServer::environment();
    fleet_nodes in FleetServer::environment();
    fleet_report in FleetServer::environment();
    lint in CaseEnv::checkout();
    notify in FleetServer::environment();
    plan in CaseEnv::checkout();
    policy in CaseEnv::with_policies();
    server in FleetServer::environment_without_server();
    simulate in CaseEnv::folder();
    status in CaseEnv::checkout();
    top in CaseEnv::folder();
    tune in CaseEnv::folder();
}

/// Files in `cases/` that other tests of this binary compare.
const OTHERS: &[&str] = &["help", "metrics", "openapi"];

#[test]
fn every_case_file_has_a_test() {
    for path in case::files() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(CASES.contains(&name) || OTHERS.contains(&name), "no test for {}", path.display());
    }
}
