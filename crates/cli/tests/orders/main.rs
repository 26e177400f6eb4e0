//! Orders on a simulated node, with the real binary: executed, killed at each step, and resumed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/orders.rs"]
mod orders;
#[path = "../support/mod.rs"]
mod support;
#[expect(dead_code, reason = "the tests of the agent use all of it")]
#[path = "../agent/world.rs"]
mod world;

mod agent;
mod crash;
mod logs;
mod way;
