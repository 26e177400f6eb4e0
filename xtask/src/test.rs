//! `cargo xtask test`: the checks that every change must pass.

use anyhow::bail;

use crate::shell::{cargo, has_cargo_command, root};
use crate::{own_text, python as package, requirements, words as retired_words};

pub(crate) fn run() -> anyhow::Result<()> {
    requirements::ensure_python()?;
    requirements::ensure_slurm()?;
    requirements::ensure_receivers()?;
    requirements::ensure_package_tools()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    cargo(&["test", "--workspace", "--doc", "--locked"])?;
    if has_cargo_command("nextest") {
        cargo(&["nextest", "run", "--workspace", "--locked"])?;
    } else {
        cargo(&["test", "--workspace", "--all-targets", "--locked", "--no-fail-fast"])?;
    }
    python()
}

/// Tests the Python package with the `farrier` binary, but without frameworks.
pub(crate) fn python() -> anyhow::Result<()> {
    requirements::ensure_python()?;
    cargo(&["build", "--package", "farrier", "--locked"])?;
    package::without_frameworks()
}

/// Checks that no code parses messages that Farrier itself writes. A test of this crate runs this
/// check too.
pub(crate) fn sentences() -> anyhow::Result<()> {
    let problems = own_text::problems(&root())?;
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// Fails on retired words and on type names that several files define. A test of this crate runs
/// this check too.
pub(crate) fn words() -> anyhow::Result<()> {
    let problems = retired_words::problems(&root())?;
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}
