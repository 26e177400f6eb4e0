//! Ingest: turns messages from nodes into log events.
//!
//! ```text
//! AgentMessage ─ limits, decode ─> session ─ changes only ─> controller ─ admission ─> log
//!                                     │                        └─> Ack
//!                                     ├─ heartbeats and repetitions stop here
//!                                     └─ SessionRegistry: open sessions, and when nodes were seen
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
