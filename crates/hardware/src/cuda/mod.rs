//! What it costs to give a GPU work: CUDA's driver library, loaded at run time, and only when asked.
//!
//! ```text
//! library::present ─ libcuda is there and new enough ─> launch::measure ─ one stream, one kernel ─> LaunchTimes
//! ```
//!
//! Nothing is compiled when this is built, nor when it runs: the kernel is PTX, which the driver translates.
//! A call into a wedged driver does not return. Unlike NVML's, these calls are made for a person who waits.

mod error;
mod launch;
mod library;

pub use error::CudaError;
pub use launch::{LaunchPlan, LaunchTimes, Timed, measure};
