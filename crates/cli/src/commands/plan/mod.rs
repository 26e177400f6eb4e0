//! `farrier plan`: does it fit, how fast, what bounds it, how long, what does it cost, and what if
//! nodes die?

mod advice;
mod train_output;
mod calibrate;
mod compare;
mod format;
mod goodput;
mod launch;
mod html_report;
mod request;
mod score;
mod search_args;
mod train;
mod value_parsers;

use clap::Subcommand;

use crate::commands::Outcome;
use crate::printer::Printer;

/// What to plan.
#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// One run: memory, speed with its doubt, bounds, time and cost; or the best split of it
    Train(Box<train::Args>),
    /// GPUs for a model: at equal numbers, equal money or equal time, with published runs beside
    Compare(Box<compare::Args>),
    /// Faults and checkpoints: interval, effective time, days, dollars, what a minute is worth
    Goodput(Box<goodput::Args>),
    /// How far estimates are from a table of published runs
    Score(score::Args),
    /// Measure products, memory and launches on this GPU, and rescale plans by it
    Calibrate(calibrate::Args),
}

pub(crate) fn run(command: &PlanCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        PlanCommand::Train(args) => train::run(args, printer),
        PlanCommand::Compare(args) => compare::run(args, printer),
        PlanCommand::Goodput(args) => goodput::run(args, printer),
        PlanCommand::Calibrate(args) => calibrate::run(args, printer),
        PlanCommand::Score(args) => score::run(args, printer),
    }
}
