//! Planner for LLM training: memory, speed with uncertainty, bottlenecks, time and cost.
//!
//! Pure: no clock, no files, no network. Every estimate is a closed form over fitted coefficients
//! and takes microseconds, so a search can evaluate thousands of parallelism configs.
//!
//! ```text
//! config.json, name ─> TransformerConfig ┐
//! farrier-facts ────> Accelerator ───────┼─> TrainingRun ─> check ─┬─> memory::estimate   GiB by stage
//! ParallelConfig, Precision ─────────────┘                         ├─> Planner::estimate  s by phase
//!                                                                  └─> plan::plan         everything
//! published runs ─> fit ─> Coefficients (data/planner/coefficients.toml)
//!                └─> uncertainty (Gaussian process on residuals); score: leave-group-out errors
//! search: best parallelism config; compare: GPUs for a model; emit: launch script for a plan
//! goodput: failures, checkpoint interval, ETTR, spare nodes
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
mod layer_assignment;
pub mod memory;
pub mod model;
pub mod parallelism;
pub mod plan;
pub mod precision;
pub mod published;
pub mod roofline;
pub mod run;
pub mod score;
pub mod search;
pub mod step_time;
pub mod uncertainty;

pub use estimate::{Estimate, Planner};
