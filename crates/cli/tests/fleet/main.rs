//! `farrier login`, `farrier fleet` and the maintenance commands for the log, against a running
//! server.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

mod commands;
mod connection;
mod isolation;
mod keep;
mod people;
mod schemathesis;
#[path = "../support/mod.rs"]
mod support;
mod town;
