//! Rules about node health, and decisions about the fleet. All functions are synchronous functions
//! of values.
//!
//! ```text
//! Batch (samples, kernel events, checks) ─┐
//! Rules (data) ───────────────────────────┼─ health::Engine::observe ─> Changes ─> findings
//! Moment (steady and wall time) ──────────┘
//!
//! findings, order statuses, operator requests, time
//!     ─> fleet::Event ─> FleetState::apply ─> fleet::decide ─> Event (orders, phases, reasons)
//!
//! facts of one node, its record, time ─> change::next ─> ChangeDecision (driver or settings)
//! ```
//!
//! Nothing here reads a clock, a file or the network. The agent feeds the engine from its
//! collectors, tests feed it from a simulated node, and a replay feeds it from a recording. In the
//! same way, the server feeds the fleet module with events and the time.

pub mod change;
pub mod fleet;
pub mod health;
pub mod notify;
pub mod runbook;
