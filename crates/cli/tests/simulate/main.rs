//! `farrier simulate` with unmodified third-party clients: nvidia-ml-py, nvitop and gpustat.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints the reason")]

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
