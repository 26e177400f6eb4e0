//! The sink: failures, retries and the backlog.

use super::*;

#[test]
fn a_failing_sink_is_reported_bounded_and_caught_up() {
    let mut node = TestNode::new();
    node.kill();
    let folder = node.folder.path().join("later");
    node.sink = folder.join("sink.jsonl");
    node.start();
    for seq in 1..=300 {
        node.line(seq, XID_48);
        node.tick();
    }
    let state = node.published.get().unwrap();
    assert_eq!(signal(&state, Signal::AgentSinkGood), Some(Reading::Value(0.0)));
    assert_eq!(node.count("agent.sink-failing"), Some(1));
    assert!(node.monitor.as_ref().unwrap().sink_forwarder.buffered() <= 256);
    std::fs::create_dir(&folder).unwrap();
    // SIGHUP makes the agent retry at once. Without it, the agent retries after a minute.
    let config = Box::new(node.config.clone());
    node.turn(vec![CollectorMessage::Reloaded(config)], false);
    node.tick();
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentSinkGood), Some(Reading::Value(1.0)));
    assert_eq!(node.count("agent.sink-failing"), None);
    let sunk = node.sunk();
    let mut counts = Vec::new();
    for line in &sunk {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let change = &line["change"];
        let finding = ["opened", "updated"].iter().find_map(|kind| change.get(kind)).cloned();
        let finding = finding.unwrap_or_default();
        if finding["code"] == "gpu.xid" {
            counts.push(finding["count"].as_u64().unwrap());
        }
    }
    assert_eq!(counts.len(), counts.iter().collect::<std::collections::BTreeSet<_>>().len());
    assert_eq!((counts.first(), counts.last()), (Some(&1), Some(&300)), "{} lines", sunk.len());
}

#[test]
fn a_sink_whose_journal_was_deleted_gets_new_changes() {
    let mut node = TestNode::new();
    for seq in 1..=20 {
        node.line(seq, XID_48);
        node.tick();
    }
    let before = node.sunk().len();
    node.kill();
    std::fs::remove_dir_all(node.folder.path().join("state")).unwrap();
    node.start();
    node.line(1, XID_48);
    let sunk = node.sunk().split_off(before);
    assert_eq!(sunk[0], "{\"v\":1,\"start\":0}");
    assert!(sunk[1].contains("\"opened\"") && sunk[1].contains("gpu.xid"), "{sunk:?}");
    let before = node.sunk().len();
    node.kill();
    node.start();
    assert_eq!(node.sunk().len(), before, "a restart adds no second start line");
}

#[test]
fn the_backlog_of_the_sink_is_forwarded_at_startup_without_buffering() {
    let mut node = TestNode::new();
    for seq in 1..=20 {
        node.line(seq, XID_48);
        node.tick();
    }
    let whole = std::fs::read_to_string(&node.sink).unwrap();
    let start = whole.find('\n').unwrap() + 1;
    for cut in [start, whole.len() / 2, whole.len()] {
        node.kill();
        std::fs::write(&node.sink, &whole[..cut]).unwrap();
        node.start_without_nvml();
        assert_eq!(node.monitor.as_ref().unwrap().sink_forwarder.buffered(), 0);
        node.turn(Vec::new(), false);
        assert_eq!(std::fs::read_to_string(&node.sink).unwrap(), whole, "cut at {cut}");
        assert_eq!(node.monitor.as_ref().unwrap().sink_forwarder.buffered(), 0);
    }
}

#[test]
fn a_failed_sink_is_retried_every_minute() {
    let mut node = TestNode::new();
    node.kill();
    let folder = node.folder.path().join("later");
    node.sink = folder.join("sink.jsonl");
    node.start();
    node.line(1, XID_48);
    std::fs::create_dir(&folder).unwrap();
    node.tick();
    assert!(!node.sink.exists());
    node.clock.pass(60_000);
    node.tick();
    assert!(node.sunk()[0].contains("gpu.xid"), "{:?}", node.sunk());
}
