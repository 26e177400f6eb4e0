//! Runs the built binary without the user's settings.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

pub(crate) mod wait;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The binary with these arguments, run in the checkout root without an installed fact set.
pub(crate) fn farrier(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farrier"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    command
        .args(args)
        .current_dir(root)
        .env("FARRIER_FACTS_DIR", "/nonexistent")
        .env("NO_COLOR", "1")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    command
}

/// Output and exit code of a command.
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs the binary to completion.
pub(crate) fn run(args: &[&str]) -> CommandOutput {
    farrier(args).output().unwrap().into()
}
