//! What training a model needs, how fast it goes, what bounds it and what it costs.
//!
//! Pure: no clock, no file, no network. Closed formulas over fitted rates: one estimate takes
//! microseconds, so a search tries every split.
//!
//! ```text
//! config.json, name ─> Model ─┐
//! farrier-facts ─> Accelerator ─┼─> Run ─┬─> time::step(run, fitted)   seconds by phase
//! Layout, Precision ────────────┘        └─> ...
//! published rows ─> fit ─> Coefficients (data/planner/coefficients.toml)
//! ```

pub mod coefficients;
pub mod fit;
pub mod goodput;
pub mod gpu;
pub mod layout;
pub mod model;
pub mod precision;
pub mod published;
pub mod run;
pub mod time;
