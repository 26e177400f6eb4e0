//! A brain that stands still or ends: nothing that it said before may pass for what is so now.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::crash::gpu_address;
use crate::world::{Agent, World};

/// A healthy agent that meets its end, or something like it, at this point of writing the record of an Xid.
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
fn a_brain_that_stands_still_is_not_healthy_and_can_be_ended() {
    let world = World::of(1);
    let mut agent = agent_with_xid(&world, "written:hang", || ());
    // More than its channel holds.
    world.kernel_lines((0..3000).map(|turn| format!("eth{turn}: link becomes ready")));
    let still = |blind: &Value| blind["what"] == "brain";
    let status = agent.until(|status| status["not_seen"].as_array().unwrap().iter().any(still));
    assert_eq!(status["verdict"], "unknown", "{status:#}");
    let ran = world.status_ran(&[]);
    assert!(ran.stdout.contains("brain has stood still for "), "{}", ran.stdout);
    assert_eq!(ran.code, 1);
    assert_eq!(agent.get("/healthz").0, 503);
    // Each second another answer.
    let why = |status: &Value| status["not_seen"][0]["why"].clone();
    agent.until(|later| why(later) != why(&status));
    agent.signal("-HUP");
    agent.until(|_| agent.log().contains("the configuration was read again"));
    agent.signal("-TERM");
    assert!(agent.ended().success(), "{}", agent.log());
}

#[test]
fn a_job_hears_of_a_fault_whose_record_hangs() {
    let world = World::of(1);
    let mut stream = None;
    let agent = agent_with_xid(&world, "half-written:hang", || {
        stream = Some(UnixStream::connect(world.path("agent.sock")).unwrap());
        let hello = b"{\"type\":\"hello\",\"v\":1,\"job\":\"4711\"}\n";
        stream.as_mut().unwrap().write_all(hello).unwrap();
    });
    let stream = stream.unwrap();
    stream.set_read_timeout(Some(crate::support::wait::TEST_TIMEOUT)).unwrap();
    let said: Vec<String> = BufReader::new(stream).lines().take(2).map(Result::unwrap).collect();
    assert!(said[1].contains("checkpoint_wanted") && said[1].contains("Xid 79"), "{said:?}");
    drop(agent);
}

#[test]
fn an_agent_whose_brain_has_ended_ends() {
    let world = World::of(1);
    let mut agent = agent_with_xid(&world, "written:panic", || ());
    assert_eq!(agent.ended().code(), Some(2), "{}", agent.log());
    assert!(agent.log().contains("the agent's brain has ended"), "{}", agent.log());
    let (status, code) = world.status();
    assert_eq!((&status["agent"], code), (&Value::Null, 1));
}
