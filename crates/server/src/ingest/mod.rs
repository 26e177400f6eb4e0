//! From what nodes say to what the log needs to hear.
//!
//! ```text
//! Up ─ bounded, decoded ─> session ─ compared with what the node said last ─> controller ─ admission::judge ─> log
//!                             │ heartbeats, repetitions: no further             └─> Ack
//!                             └─ SessionRegistry: who is connected, when each was last heard
//! ```

pub(crate) mod admission;
mod priority;
mod quota;
mod session;
mod session_registry;

pub(crate) use priority::ReportQueue;
pub use quota::ReportQuota;
pub(crate) use session::{OutboundMessage, SessionContext, expired, serve, unknown_node};
pub(crate) use session_registry::{DisconnectReason, SessionRegistry};
