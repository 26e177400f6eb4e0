//! Active tests of a GPU: which there are, what a healthy one reaches, and what a result comes to.
//!
//! ```text
//! Outcome (what a GPU did) ─┐
//! Baseline (data/diag)        ─┼─> evaluate() ─> TestVerdict: pass, degraded, fail or not run, each with why
//! History (of this card)   ─┘
//! ```
//!
//! A wrong result is a fault of the GPU, whatever the part. A slow one is told against two measures: what the part
//! reaches at least, and what this very card reached before.

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
pub use test::{Level, Outcome, Test, Unit};

#[cfg(test)]
mod tests;
