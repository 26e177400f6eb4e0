//! The fleet server: the control plane.
//!
//! ```text
//! agents ─ TLS ─> serve ─> agents (gRPC) ─> ingest::session ─ new events ─> controller
//!                  │          │ enrolment       ^ orders, acks               │ bounded queue,
//!                  │          v                 │                            │ group commit
//!                  │       access (tokens,      └─ ingest::SessionRegistry <─┤
//!                  │       certificates)                                     v
//!                  └─> rest <─ log_tail <─ log on disk <─ append ─ state_machine::commit
//!                                                             (apply, decide: farrier-fleet)
//! ```
//!
//! Entry point: [`run::run`]. One thread, the [`controller`], owns the
//! [`state_machine::StateMachine`]. The controller replies to an input only after the input is in
//! the log on disk. Everything else runs on tokio, with one task per connection. Users and programs
//! use the same port as agents ([`rest`]), and read the growing log through [`log_tail::LogTail`].

pub mod access;
pub mod advertised_url;
mod agents;
mod artifacts;
mod audit;
mod clock;
pub mod controller;
mod counters;
mod histogram;
mod ingest;
mod last_ran;
pub mod log;
pub mod log_tail;
pub mod notify;
pub mod policy_key;
mod renewals;
pub mod report;
pub mod rest;
pub mod run;
mod serve;
mod space;
pub mod state_machine;
