//! Sending signals.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::process::Command;

/// Sends a signal such as `-KILL`. Uses the shell built-in, since minimal Debian has no `kill`
/// binary.
pub(crate) fn kill(signal: &str, pid: &str) {
    let script = format!("kill {signal} {pid}");
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
}
