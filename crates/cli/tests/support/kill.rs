//! Signals to processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// Sends a signal such as `-KILL`. The shell's own `kill` does it: a small Debian has no other.
pub(crate) fn kill(signal: &str, pid: &str) {
    let script = format!("kill {signal} {pid}");
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
}
