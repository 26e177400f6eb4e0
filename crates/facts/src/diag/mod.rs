//! Active tests of a GPU: which there are, what a healthy one reaches, and what a result comes to.
//!
//! ```text
//! Outcome (what a GPU did) ─┐
//! Least (data/diag)        ─┼─> judge() ─> Verdict: pass, degraded, fail or not run, each with why
//! History (of this card)   ─┘
//! ```
//!
//! A wrong result is a fault of the GPU, whatever the part. A slow one is told against two measures: what the part
//! reaches at least, and what this very card reached before.

mod judge;
mod least;
mod remedy;
mod test;

pub use judge::{Grade, HISTORY_LEAST, History, OWN_LOSS, Verdict, judge, median};
pub use least::{DiagFacts, Least, LeastOf, Link, PeerWay, Place, Share};
pub use remedy::remedy;
pub use test::{Level, Outcome, Test, Unit};

#[cfg(test)]
mod tests;
