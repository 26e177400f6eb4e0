//! `farrier probe watch` on simulated nodes: what each tier says, and what is said when NVML does not.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking and says why"
)]

mod faults;
#[path = "../support/kill.rs"]
mod kill;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "what commands print is for other tests")]
mod support;
#[path = "../simulate/test_node.rs"]
#[allow(dead_code, reason = "the Python clients are for other tests")]
mod test_node;
mod tiers;
mod watch;
