//! The fleet's server.
//!
//! ```text
//! agents ─ TLS ─> serve ─> agents (gRPC) ─> ingest::session ─ only news ─> brain ─> core::Core::commit ─┬─ apply, decide (farrier-fleet, pure)
//!                            │ enrolment        ^ order, acknowledgement     │  bounded channel,          └─ log::Log::append ─> on disk
//!                         access (tokens,       └──────── ingest::Roster <───┘  group commit
//!                         certificates)
//! ```
//!
//! People and programs come by the same port: [`rest`]. Whoever wants to hear of what happens reads the log as it grows ([`follow::Tail`]). Entry point: [`run::run`]. One thread owns the [`core::Core`]. What it answers for is on disk before anybody hears of it.
//! Everything else runs on tokio, and a node's stream is served where it is accepted, beside all others.

pub mod access;
mod agents;
mod artifacts;
mod audit;
mod clock;
pub mod controller;
mod counters;
pub mod follow;
mod ingest;
mod last_ran;
pub mod log;
mod renewals;
pub mod rest;
pub mod run;
mod serve;
pub mod served;
mod space;
pub mod state_machine;
