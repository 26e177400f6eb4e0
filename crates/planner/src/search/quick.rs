//! A quick search for callers that try many numbers of GPUs. It compares configs by the fitted
//! model, without the residual correction.

use super::{Breadth, Candidate, Constraints, check_searchable};
use crate::check;
use crate::estimate::Planner;
use crate::memory;
use crate::run::TrainingRun;

/// Finds the fastest parallelism config of `run` on `gpus` GPUs by the fitted model. Only the step
/// time of the result has the residual correction. Takes about a tenth of the time of
/// [`super::search`], which may find a config that is a few per cent faster.
pub fn quick(
    planner: &Planner,
    run: &TrainingRun,
    gpus: u32,
    constraints: &Constraints,
) -> Option<Candidate> {
    let capacity_gib = memory::usable_gib(&run.gpu);
    let mut candidate = run.clone();
    check_searchable(run, gpus, constraints).ok()?;
    let mut fastest = |breadth: Breadth| {
        let mut best: Option<Candidate> = None;
        for parallelism in constraints.configs(run, gpus, breadth) {
            constraints.apply(&mut candidate, parallelism);
            if check::check_on_gpus(&candidate, gpus).is_err() {
                continue;
            }
            let step_s = planner.step_s(&candidate);
            if best.is_some_and(|best| step_s >= best.step_s) {
                continue;
            }
            let (_, p95_gib) = memory::peak_gib(&candidate);
            if p95_gib <= capacity_gib {
                best = Some(Candidate { parallelism, step_s, p95_gib });
            }
        }
        best
    };
    let best = fastest(Breadth::Common).or_else(|| fastest(Breadth::Exhaustive))?;
    constraints.apply(&mut candidate, best.parallelism);
    Some(Candidate { step_s: planner.corrected_step_s(&candidate), ..best })
}
