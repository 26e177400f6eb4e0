//! A brain that stands still or ends: nothing that it said before may pass for what is so now.

use serde_json::Value;

use crate::crash::gpu_address;
use crate::world::{Agent, World};

/// A node whose agent does this when it has written the record of an Xid.
fn agent_that<'w>(world: &'w World, what: &str) -> Agent<'w> {
    let agent = world.agent_with(|command| {
        command.env("FARRIER_CRASH_AT", format!("written:{what}"));
    });
    agent.until(|status| status["verdict"] == "healthy");
    let line =
        format!("NVRM: Xid (PCI:{}): 79, pid=7, GPU has fallen off the bus.", gpu_address(world));
    world.kernel_lines(std::iter::once(line));
    agent
}

#[test]
fn a_brain_that_stands_still_is_not_healthy_and_can_be_ended() {
    let world = World::of(1);
    let mut agent = agent_that(&world, "hang");
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
fn an_agent_whose_brain_has_ended_ends() {
    let world = World::of(1);
    let mut agent = agent_that(&world, "panic");
    assert_eq!(agent.ended().code(), Some(2), "{}", agent.log());
    assert!(agent.log().contains("the agent's brain has ended"), "{}", agent.log());
    let (status, code) = world.status();
    assert_eq!((&status["agent"], code), (&Value::Null, 1));
}
