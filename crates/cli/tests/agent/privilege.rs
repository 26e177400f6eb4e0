//! Without root, the agent runs and reports its coverage gaps.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::agent_node::{AgentNode, command_for, is_root, skipped};
use crate::support::farrier;

#[test]
fn without_root_the_agent_reports_coverage_gaps() {
    let agent_node = AgentNode::with_gpus(1);
    let kmsg = agent_node.path("node/root/dev/kmsg");
    fs::set_permissions(&kmsg, fs::Permissions::from_mode(0o600)).unwrap();
    let args = agent_node.args();
    let mut command = farrier(&args.iter().map(String::as_str).collect::<Vec<_>>());
    if is_root() {
        // Run as another user, who can read world-readable files and write only their own files.
        for name in ["", "agent.toml"] {
            let mode = if name.is_empty() { 0o777 } else { 0o644 };
            fs::set_permissions(agent_node.path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        if !nobody_can_run() {
            skipped("`setpriv` is missing, or other users cannot execute the binary");
            return;
        }
        let mut as_nobody = Command::new("setpriv");
        as_nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        as_nobody.arg(env!("CARGO_BIN_EXE_farrier")).args(&args).stdin(std::process::Stdio::null());
        command = as_nobody;
    }
    let agent = agent_node.spawn(command_for(&mut command, &agent_node.path("log"), |_| ()));
    let status = agent.until(|status| {
        let gaps = status["coverage_gaps"].as_array().cloned().unwrap_or_default();
        // At first, the reason is only that the log has not been read yet.
        let why = gaps.first().and_then(|gap| gap["reason"].as_str()).unwrap_or_default();
        gaps.len() == 1 && gaps[0]["source"] == "kernel-log" && why.contains("permission denied")
    });
    assert_ne!(status["verdict"], "healthy", "{status:#}");
    let why = status["coverage_gaps"][0]["reason"].as_str().unwrap();
    assert!(why.contains("root or CAP_SYSLOG is required"), "{why}");
    assert_eq!(status["gpus"].as_array().unwrap().len(), 1, "NVML needs no root");
    let table = agent_node.status_ran(&[]);
    assert_eq!(table.code, 1);
    assert!(table.stdout.contains("Coverage gaps"), "{}", table.stdout);
    assert_eq!(agent.get("/healthz").0, 503);
}

/// Whether another user can execute the binary. It is not possible if the checkout is in root's
/// home directory, which is private.
fn nobody_can_run() -> bool {
    Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(env!("CARGO_BIN_EXE_farrier"))
        .arg("--version")
        .output()
        .is_ok_and(|ran| ran.status.success())
}
