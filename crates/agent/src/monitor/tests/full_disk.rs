//! What happens while the disk is full.

use super::*;

#[test]
fn a_full_disk_is_reported_and_no_finding_is_lost() {
    let mut node = TestNode::new();
    node.tick();
    node.monitor.as_mut().unwrap().journal.fill_disk(true);
    node.line(1, XID_48);
    let state = node.tick();
    assert!(state.findings.iter().any(|shown| !shown.durable));
    assert!(
        state.coverage_gaps.iter().any(|gap| gap.source == "journal"),
        "{:?}",
        state.coverage_gaps
    );
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentLogWritable), Some(Reading::Value(0.0)));
    assert!(node.sunk().is_empty(), "only durable changes reach the sink");
    node.monitor.as_mut().unwrap().journal.fill_disk(false);
    node.tick();
    let state = node.tick();
    assert!(state.findings.iter().all(|shown| shown.durable), "{:?}", state.findings);
    assert!(state.coverage_gaps.iter().all(|gap| gap.source != "journal"));
    assert_eq!(state.journal.waiting, 0);
    assert!(!node.sunk().is_empty());
    node.kill();
    node.start();
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(1));
}

#[test]
fn a_storm_on_a_full_disk_is_counted_and_retries_are_limited() {
    let mut node = TestNode::new();
    node.tick();
    node.monitor.as_mut().unwrap().journal.fill_disk(true);
    for seq in 1..=2000 {
        node.line(seq, XID_48);
    }
    let state = node.tick();
    assert!(state.journal.waiting < 10, "{}", state.journal.waiting);
    node.monitor.as_mut().unwrap().journal.fill_disk(false);
    node.tick();
    node.tick();
    assert_eq!(node.count("gpu.xid"), Some(2000));
    node.kill();
    assert_eq!(node.start(), Some(2000));
}

#[test]
fn jobs_are_notified_of_a_fault_while_the_disk_is_full() {
    let mut node = TestNode::new();
    node.tick();
    let registry = Arc::clone(&node.monitor.as_ref().unwrap().registry);
    let requests = registry.listener();
    node.monitor.as_mut().unwrap().journal.fill_disk(true);
    node.line(1, "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus.");
    let state = node.tick();
    assert!(state.findings.iter().any(|shown| !shown.durable));
    assert!(requests() > 0, "{:?}", state.findings);
    let before = requests();
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    for shown in &state.findings {
        node.config.rules.insert(shown.finding.code.clone(), off.clone());
    }
    let config = Box::new(node.config.clone());
    node.turn(vec![CollectorMessage::Reloaded(config)], false);
    assert!(node.tick().findings.is_empty());
    node.monitor.as_mut().unwrap().journal.fill_disk(false);
    let state = node.tick();
    assert_eq!(
        (state.journal.waiting, requests()),
        (0, before),
        "a cleared finding is not sent again"
    );
}
