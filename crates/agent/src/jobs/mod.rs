//! The job socket: receives steps, phases and out-of-memory reports, and sends checkpoint requests.
//!
//! ```text
//! job ─ line-JSON ─> connection (bounded line, rate, errors) ─> JobRegistry ─> status, metrics
//!     <─ checkpoint_wanted ─ outbox (bounded) <─ JobRegistry <─ finding that ends work
//! ```
//!
//! No client can delay another client, or make the memory of the agent grow without limit.

mod client;
mod connection;
mod job;
mod message_error;
pub mod protocol;
mod registry;
mod server;

pub use protocol::{JobState, RankStep};
pub use registry::{CLIENTS_MAX, JOBS_MAX, JobRegistry};
pub use server::{SocketError, StatusProvider, bind, remove, run};

#[cfg(test)]
mod tests;
