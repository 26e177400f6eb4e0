//! The best split by the formulas alone, for those who try many numbers of GPUs.

use super::{Axes, Candidate, Reach, possible};
use crate::check;
use crate::estimate::Planner;
use crate::memory;
use crate::run::Run;

/// The fastest split of `run` over `gpus` by the formulas alone: neighbours are asked about it, and
/// not about the others. Some tenth of the work of [`super::search`], which may find a split that is
/// faster by a few per cent.
pub fn quick(planner: &Planner, run: &Run, gpus: u32, axes: &Axes) -> Option<Candidate> {
    let capacity_gib = memory::usable_gib(&run.gpu);
    let mut tried = run.clone();
    possible(run, gpus, axes).ok()?;
    let mut fastest = |reach: Reach| {
        let mut best: Option<Candidate> = None;
        for layout in axes.layouts(run, gpus, reach) {
            axes.lay_out(&mut tried, layout);
            if check::check_on(&tried, gpus).is_err() {
                continue;
            }
            let step_s = planner.step_s(&tried);
            if best.is_some_and(|best| step_s >= best.step_s) {
                continue;
            }
            let (_, p95_gib) = memory::worst(&tried);
            if p95_gib <= capacity_gib {
                best = Some(Candidate { layout, step_s, p95_gib });
            }
        }
        best
    };
    let best = fastest(Reach::Usual).or_else(|| fastest(Reach::All))?;
    axes.lay_out(&mut tried, best.layout);
    Some(Candidate { step_s: planner.corrected_step_s(&tried), ..best })
}
