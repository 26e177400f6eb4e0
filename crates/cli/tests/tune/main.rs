//! `farrier tune` on a simulated node: NVML from its own library, files below its root.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod faults;
mod generated;
mod lifecycle;
mod output;
mod page;
mod simulated_node;
mod terminal;
