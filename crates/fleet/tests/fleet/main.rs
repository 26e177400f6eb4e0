//! The fleet's brain: what happens to nodes, decided by rules and held to promises.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod clock;
mod histories;
mod hostile;
mod logic_version;
mod quarantine;
mod recorded;
mod recorded_histories;
mod waits;
mod world;
