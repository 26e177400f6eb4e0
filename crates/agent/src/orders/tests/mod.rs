//! Tests that run executors on an in-memory node and crash them at every step.

mod crash;
mod drain;
mod histories;
mod journal;
mod kinds;
mod test_node;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Writes a program that runs this shell script, and returns its path.
pub(crate) fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("program");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
