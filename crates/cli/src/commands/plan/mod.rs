//! `farrier plan`: memory fit, speed, bottleneck, time, cost and goodput of training runs.

mod advice;
mod calibrate;
mod compare;
mod format;
mod goodput;
mod html_report;
mod launch;
mod request;
mod score;
mod search_args;
mod train;
mod train_output;
mod value_parsers;

use clap::Subcommand;

use crate::commands::Outcome;
use crate::printer::Printer;

#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Plan one run: memory, speed with uncertainty, bottleneck, time and cost; or search its best
    /// parallelism config
    Train(Box<train::Args>),
    /// Compare GPUs for a model at equal count, cost or time, and show published runs
    Compare(Box<compare::Args>),
    /// Failures and checkpoints: interval, ETTR, days, cost, value of faster recovery, spares
    Goodput(Box<goodput::Args>),
    /// Accuracy of estimates on a table of published runs
    Score(score::Args),
    /// Measure GEMM, memory and launch rates of this GPU and rescale plans by them
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
