//! The REST API over a real port: permissions, visibility and refusals.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod malformed;
mod matrix;
mod metrics;
mod notifications;
mod pagination;
mod policy;
mod protocol;
mod reads;
mod requests;
mod roles;
mod stream;
mod test_fleet;
#[path = "../wire/test_server.rs"]
#[allow(dead_code, reason = "the agents' tests use the rest")]
mod test_server;
mod unread_answers;
