//! Tests of a health monitor that hangs or panics. The agent must not show its last output as the
//! current state.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::agent_node::{Agent, AgentNode};
use crate::crash::gpu_address;

/// Starts an agent, waits until it is healthy, and triggers a failpoint in the write of an Xid's
/// record.
fn agent_with_xid<'w>(agent_node: &'w AgentNode, point: &str, before: impl FnOnce()) -> Agent<'w> {
    let agent = agent_node.agent_with(|command| {
        command.env("FARRIER_CRASH_AT", point);
    });
    agent.until(|status| status["verdict"] == "healthy");
    before();
    let pci = gpu_address(agent_node);
    let line = format!("NVRM: Xid (PCI:{pci}): 79, pid=7, GPU has fallen off the bus.");
    agent_node.kernel_lines(std::iter::once(line));
    agent
}

#[test]
fn a_hung_health_monitor_is_reported_and_the_agent_can_be_stopped() {
    let agent_node = AgentNode::with_gpus(1);
    let mut agent = agent_with_xid(&agent_node, "written:hang", || ());
    // These are more lines than the channel of the health monitor holds.
    agent_node.kernel_lines((0..3000).map(|turn| format!("eth{turn}: link becomes ready")));
    let is_monitor = |gap: &Value| gap["source"] == "monitor";
    let status =
        agent.until(|status| status["coverage_gaps"].as_array().unwrap().iter().any(is_monitor));
    assert_eq!(status["verdict"], "unknown", "{status:#}");
    let ran = agent_node.status_ran(&[]);
    assert!(ran.stdout.contains("has not published for "), "{}", ran.stdout);
    assert_eq!(ran.code, 1);
    assert_eq!(agent.get("/healthz").0, 503);
    // The reason contains the duration, so it changes every second.
    let why = |status: &Value| status["coverage_gaps"][0]["reason"].clone();
    agent.until(|later| why(later) != why(&status));
    agent.signal("-HUP");
    agent.until(|_| agent.log().contains("reloaded the configuration"));
    agent.signal("-TERM");
    assert!(agent.wait_for_exit().success(), "{}", agent.log());
}

#[test]
fn a_job_gets_a_checkpoint_request_although_the_record_hangs() {
    let agent_node = AgentNode::with_gpus(1);
    let mut stream = None;
    let agent = agent_with_xid(&agent_node, "half-written:hang", || {
        stream = Some(UnixStream::connect(agent_node.path("agent.sock")).unwrap());
        let hello = b"{\"type\":\"hello\",\"v\":1,\"job\":\"4711\"}\n";
        stream.as_mut().unwrap().write_all(hello).unwrap();
    });
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(crate::support::wait::TEST_TIMEOUT)).unwrap();
    let lines: Vec<String> = BufReader::new(stream).lines().take(2).map(Result::unwrap).collect();
    assert!(lines[1].contains("checkpoint_wanted") && lines[1].contains("Xid 79"), "{lines:?}");
    drop(agent);
}

#[test]
fn an_agent_exits_when_its_health_monitor_panics() {
    let agent_node = AgentNode::with_gpus(1);
    let mut agent = agent_with_xid(&agent_node, "written:panic", || ());
    assert_eq!(agent.wait_for_exit().code(), Some(2), "{}", agent.log());
    assert!(agent.log().contains("the health monitor's thread has ended"), "{}", agent.log());
    let (status, code) = agent_node.status();
    assert_eq!((&status["agent"], code), (&Value::Null, 1));
}
