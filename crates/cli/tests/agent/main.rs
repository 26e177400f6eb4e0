//! `farrier agent` and `farrier status` on a simulated node: the whole program, its faults and how
//! it exits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
mod support;

mod brain;
mod config;
mod crash;
mod faults;
mod jobs;
mod privilege;
mod python;
mod world;
