//! Active GPU tests: the list of tests, baselines of healthy GPUs, and the evaluation of results.
//!
//! ```text
//! Outcome (test result)    ─┐
//! Baseline (data/diag)     ─┼─> evaluate() ─> TestVerdict: pass, degraded, fail or not run
//! History (of this GPU)    ─┘
//! ```
//!
//! A wrong result is always a GPU fault. A slow result is compared with the minimum for the SKU and
//! with earlier runs of the same GPU.

mod baseline;
mod evaluate;
mod remedy;
mod test;

pub use baseline::{
    Baseline, DiagFacts, GpuPlacement, MeasuredBaseline, PcieCapability, PeakShare, PeerPath,
};
pub use evaluate::{
    Grade, HISTORY_MIN_RUNS, History, REGRESSION_MARGIN, TestVerdict, evaluate, median,
};
pub use remedy::remedy;
pub use test::{Level, Test, TestOutcome, Unit};

#[cfg(test)]
mod tests;
