//! The file that starts a planned run.

use clap::ValueEnum;
use farrier_planner::Planner;
use farrier_planner::emit::{EmitError, Launcher, emit};
use farrier_planner::plan::plan;
use farrier_planner::run::Run;
use farrier_planner::search::{Axes, Report};

use super::advice;
use super::train::Answer;
use crate::commands::Outcome;
use crate::failure;
use crate::printer::Printer;

/// What starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Launch {
    /// A script for each node.
    Torchrun,
    /// A batch script of Slurm.
    Slurm,
}

impl Launch {
    fn launcher(self) -> Launcher {
        match self {
            Self::Torchrun => Launcher::Torchrun,
            Self::Slurm => Launcher::Slurm,
        }
    }
}

/// The fastest of the splits found that the program has flags for; the fastest of all where that is
/// not a matter of the split.
pub(super) fn startable(
    planner: &Planner,
    fastest: Run,
    found: &Report,
    axes: &Axes,
    launch: Launch,
) -> Run {
    let lacks = |run: &Run| match emit(&plan(planner, run, None, None), run, launch.launcher()) {
        Err(err @ EmitError::Setting { .. }) => Some(err),
        _ => None,
    };
    let Some(why) = lacks(&fastest) else { return fastest };
    let mut run = fastest.clone();
    for candidate in found.fitting() {
        axes.lay_out(&mut run, candidate.layout);
        if lacks(&run).is_none() {
            let slower = 100.0 * (candidate.step_s / found.best[0].step_s - 1.0);
            failure::warn(&anyhow::anyhow!(
                "the fastest split cannot be written ({why}); this one takes {slower:.1} % longer"
            ));
            return run;
        }
    }
    fastest
}

/// Prints the file that starts a planned run.
pub(super) fn file(
    answer: &Answer,
    axes: &Axes,
    launch: Launch,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let (plan, run) = (&answer.plan, &answer.run);
    if !plan.fits && !plan.tight {
        let message = format!("`{}` does not fit in this split", plan.model.name);
        let hint = advice::of_search(run, axes, plan.gpus);
        failure::report(&advice::hinted(message, hint));
        return Ok(Outcome::Finding);
    }
    let text = emit(plan, run, launch.launcher())?;
    for line in text.lines() {
        printer.line(line)?;
    }
    Ok(Outcome::finding_if(!plan.fits))
}
