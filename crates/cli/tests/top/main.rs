//! End-to-end tests of `farrier top`: on a terminal, in a pipe, with NVML, an agent and a server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
mod support;

mod fleet;
mod live;
mod once;
mod simulated_node;
mod terminal;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../fleet/town.rs"]
mod town;
