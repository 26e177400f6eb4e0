//! Orders on nodes of a real Slurm: a controller and four `slurmd` on this host, with GPUs that are
//! plain files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../support/kill.rs"]
mod kill;
#[expect(dead_code, reason = "the tests of orders use all of it")]
#[path = "../support/orders.rs"]
mod orders;
#[path = "../support/server.rs"]
#[expect(dead_code, reason = "the tests of the server use all of it")]
mod server;
#[path = "../support/mod.rs"]
mod support;
#[expect(dead_code, reason = "the tests of the agent use all of it")]
#[path = "../agent/world.rs"]
mod world;

mod cluster;
mod drain;
mod fleet;
