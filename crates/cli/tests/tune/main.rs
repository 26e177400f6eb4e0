//! `farrier tune` on a simulated node: NVML by its own library, files below its root.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod faults;
mod page;
mod way;
mod words;
mod world;
