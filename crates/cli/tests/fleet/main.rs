//! `farrier login`, `farrier fleet` and the maintenance commands for the log, against a running
//! server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a skipped test prints why")]

mod commands;
mod connection;
mod isolation;
mod log_maintenance;
mod many_nodes;
mod schemathesis;
#[path = "../support/mod.rs"]
mod support;
mod test_fleet;
mod users;
