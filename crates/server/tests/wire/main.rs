//! Agents and the server over the real wire, in one process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod artifacts;
mod damage;
mod door;
mod flood;
mod follow;
mod herd;
mod hostile;
mod orders;
mod reconnect;
mod resume;
mod world;
