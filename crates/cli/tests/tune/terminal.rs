//! Confirmation on a terminal.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::simulated_node::SimulatedNode;

/// Runs `farrier tune apply` on a terminal that util-linux's `script` creates, and types the reply.
/// `None` if `script` is not installed.
fn apply_answering(node: &SimulatedNode, answer: &str) -> Option<String> {
    let line = format!(
        "{} tune apply training --root {} --nvml {} --state-dir {}",
        env!("CARGO_BIN_EXE_farrier"),
        node.text("node/root"),
        node.text("node/lib/libnvidia-ml.so.1"),
        node.text("state")
    );
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    script.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn apply_asks_for_confirmation() {
    let node = SimulatedNode::mistuned();
    let before = node.state();
    let Some(output) = apply_answering(&node, "n\n") else {
        eprintln!("skipped: no `script` to create a terminal");
        return;
    };
    assert!(output.contains("Apply 17 changes? [y/N]"), "{output}");
    assert!(output.contains("Nothing was changed."), "{output}");
    assert_eq!(node.state(), before);
    let output = apply_answering(&node, "y\n").unwrap();
    assert!(output.contains("17 of 17 changes applied."), "{output}");
    assert_ne!(node.state(), before);
}
