//! `farrier bench` as a person runs it, without a GPU.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod launch;
mod page;
#[path = "../support/mod.rs"]
mod support;
mod train;
