//! `farrier login`, `farrier fleet` and the server's care of its log, against a server that runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod commands;
mod keep;
mod people;
mod schemathesis;
#[path = "../support/mod.rs"]
mod support;
mod town;
