//! Orders on a simulated node, with the real binary. The tests execute orders, kill the executor at
//! each step, and resume.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints why")]

#[expect(dead_code, reason = "the agent's tests use the rest")]
#[path = "../agent/agent_node.rs"]
mod agent_node;
#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/orders.rs"]
mod orders;
#[path = "../support/mod.rs"]
mod support;

mod agent;
mod crash;
mod lifecycle;
mod logs;
