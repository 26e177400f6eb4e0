//! `farrier simulate`, seen by the clients that people have: nvidia-ml-py, nvitop and gpustat, unchanged.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../support/mod.rs"]
mod support;

mod check;
mod clients;
mod clock;
mod command;
mod diag;
mod faults;
mod host;
mod test_node;
mod transcript;
