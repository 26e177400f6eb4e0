//! The best split of a run: every one that can be is tried.
//!
//! ```text
//! axes (what each number may be) ─> check ─> memory (P95 must fit) ─> step time ─> best of each kind
//! ```

mod axes;
mod quick;
mod report;

pub use axes::Axes;
pub(crate) use axes::MOST_STAGES;
pub use quick::quick;
pub use report::{Other, Report, RuledOut, Summary, describe};

use serde::Serialize;

use self::axes::Reach;
use crate::check::{self, ImpossibleRun};
use crate::estimate::Planner;
use crate::layout::Layout;
use crate::memory;
use crate::run::Run;

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
    #[error("no split of {gpus} GPUs is possible: {why}")]
    Impossible {
        /// So many there are.
        gpus: u32,
        /// What rules them out.
        why: String,
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
    let usual = tried(planner, run, gpus, axes, Reach::Usual)?;
    let mut report =
        if usual.fit > 0 { usual } else { tried(planner, run, gpus, axes, Reach::All)? };
    report.finish(run, gpus, axes)?;
    for other in report.others.iter_mut().filter(|other| other.slower.is_none()) {
        // What none of the usual splits does, an unusual one may.
        let fixed = other.value.fixed(axes);
        let Ok(all) = tried(planner, run, gpus, &fixed, Reach::All) else { continue };
        if let Some(found) = all.fastest() {
            other.slower = Some(found.step_s / report.best[0].step_s - 1.0);
            other.needs_gib = None;
        } else {
            other.needs_gib = all.leanest().map(|(_, p95_gib)| p95_gib).or(other.needs_gib);
        }
    }
    Ok(report)
}

/// Whether any split of `run` over `gpus` fits: a search that ends with the first that does.
pub fn fits(run: &Run, gpus: u32, axes: &Axes) -> bool {
    let capacity_gib = memory::usable_gib(&run.gpu);
    let mut tried = run.clone();
    possible(run, gpus, axes).is_ok()
        && axes.layouts(run, gpus, Reach::All).into_iter().any(|layout| {
            axes.lay_out(&mut tried, layout);
            check::check_on(&tried, gpus).is_ok() && memory::worst(&tried).1 <= capacity_gib
        })
}

/// Whether there is anything to try.
fn possible(run: &Run, gpus: u32, axes: &Axes) -> Result<(), SearchError> {
    let zero = [("the number of GPUs", gpus)].into_iter().chain(axes.given());
    if let Some((what, _)) = zero.into_iter().find(|(_, number)| *number == 0) {
        let why = ImpossibleRun::Zero { what }.to_string();
        return Err(SearchError::Impossible { gpus, why });
    }
    check::precision(run).map_err(|why| SearchError::NotOnThisGpu { why: why.to_string() })
}

fn tried(
    planner: &Planner,
    run: &Run,
    gpus: u32,
    axes: &Axes,
    reach: Reach,
) -> Result<Report, SearchError> {
    possible(run, gpus, axes)?;
    let capacity_gib = memory::usable_gib(&run.gpu);
    let mut tried = run.clone();
    let mut report = Report::new(capacity_gib);
    for layout in axes.layouts(run, gpus, reach) {
        axes.lay_out(&mut tried, layout);
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
    Ok(report)
}

#[cfg(test)]
mod tests;
