//! What people and programs ask of the server over its real port: who may what, what is seen, what is refused, and how.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod asks;
mod follow;
mod hostile;
mod matrix;
mod office;
mod pages;
mod protocol;
mod reads;
mod roles;
mod unread;
#[path = "../wire/world.rs"]
#[allow(dead_code, reason = "the agents' tests use the rest")]
mod world;
