//! What training a model needs, how fast it goes, what bounds it and what it costs.
//!
//! Pure: no clock, no file, no network. Closed formulas over fitted rates: one estimate takes
//! microseconds, so a search tries thousands of splits.
//!
//! ```text
//! config.json, name ─> Model ───┐
//! farrier-facts ─> Accelerator ─┼─> Run ─> check ─┬─> memory::of        GiB by stage and part
//! Layout, Precision ────────────┘                 ├─> Planner::estimate seconds by phase, bounds, doubt
//!                                                 └─> plan::plan        the whole answer
//! published rows ─> fit ─> Coefficients (data/planner/coefficients.toml); score: how far off they are
//! search: the best split of a run; compare: GPUs for a model; emit: a file that starts a planned run
//! ```

pub mod bound;
pub mod calibration;
pub mod check;
pub mod coefficients;
pub mod compare;
pub mod emit;
pub mod estimate;
pub mod fit;
pub mod flops;
pub mod goodput;
pub mod gpu;
pub mod layout;
pub mod local;
pub mod memory;
pub mod model;
mod pieces;
pub mod plan;
pub mod precision;
pub mod published;
pub mod roofline;
pub mod run;
pub mod score;
pub mod search;
pub mod time;

pub use estimate::{Estimate, Planner};
