//! From what nodes say to what the log needs to hear.
//!
//! ```text
//! Up ─ bounded, decoded ─> session ─ compared with what the node said last ─> brain ─ admission::judge ─> log
//!                             │ heartbeats, repetitions: no further             └─> Ack
//!                             └─ Roster: who is connected, when each was last heard
//! ```

pub(crate) mod admission;
mod lanes;
mod quota;
mod session;
mod session_registry;

pub(crate) use lanes::NodeLanes;
pub use quota::ReportQuota;
pub(crate) use session::{SessionContext, Told, expired, serve, stranger};
pub(crate) use session_registry::{DisconnectReason, SessionRegistry};
