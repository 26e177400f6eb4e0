//! The fleet's server.
//!
//! ```text
//! inputs (agents, people, schedulers, time) ─> core::Core::commit ─┬─ FleetState::apply, decide   (farrier-fleet, pure)
//!                                                                  └─ log::Log::append ─> on disk ─> whoever listens
//! ```
//!
//! One thread owns the [`core::Core`]. What it answers for is on disk before anybody hears of it.

pub mod core;
pub mod log;
