//! What the tests need besides Rust and a C compiler.

use std::process::Stdio;

use anyhow::bail;

use crate::shell::{command, say};

/// Python with virtual environments: real NVML clients run against the simulated library.
pub(crate) fn python() -> anyhow::Result<()> {
    if has_python() {
        return Ok(());
    }
    say("--- Python with venv is missing: installing python3-venv");
    for (program, words) in [("apt-get", &[][..]), ("sudo", &["--non-interactive", "apt-get"])] {
        let run = |step: &[&str]| {
            let mut apt = command(program);
            apt.args(words).args(step).env("DEBIAN_FRONTEND", "noninteractive");
            apt.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|it| it.success())
        };
        if run(&["update"]) && run(&["install", "--yes", "python3-venv"]) && has_python() {
            return Ok(());
        }
    }
    let advice = "Python with venv could not be installed: `apt-get install python3-venv` as root";
    if std::env::var_os("CI").is_some() {
        bail!("{advice}");
    }
    say(&format!("warning: {advice}; the tests with Python clients will be skipped"));
    Ok(())
}

fn has_python() -> bool {
    let mut python = command("python3");
    python.args(["-c", "import ensurepip, venv"]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}
