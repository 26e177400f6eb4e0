//! `farrier tune` on a simulated node, with the node's own NVML library and the files below its
//! root.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints why")]

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
