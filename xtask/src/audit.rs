//! `cargo xtask audit`: checks the dependency tree.
//!
//! The audit does not query the advisory database, which is outside the package registry and may be
//! unreachable from a build machine.

use crate::shell::{cargo, has_cargo_command, print_status};

pub(crate) fn run() -> anyhow::Result<()> {
    if !has_cargo_command("deny") {
        print_status("cargo-deny is not installed; installing it (takes some minutes)");
        cargo(&["install", "cargo-deny", "--locked"])?;
    }
    cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"])
}
