//! The simulated NVML, built for tests of another package.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Builds the library beside the binary: tests of one package do not build the library of another.
pub(crate) fn build_library() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_farrier")).parent().unwrap();
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--quiet", "--locked", "-p", "farrier-nvml-sim", "--target-dir"]);
        command.arg(folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if folder.ends_with("release") {
            command.arg("--release");
        }
        assert!(command.status().unwrap().success(), "the library does not build");
    });
}
