//! `farrier probe watch` on simulated nodes: the readings of each tier, and NVML faults.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints measurements"
)]

mod faults;
#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;
#[path = "../simulate/test_node.rs"]
#[allow(dead_code, reason = "the Python clients are for other tests")]
mod test_node;
mod tiers;
mod watch;
