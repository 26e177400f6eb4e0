//! Crashes the agent at each step between an observation and its sinks. No finding is lost or
//! duplicated.

use std::collections::BTreeMap;

use farrier_agent::failpoint::Point;
use serde_json::Value;

use crate::agent_node::{AgentNode, find};

const XID_94: &str = "NVRM: Xid (PCI:0000:1b:00): 94, pid=48211, name=python3, Contained ECC error";

/// Counts how often each change of each finding reached the sink.
fn changes(agent_node: &AgentNode) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for (kind, finding) in agent_node.sink_changes() {
        let key = format!("{kind} {} {} {}", finding["id"], finding["code"], finding["count"]);
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn count(status: &Value) -> u64 {
    find(status, "gpu.xid").map_or(0, |finding| finding["count"].as_u64().unwrap())
}

#[test]
fn a_crash_at_any_step_yields_each_finding_once() {
    for point in Point::ALL.map(Point::name) {
        let agent_node = AgentNode::with_gpus(1);
        let pci = gpu_address(&agent_node);
        let line = XID_94.replace("0000:1b:00", &pci);
        // A new node has no findings, so the first record that the agent writes is for the Xid.
        let mut agent = agent_node.agent_with(|command| {
            command.env("FARRIER_CRASH_AT", at_xid(point));
        });
        agent.until(|status| status["coverage_gaps"].as_array().is_some_and(Vec::is_empty));
        agent_node.kernel_lines(std::iter::once(line.clone()));
        let exit_status = agent.wait_for_exit();
        assert!(!exit_status.success(), "{point}: {exit_status}");
        drop(agent);
        let agent = agent_node.agent().ready();
        let status = agent.until(|status| count(status) >= 1);
        assert_eq!(count(&status), 1, "{point}: {status:#}");
        // The restarted agent adds to the count from before the crash.
        agent_node.kernel_lines([line.clone(), line.clone()].into_iter());
        let status = agent.until(|status| count(status) >= 3);
        assert_eq!(count(&status), 3, "{point}");
        agent.stop();
        let changes = changes(&agent_node);
        assert!(changes.values().all(|times| *times == 1), "{point}: {changes:?}");
        let opened = |key: &&String| key.starts_with("opened") && key.contains("gpu.xid\"");
        assert_eq!(changes.keys().filter(opened).count(), 1, "{point}: {changes:?}");
    }
}

/// The value of `FARRIER_CRASH_AT` that crashes the agent at the Xid. Every tick may also reach
/// `observed` and `decided`, so these two get the suffix `:kernel` and trigger only for a batch
/// with kernel lines. The other failpoints are reached only when a record is written.
fn at_xid(point: &str) -> String {
    match point {
        "observed" | "decided" => format!("{point}:kernel"),
        _ => point.to_owned(),
    }
}

/// PCI address of the first GPU, such as `0000:1b:00`.
pub(crate) fn gpu_address(agent_node: &AgentNode) -> String {
    let devices = std::fs::read_dir(agent_node.path("node/root/sys/bus/pci/devices")).unwrap();
    let mut gpus: Vec<String> = devices
        .flatten()
        .filter(|entry| {
            let read =
                |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            read("vendor").trim() == "0x10de" && read("class").trim() == "0x030200"
        })
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    gpus.sort();
    gpus[0].trim_end_matches(".0").to_owned()
}

#[test]
fn a_killed_agent_counts_each_kernel_line_once() {
    let agent_node = AgentNode::with_gpus(1);
    let line = XID_94.replace("0000:1b:00", &gpu_address(&agent_node));
    let mut written = 0;
    for _ in 0..4 {
        let agent = agent_node.agent();
        agent.until(|status| status["coverage_gaps"].as_array().is_some_and(Vec::is_empty));
        for _ in 0..5 {
            agent_node.kernel_lines((0..500).map(|_| line.clone()));
            written += 500;
        }
        agent.until(|status| count(status) > written / 2);
        agent.kill();
    }
    let agent = agent_node.agent().ready();
    let status = agent.until(|status| count(status) >= written);
    assert_eq!(count(&status), written);
    agent.stop();
    let changes = changes(&agent_node);
    assert!(changes.values().all(|times| *times == 1), "{changes:?}");
}
