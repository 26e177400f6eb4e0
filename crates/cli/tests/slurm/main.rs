//! Orders on the nodes of a real Slurm cluster: a controller and four `slurmd` on this host. The
//! cluster's GPUs are plain files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints why")]

#[expect(dead_code, reason = "the agent tests use all of it")]
#[path = "../agent/agent_node.rs"]
mod agent_node;
#[path = "../support/kill.rs"]
mod kill;
#[expect(dead_code, reason = "the order tests use all of it")]
#[path = "../support/orders.rs"]
mod orders;
#[path = "../support/server.rs"]
#[expect(dead_code, reason = "the server tests use all of it")]
mod server;
#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod drain;
mod fleet;
