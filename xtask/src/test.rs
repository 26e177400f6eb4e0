//! `cargo xtask test`: what a change must pass.

use crate::shell::{cargo, has_cargo_command};

pub(crate) fn run() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    if has_cargo_command("nextest") {
        cargo(&["nextest", "run", "--workspace", "--locked"])?;
    } else {
        cargo(&["test", "--workspace", "--all-targets", "--locked"])?;
    }
    cargo(&["test", "--workspace", "--doc", "--locked"])
}
