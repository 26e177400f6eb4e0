//! Steps of the clock.

use super::*;

#[test]
fn a_clock_step_is_reported_and_moves_no_window() {
    let mut node = TestNode::new();
    node.tick();
    node.clock.wall_ms.fetch_sub(3_600_000, Ordering::Relaxed);
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentClockSteps), Some(Reading::Value(3600.0)));
    node.line(1, XID_48);
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn a_clock_step_and_a_restart_clear_no_finding() {
    let mut node = TestNode::new();
    node.line(
        1,
        "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
    );
    node.line(2, "NVRM: Xid (PCI:0000:1b:00): 31, pid=7, name=python3, MMU Fault");
    node.clock.wall_ms.fetch_add(36_000_000, Ordering::Relaxed);
    node.tick();
    node.kill();
    node.start();
    let details = |state: &Snapshot| -> Vec<String> {
        let xids = state.findings.iter().filter(|shown| shown.finding.code == "gpu.xid");
        xids.map(|shown| shown.finding.detail.clone()).collect()
    };
    for _ in 0..60 {
        node.tick();
    }
    assert_eq!(details(&node.tick()), ["Xid 31", "Xid 79"]);
}
