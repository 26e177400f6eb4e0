//! Tests of a health monitor that hangs or panics. The agent must not show its last output as the
//! current state.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::crash::gpu_address;
use crate::world::{Agent, World};

/// Starts an agent, waits until it is healthy, and triggers a failpoint in the write of an Xid's
/// record.
fn agent_with_xid<'w>(world: &'w World, point: &str, before: impl FnOnce()) -> Agent<'w> {
    let agent = world.agent_with(|command| {
        command.env("FARRIER_CRASH_AT", point);
    });
    agent.until(|status| status["verdict"] == "healthy");
    before();
    let pci = gpu_address(world);
    let line = format!("NVRM: Xid (PCI:{pci}): 79, pid=7, GPU has fallen off the bus.");
    world.kernel_lines(std::iter::once(line));
    agent
}

#[test]
fn a_hung_health_monitor_is_reported_and_the_agent_can_be_stopped() {
    let world = World::of(1);
    let mut agent = agent_with_xid(&world, "written:hang", || ());
    // These are more lines than the channel of the health monitor holds.
    world.kernel_lines((0..3000).map(|turn| format!("eth{turn}: link becomes ready")));
    let is_monitor = |gap: &Value| gap["what"] == "monitor";
    let status =
        agent.until(|status| status["not_seen"].as_array().unwrap().iter().any(is_monitor));
    assert_eq!(status["verdict"], "unknown", "{status:#}");
    let ran = world.status_ran(&[]);
    assert!(ran.stdout.contains("has not published for "), "{}", ran.stdout);
    assert_eq!(ran.code, 1);
    assert_eq!(agent.get("/healthz").0, 503);
    // The reason contains the duration, so it changes every second.
    let why = |status: &Value| status["not_seen"][0]["why"].clone();
    agent.until(|later| why(later) != why(&status));
    agent.signal("-HUP");
    agent.until(|_| agent.log().contains("reloaded the configuration"));
    agent.signal("-TERM");
    assert!(agent.ended().success(), "{}", agent.log());
}

#[test]
fn a_job_gets_a_checkpoint_request_although_the_record_hangs() {
    let world = World::of(1);
    let mut stream = None;
    let agent = agent_with_xid(&world, "half-written:hang", || {
        stream = Some(UnixStream::connect(world.path("agent.sock")).unwrap());
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
    let world = World::of(1);
    let mut agent = agent_with_xid(&world, "written:panic", || ());
    assert_eq!(agent.ended().code(), Some(2), "{}", agent.log());
    assert!(agent.log().contains("the health monitor's thread has ended"), "{}", agent.log());
    let (status, code) = world.status();
    assert_eq!((&status["agent"], code), (&Value::Null, 1));
}
