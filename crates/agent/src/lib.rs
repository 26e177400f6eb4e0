//! The node daemon: sees what is wrong with the node, keeps it, and tells it.
//!
//! ```text
//! thread nvml     child that asks NVML, under a deadline ─┐
//! thread kernel   /dev/kmsg ──────────────────────────────┤ bounded channel
//! thread host     /proc, /sys ────────────────────────────┼─> brain ─ Engine ─> Journal (fsync) ─> Published ─┐
//! thread check    files of the whole node, judged ────────┘                                        sink file  │
//! thread uplink   journal ─> server, orders <─ server ────────────────────────────────────────────────────────┤
//! tokio (main)    signals, HTTP, socket for jobs and `farrier status` <───────────────────────────────────────┘
//! thread orders   Desk: orders.jsonl, hands, scheduler ──> answers for a server
//! ```
//!
//! Entry point: [`run::run`]. Decisions are farrier-fleet's, reads are farrier-hardware's; here is what holds
//! them together and survives. See `docs/adr/0007-the-agent.md`.

mod answers;
pub mod artifact;
pub mod collect;
pub mod config;
pub mod failpoint;
pub mod http;
pub mod jobs;
pub mod journal;
pub mod monitor;
mod notify;
pub mod orders;
pub mod run;
mod sight;
pub mod state;
pub mod status;
pub mod uplink;
