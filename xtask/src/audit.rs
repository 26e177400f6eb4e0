//! `cargo xtask audit`: what is in the dependency tree.
//!
//! The advisory database is not asked: it lives outside the package registry, and a build farm may
//! not reach it.

use crate::shell::{cargo, has_cargo_command, print_status};

pub(crate) fn run() -> anyhow::Result<()> {
    if !has_cargo_command("deny") {
        print_status("cargo-deny is not installed; installing it (some minutes)");
        cargo(&["install", "cargo-deny", "--locked"])?;
    }
    cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"])
}
