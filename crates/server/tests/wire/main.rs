//! Agents and the server over a real connection, in one process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod artifacts;
mod connection_limits;
mod damage;
mod load;
mod log_tail;
mod malformed;
mod orders;
mod quota;
mod reconnect;
mod resume;
mod test_server;
