//! Prints launch scripts.

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

/// Launcher of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LauncherArg {
    /// A script for each node
    Torchrun,
    /// A Slurm batch script
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

/// The fastest config that the framework can launch. Returns `fastest` if no config can be
/// launched, or if the obstacle is something other than the parallelism config.
pub(super) fn fastest_launchable(
    planner: &Planner,
    fastest: TrainingRun,
    search_report: &SearchReport,
    constraints: &Constraints,
    launch: LauncherArg,
) -> TrainingRun {
    let unsupported =
        |run: &TrainingRun| match emit(&plan(planner, run, None, None), run, launch.launcher()) {
            Err(err @ EmitError::Setting { .. }) => Some(err),
            _ => None,
        };
    let Some(reason) = unsupported(&fastest) else { return fastest };
    let mut run = fastest.clone();
    for candidate in search_report.fitting() {
        constraints.apply(&mut run, candidate.parallelism);
        if unsupported(&run).is_none() {
            let slower = 100.0 * (candidate.step_s / search_report.best[0].step_s - 1.0);
            failure::warn(&anyhow::anyhow!(
                "the fastest config cannot be launched ({reason}); emitting one with a {slower:.1} % longer step"
            ));
            return run;
        }
    }
    fastest
}

/// Prints the launch script of a planned run.
pub(super) fn print_script(
    answer: &TrainAnswer,
    constraints: &Constraints,
    launch: LauncherArg,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let (plan, run) = (&answer.plan, &answer.run);
    if !plan.fits && !plan.tight {
        let message = format!("`{}` does not fit with this parallelism config", plan.model.name);
        let hint = advice::search_hint(run, constraints, plan.gpus);
        failure::report(&advice::hinted(message, hint));
        return Ok(Outcome::Finding);
    }
    let text = emit(plan, run, launch.launcher())?;
    for line in text.lines() {
        printer.line(line)?;
    }
    Ok(Outcome::finding_if(!plan.fits))
}
