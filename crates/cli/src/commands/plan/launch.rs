//! The file that starts a planned run.

use clap::ValueEnum;
use farrier_planner::Planner;
use farrier_planner::emit::{EmitError, Launcher, emit};
use farrier_planner::plan::plan;
use farrier_planner::run::TrainingRun;
use farrier_planner::search::{Constraints, SearchReport};

use super::advice;
use super::train::TrainAnswer;
use crate::commands::Outcome;
use crate::failure;
use crate::printer::Printer;

/// What starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LauncherArg {
    /// A script for each node.
    Torchrun,
    /// A batch script of Slurm.
    Slurm,
}

impl LauncherArg {
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
    fastest: TrainingRun,
    search_report: &SearchReport,
    constraints: &Constraints,
    launch: LauncherArg,
) -> TrainingRun {
    let lacks = |run: &TrainingRun| match emit(&plan(planner, run, None, None), run, launch.launcher()) {
        Err(err @ EmitError::Setting { .. }) => Some(err),
        _ => None,
    };
    let Some(why) = lacks(&fastest) else { return fastest };
    let mut run = fastest.clone();
    for candidate in search_report.fitting() {
        constraints.apply(&mut run, candidate.parallelism);
        if lacks(&run).is_none() {
            let slower = 100.0 * (candidate.step_s / search_report.best[0].step_s - 1.0);
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
    answer: &TrainAnswer,
    constraints: &Constraints,
    launch: LauncherArg,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let (plan, run) = (&answer.plan, &answer.run);
    if !plan.fits && !plan.tight {
        let message = format!("`{}` does not fit in this split", plan.model.name);
        let hint = advice::of_search(run, constraints, plan.gpus);
        failure::report(&advice::hinted(message, hint));
        return Ok(Outcome::Finding);
    }
    let text = emit(plan, run, launch.launcher())?;
    for line in text.lines() {
        printer.line(line)?;
    }
    Ok(Outcome::finding_if(!plan.fits))
}
