//! What every command prints, committed: a change of a word, a key or an exit code shows as a difference here.
//!
//! `FARRIER_BLESS=1 cargo test -p farrier --test golden` writes what is printed now into `cases/`; read the difference.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod help;
mod play;
#[expect(dead_code, reason = "every command here has a working directory of its own")]
#[path = "../support/mod.rs"]
mod support;
mod volatile;

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
    check on Stage::checkout();
    decode on Stage::checkout();
    facts on Stage::checkout();
    lint on Stage::checkout();
    plan on Stage::checkout();
    simulate on Stage::folder();
}

/// Files that a test of another form writes.
const OTHERS: &[&str] = &["help"];

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
