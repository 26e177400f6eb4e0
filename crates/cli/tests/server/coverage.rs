//! A node whose NVML reading fails: the server shows the gap, and a verification that has no result
//! because of it is repeated when the reading returns.

use std::fs;

use farrier_fleet::fleet::{Event, NodePhase, OrderStatus};
use serde_json::Value;

use crate::agent_node::{Agent, AgentNode};
use crate::server::{TestServer, TestUser};
use crate::support::wait::wait_until;

/// Starts a server, enrols the node, and logs in an admin. A verification of the node gives up
/// after a second.
fn start_server(agent_node: &AgentNode) -> (TestServer, TestUser) {
    let server = TestServer::start(&agent_node.path(""), "127.0.0.1:0", "server.log");
    let token = server.token(&["--pool", "train"]);
    let enrolled = server.enrol("gpu-1", &agent_node.text("identity"), &token);
    assert_eq!(enrolled.code, 0, "{}", enrolled.stderr);
    let section = format!(
        "[server]\nurl = {:?}\nidentity = {:?}\n[orders]\nenabled = true\nscheduler = \"host\"\nsettle_s = 1\n",
        server.url(),
        agent_node.text("identity"),
    );
    fs::write(agent_node.path("agent.toml"), agent_node.config(&section)).unwrap();
    let ann = server.log_in("ann", "admin");
    (server, ann)
}

#[track_caller]
fn until_node(ann: &TestUser, agent: &Agent<'_>, is_expected: impl Fn(&Value) -> bool) -> Value {
    let mut node = Value::Null;
    wait_until(
        || format!("{}\n{}", ann.node("gpu-1"), agent.log()),
        || {
            node = ann.node("gpu-1");
            is_expected(&node)
        },
    );
    node
}

fn gap_count(node: &Value) -> Option<usize> {
    node["coverage_gaps"].as_array().map(Vec::len)
}

#[test]
fn a_failing_reading_is_shown_and_the_node_is_verified_again_when_it_returns() {
    let agent_node = AgentNode::with_gpus(2);
    let (server, ann) = start_server(&agent_node);
    let agent = agent_node.agent().ready();
    until_node(&ann, &agent, |node| node["phase"] == "in-service" && gap_count(node) == Some(0));
    assert!(!ann.run_ok(&["fleet", "nodes"]).contains("gap"));

    // The node stays in service, and is marked.
    agent_node.inject(&["error", "nvmlDeviceGetPowerUsage", "UNKNOWN", "--gpu", "1"]);
    let node = until_node(&ann, &agent, |node| gap_count(node) == Some(1));
    assert_eq!(node["phase"], "in-service");
    let gap = &node["coverage_gaps"][0];
    assert_eq!(gap["source"], "signals");
    assert_eq!(gap["cause"]["params"]["status"], "NVML_ERROR_UNKNOWN", "{gap}");
    let nodes = ann.run_ok(&["fleet", "nodes"]);
    assert!(
        nodes.contains("1 coverage gap") && nodes.contains("1 node with coverage gaps"),
        "{nodes}"
    );
    let explained = ann.run_ok(&["fleet", "explain", "gpu-1"]);
    for part in ["coverage gap", "GPU 1 at ", "gpu.power_w cannot be read", "farrier status"] {
        assert!(explained.contains(part), "{part}: {explained}");
    }

    // A verification has no result. It is no failure, so nothing is repaired.
    ann.run_ok(&["fleet", "verify", "gpu-1", "--level", "v1"]);
    let suspect = until_node(&ann, &agent, |node| !node["deferred"].is_null());
    assert_eq!(suspect["phase"], "suspect");
    assert_eq!(suspect["rationale"]["reason"]["code"], "verification-inconclusive");
    assert_eq!(suspect["deferred"]["unblocked_by"]["code"], "coverage");
    let ran = ann.run(&["fleet", "explain", "gpu-1"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("verification V1 (devices) has no result: "), "{}", ran.stdout);

    // The reading returns, and so does the node.
    agent_node.inject(&["clear"]);
    until_node(&ann, &agent, |node| node["phase"] == "in-service" && gap_count(node) == Some(0));
    let statuses: Vec<OrderStatus> = server
        .entries()
        .into_iter()
        .filter_map(|entry| match entry.event {
            Event::OrderStatusReported { status, .. } if status != OrderStatus::Accepted => {
                Some(status)
            }
            _ => None,
        })
        .collect();
    let has_no_result = |status: &OrderStatus| matches!(status, OrderStatus::Inconclusive { .. });
    assert!(statuses.iter().any(has_no_result), "{statuses:?}");
    assert!(matches!(statuses.last(), Some(OrderStatus::Done { .. })), "{statuses:?}");
    let is_out =
        |event: &Event| matches!(event, Event::PhaseChanged { to: NodePhase::Quarantined, .. });
    assert!(!server.has(is_out), "the node never left service");
    agent.stop();
    server.stop();
}

#[test]
fn a_lasting_gap_makes_the_node_suspect_under_the_policy_of_its_pool() {
    let agent_node = AgentNode::with_gpus(1);
    let (server, ann) = start_server(&agent_node);
    let policy = agent_node.text("policy.json");
    fs::write(&policy, r#"{"pools": {"train": {"coverage_gap_timeout_s": 1}}}"#).unwrap();
    ann.run_ok(&["policy", "set", "--yes", &policy]);
    let agent = agent_node.agent().ready();
    until_node(&ann, &agent, |node| node["phase"] == "in-service");
    agent_node.inject(&["error", "nvmlDeviceGetPowerUsage", "UNKNOWN"]);
    let suspect = until_node(&ann, &agent, |node| node["phase"] == "suspect");
    assert_eq!(suspect["rationale"]["reason"]["code"], "coverage-gap", "{suspect}");
    assert_eq!(suspect["rationale"]["unblocked_by"]["code"], "coverage");
    // An agent that has just started does not know its coverage, and the server keeps the gap.
    agent.stop();
    let agent = agent_node.agent();
    agent.until(|status| !status["server"]["connection"]["connected"].is_null());
    assert_eq!(ann.node("gpu-1")["phase"], "suspect");
    agent_node.inject(&["clear"]);
    until_node(&ann, &agent, |node| node["phase"] == "in-service");
    let reported: Vec<usize> = server
        .entries()
        .into_iter()
        .filter_map(|entry| match entry.event {
            Event::CoverageReported { coverage, .. } => Some(coverage.gaps.len()),
            _ => None,
        })
        .skip_while(|gaps| *gaps == 0)
        .collect();
    assert_eq!(reported, [1, 0], "only changes are logged");
    agent.stop();
    server.stop();
}
