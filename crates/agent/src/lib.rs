//! The node daemon.

pub mod config;
mod engine;
