//! From what nodes say to what the log needs to hear.
//!
//! ```text
//! Up ─ bounded, decoded ─> session ─ compared with what the node said last ─> brain ─ news::judge ─> log
//!                             │ heartbeats, repetitions: no further             └─> Ack
//!                             └─ Roster: who is connected, when each was last heard
//! ```

mod lanes;
pub(crate) mod news;
mod quota;
mod roster;
mod session;

pub(crate) use lanes::Lanes;
pub use quota::ReportQuota;
pub(crate) use roster::{Cut, Roster};
pub(crate) use session::{Desk, Told, expired, serve, stranger};
