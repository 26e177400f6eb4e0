//! The fleet's server.
//!
//! ```text
//! agents ─ TLS ─> serve ─> agents (gRPC) ─> ingest::session ─ only news ─> controller ─> core::Core::commit ─┬─ apply, decide (farrier-fleet, pure)
//!                            │ enrolment        ^ order, acknowledgement     │  bounded channel,          └─ log::Log::append ─> on disk
//!                         access (tokens,       └──────── ingest::SessionRegistry <───┘  group commit
//!                         certificates)
//! ```
//!
//! People and programs come by the same port: [`rest`]. Whoever wants to hear of what happens reads the log as it grows ([`follow::LogTail`]). Entry point: [`run::run`]. One thread owns the [`core::Core`]. What it answers for is on disk before anybody hears of it.
//! Everything else runs on tokio, and a node's stream is served where it is accepted, beside all others.

pub mod access;
pub mod advertised_url;
mod agents;
mod artifacts;
mod audit;
mod clock;
pub mod controller;
mod counters;
mod ingest;
mod last_ran;
pub mod log;
pub mod log_tail;
mod renewals;
pub mod rest;
pub mod run;
mod serve;
mod space;
pub mod state_machine;
