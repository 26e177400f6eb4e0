//! The state machine of a change on simulated nodes: every fault in every state, and random
//! histories.
#![expect(clippy::disallowed_methods, reason = "a test may read files; the crate may not")]
#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod histories;
mod run;
mod scenario;
mod table;
mod test_node;
