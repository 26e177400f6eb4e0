//! What is wrong with a node, and what to do with a fleet of them: synchronous functions of values.
//!
//! ```text
//! Batch (samples, kernel events, checks) ─┐
//! Rules (data) ───────────────────────────┼─ health::Engine::observe ─> Changes ─> findings
//! Moment (steady and wall time) ──────────┘
//!
//! findings, answers, people, time ─> fleet::Event ─> FleetState::apply ─> fleet::decide ─> Event (orders, standings, reasons)
//! ```
//!
//! Nothing here reads a clock, a file or the network: the agent runs the engine on what its collectors
//! read, a test on what a simulated node shows, a replay on what was kept. The server does the same with the fleet.

pub mod fleet;
pub mod health;
