//! What every command prints, committed: a change of a word, a key or an exit code shows as a difference here.
//!
//! `FARRIER_BLESS=1 cargo test -p farrier --test golden` writes what is printed now into `cases/`; read the difference.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod day;
mod fleet;
mod help;
mod play;
mod scenario;
#[path = "../support/mod.rs"]
mod support;
mod volatile;

use fleet::Fleet;
use play::{Stage, play};

/// One test a case file, and the list of them.
macro_rules! cases {
    ($($name:ident on $stage:expr;)*) => {
        $(
            #[test]
            fn $name() {
                play(stringify!($name), &$stage);
            }
        )*

        /// Case files that a test plays.
        const PLAYED: &[&str] = &[$(stringify!($name)),*];
    };
}

cases! {
    agent on Stage::with_config();
    check on Stage::checkout();
    decode on Stage::checkout();
    diag on Stage::folder();
    facts on Stage::checkout();
    fleet_asks on Fleet::stage();
    fleet_events on Fleet::stage();
    fleet_explain on Fleet::stage();
    fleet_nodes on Fleet::stage();
    lint on Stage::checkout();
    plan on Stage::checkout();
    server on Fleet::unserved();
    simulate on Stage::folder();
    status on Stage::checkout();
    top on Stage::folder();
    tune on Stage::folder();
}

/// Files that a test of another form writes.
const OTHERS: &[&str] = &["help", "metrics", "openapi"];

#[test]
fn every_case_is_played() {
    for path in play::files() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            PLAYED.contains(&name) || OTHERS.contains(&name),
            "nobody plays {}",
            path.display()
        );
    }
}
