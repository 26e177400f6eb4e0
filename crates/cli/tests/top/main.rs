//! `farrier top` as a person runs it: on a terminal, in a pipe, from NVML, an agent and a server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
mod support;

mod fleet;
mod live;
mod once;
mod terminal;
#[allow(dead_code, reason = "tests of the fleet use the rest of it")]
#[path = "../fleet/town.rs"]
mod town;
mod world;
