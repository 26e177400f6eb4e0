//! End-to-end tests of `farrier bench`, without a GPU.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod launch;
mod page;
#[path = "../support/mod.rs"]
mod support;
mod train;
