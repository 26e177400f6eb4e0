//! Finds the fastest parallelism config of a run. Enumerates candidates and estimates each of them.
//!
//! ```text
//! space (candidate values per axis) ─> check ─> memory (P95 must fit) ─> step time ─> best configs
//! ```

mod quick;
mod report;
mod space;

pub use quick::quick;
pub use report::{Alternative, RuledOut, SearchReport, SearchSummary, describe};
pub use space::Constraints;
pub(crate) use space::MAX_STAGES;

use serde::Serialize;

use self::space::Breadth;
use crate::check::{self, ImpossibleRun};
use crate::estimate::Planner;
use crate::memory;
use crate::parallelism::ParallelConfig;
use crate::run::TrainingRun;

/// A parallelism config that fits, and its step time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Candidate {
    #[serde(rename = "layout")]
    pub parallelism: ParallelConfig,
    pub step_s: f64,
    /// P95 memory of the fullest GPU.
    pub p95_gib: f64,
}

/// Why a search finds no config.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The GPU does not support the precision of the run, whatever the config.
    #[error("{reason}")]
    NotOnThisGpu { reason: String },
    /// A count is 0, there is no candidate, or every candidate fails a check.
    #[error("no parallelism config for {gpus} GPUs is possible: {reason}")]
    Impossible { gpus: u32, reason: String },
    /// No possible config fits into memory.
    #[error(
        "`{model}` does not fit on {gpus} × `{gpu}`: the leanest parallelism config ({parallelism}) needs {p95_gib:.0} GiB of {capacity_gib:.0}"
    )]
    TooLarge {
        model: String,
        gpus: u32,
        gpu: String,
        /// The config with the least memory.
        parallelism: String,
        p95_gib: f64,
        capacity_gib: f64,
    },
}

/// Finds the fastest parallelism config of `run` on `gpus` GPUs.
///
/// `constraints` pins some values, and the search varies the others. Settings that are neither
/// pinned nor searched come from `run`. If no common config fits, the search tries all configs.
pub fn search(
    planner: &Planner,
    run: &TrainingRun,
    gpus: u32,
    constraints: &Constraints,
) -> Result<SearchReport, SearchError> {
    let common = evaluate(planner, run, gpus, constraints, Breadth::Common)?;
    let mut report = if common.fit > 0 {
        common
    } else {
        evaluate(planner, run, gpus, constraints, Breadth::Exhaustive)?
    };
    report.finish(run, gpus, constraints)?;
    for alternative in
        report.alternatives.iter_mut().filter(|alternative| alternative.slower.is_none())
    {
        // No common config with this value fits. An uncommon one may.
        let pinned = alternative.value.pin(constraints);
        let Ok(all) = evaluate(planner, run, gpus, &pinned, Breadth::Exhaustive) else { continue };
        if let Some(found) = all.fastest() {
            alternative.slower = Some(found.step_s / report.best[0].step_s - 1.0);
            alternative.needs_gib = None;
        } else {
            alternative.needs_gib =
                all.leanest().map(|(_, p95_gib)| p95_gib).or(alternative.needs_gib);
        }
    }
    Ok(report)
}

/// Whether any parallelism config of `run` on `gpus` GPUs fits. Stops at the first config that
/// fits.
pub fn fits(run: &TrainingRun, gpus: u32, constraints: &Constraints) -> bool {
    let capacity_gib = memory::usable_gib(&run.gpu);
    let mut candidate = run.clone();
    check_searchable(run, gpus, constraints).is_ok()
        && constraints.configs(run, gpus, Breadth::Exhaustive).into_iter().any(|parallelism| {
            constraints.apply(&mut candidate, parallelism);
            check::check_on_gpus(&candidate, gpus).is_ok()
                && memory::peak_gib(&candidate).1 <= capacity_gib
        })
}

/// Checks the inputs that are invalid for every parallelism config: a count of 0, or a precision
/// that the GPU does not support.
fn check_searchable(
    run: &TrainingRun,
    gpus: u32,
    constraints: &Constraints,
) -> Result<(), SearchError> {
    let counts = [("the number of GPUs", gpus)].into_iter().chain(constraints.fixed_counts());
    if let Some((what, _)) = counts.into_iter().find(|(_, number)| *number == 0) {
        let reason = ImpossibleRun::Zero { what }.to_string();
        return Err(SearchError::Impossible { gpus, reason });
    }
    check::precision(run).map_err(|err| SearchError::NotOnThisGpu { reason: err.to_string() })
}

/// Checks every candidate, and estimates the memory and step time of those that pass.
fn evaluate(
    planner: &Planner,
    run: &TrainingRun,
    gpus: u32,
    constraints: &Constraints,
    breadth: Breadth,
) -> Result<SearchReport, SearchError> {
    check_searchable(run, gpus, constraints)?;
    let capacity_gib = memory::usable_gib(&run.gpu);
    let mut candidate = run.clone();
    let mut report = SearchReport::new(capacity_gib);
    for parallelism in constraints.configs(run, gpus, breadth) {
        constraints.apply(&mut candidate, parallelism);
        if let Err(err) = check::check_on_gpus(&candidate, gpus) {
            report.add_impossible(&err);
            continue;
        }
        let (_, p95_gib) = memory::peak_gib(&candidate);
        if p95_gib > capacity_gib {
            report.add_oversized(parallelism, p95_gib);
            continue;
        }
        report.add_fitting(Candidate {
            parallelism,
            step_s: planner.corrected_step_s(&candidate),
            p95_gib,
        });
    }
    Ok(report)
}

#[cfg(test)]
mod tests;
