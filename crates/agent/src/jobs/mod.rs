//! The socket for jobs: steps, phases, lost memory; and word to them that a checkpoint is wanted.
//!
//! ```text
//! job ─ line-JSON ─> connection (bounded line, rate, errors) ─> Board ─> status, metrics
//!     <─ checkpoint_wanted ─ outbox (bounded) <─ Board <─ finding that ends work (brain)
//! ```
//!
//! Nothing that a client does or leaves undone makes another wait, or lets memory grow.

mod client;
mod connection;
mod job;
mod message_error;
pub mod protocol;
mod registry;
mod server;

pub use protocol::{JobState, RankStep};
pub use registry::{CLIENTS_MAX, JOBS_MAX, JobRegistry};
pub use server::{Answers, SocketError, bind, remove, run};

#[cfg(test)]
mod tests;
