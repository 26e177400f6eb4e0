//! The node daemon: detects faults, journals them, and reports them.
//!
//! ```text
//! thread nvml     child process for NVML, with deadline ─┐
//! thread kernel   /dev/kmsg ─────────────────────────────┤ bounded channel
//! thread host     /proc, /sys ───────────────────────────┼─> thread monitor ─ Engine
//! thread check    node check: files and NVML's values ───┘   ─> Journal (fsync) ─> Published, sink
//! thread uplink   journal ─> server, orders <─ server
//! thread hooks    journal ─> receivers of notifications
//! thread orders   OrderExecutor: orders.jsonl, actuator, scheduler ─> order status
//! tokio (main)    signals, HTTP, socket for jobs and `farrier status` <─ Published
//! ```
//!
//! Entry point: [`run::run`]. Decisions are made in farrier-fleet, and readings in
//! farrier-hardware. This crate connects the two and adds durability. See
//! `docs/adr/0007-the-agent.md`.

pub mod artifact;
pub mod collect;
pub mod config;
mod coverage;
pub mod failpoint;
pub mod hooks;
pub mod http;
pub mod jobs;
pub mod journal;
pub mod monitor;
mod notify;
pub mod orders;
pub mod run;
pub mod state;
pub mod status;
mod status_cache;
pub mod uplink;
