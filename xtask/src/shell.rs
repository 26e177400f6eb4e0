//! Running other programs.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Prints a line to stderr.
pub(crate) fn print_status(text: &str) {
    #[expect(clippy::print_stderr, reason = "xtask reports to the terminal")]
    {
        eprintln!("{text}");
    }
}

/// Root of the checkout.
pub(crate) fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask is inside the checkout").to_owned()
}

/// A command that runs in the checkout root.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Runs `cargo` with these arguments and shows its output.
pub(crate) fn cargo(args: &[&str]) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = command(cargo);
    // `cargo run` sets these variables for xtask. Build scripts depend on them, so passing them on
    // would rebuild other packages.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    run(cargo.args(args), &format!("cargo {}", args.join(" ")))
}

/// Runs a command. If it fails, the error names it.
pub(crate) fn run(command: &mut Command, name: &str) -> anyhow::Result<()> {
    print_status(&format!("--- {name}"));
    let status = command.status().with_context(|| format!("failed to start `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed ({status})");
    }
    Ok(())
}

/// Whether `cargo NAME` is installed.
pub(crate) fn has_cargo_command(name: &str) -> bool {
    let mut probe = command("cargo");
    probe.args([name, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}
