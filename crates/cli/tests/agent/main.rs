//! `farrier agent` and `farrier status` on a simulated node: the whole program, how it handles
//! faults, and how it exits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints why")]

#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
mod support;

mod agent_node;
mod config;
mod crash;
mod faults;
mod health_monitor;
mod hooks;
mod jobs;
mod privilege;
mod prometheus;
mod python;
