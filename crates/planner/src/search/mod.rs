//! The best split of a run: every one that can be is tried.
//!
//! ```text
//! axes (what each number may be) ─> check ─> memory (P95 must fit) ─> step time ─> best of each kind
//! ```

mod axes;
mod quick;
mod report;

pub use axes::{Axes, reduce_bytes};
pub use quick::quick;
pub use report::{Other, Report, RuledOut, Summary, describe};

use serde::Serialize;

use crate::check;
use crate::estimate::Planner;
use crate::layout::Layout;
use crate::memory;
use crate::run::{Run, fuses_experts};

/// A split that fits, and how long its step takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Candidate {
    /// The split.
    pub layout: Layout,
    /// Its step.
    pub step_s: f64,
    /// What the fullest GPU needs with little doubt, GiB.
    pub p95_gib: f64,
}

/// Why a search finds nothing.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// No split of it can be run on the GPU.
    #[error("{why}")]
    NotOnThisGpu {
        /// Why not.
        why: String,
    },
    /// Nothing that was asked for can be run at all.
    #[error("no split of {gpus} GPUs is possible: {most}")]
    Impossible {
        /// So many there are.
        gpus: u32,
        /// What rules most of them out.
        most: String,
    },
    /// Whatever is possible does not fit.
    #[error(
        "`{model}` does not fit on {gpus} of `{gpu}`: the leanest split ({layout}) needs {p95_gib:.0} GiB of {capacity_gib:.0}"
    )]
    TooLarge {
        /// What was to be trained.
        model: String,
        /// On how many.
        gpus: u32,
        /// On what.
        gpu: String,
        /// The split that needs least.
        layout: String,
        /// What it needs.
        p95_gib: f64,
        /// What there is.
        capacity_gib: f64,
    },
}

/// Finds the fastest split of `run` over `gpus`. What `axes` fix is kept; the run's own layout gives
/// the rest of what is not searched.
pub fn search(planner: &Planner, run: &Run, gpus: u32, axes: &Axes) -> Result<Report, SearchError> {
    let capacity_gib = memory::usable_gib(&run.gpu);
    let mut tried = run.clone();
    let mut report = Report::new();
    check::precision(run).map_err(|why| SearchError::NotOnThisGpu { why: why.to_string() })?;
    for layout in axes.layouts(run, gpus) {
        tried.layout = layout;
        tried.stack = axes.stack_for(&layout, run.stack);
        tried.fused_experts = fuses_experts(&run.model, &run.gpu, tried.stack);
        if let Err(why) = check::check_on(&tried, gpus) {
            report.impossible(&why);
            continue;
        }
        let (_, p95_gib) = memory::worst(&tried);
        if p95_gib > capacity_gib {
            report.too_large(layout, p95_gib);
            continue;
        }
        report.fits(Candidate { layout, step_s: planner.corrected_step_s(&tried), p95_gib });
    }
    report.finish(run, gpus, capacity_gib)
}
