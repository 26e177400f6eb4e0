//! What is wrong with a node and what to do about it: a synchronous function of values.
//!
//! ```text
//! Batch (samples, kernel events, checks) ─┐
//! Rules (data) ───────────────────────────┼─ health::Engine::observe ─> Changes ─> findings
//! Moment (steady and wall time) ──────────┘
//! ```
//!
//! Nothing here reads a clock, a file or the network: the agent runs the engine on what its collectors
//! read, a test on what a simulated node shows, a replay on what was kept.

pub mod fleet;
pub mod health;
