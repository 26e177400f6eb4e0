//! The node daemon.

pub mod config;
pub mod crash;
mod engine;
pub mod journal;
