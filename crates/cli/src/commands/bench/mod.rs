//! `farrier bench`: measurements on the GPU of this machine, with medians and ranges.

mod launch;
mod train;

use super::Outcome;
use crate::printer::Printer;

/// What is measured.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// What it costs to give the GPU work: launches, graphs, waits, small copies
    Launch(launch::Args),
    /// Training steps before and after: throughput, launches, memory, cost
    Train(Box<train::Args>),
}

pub(crate) fn run(command: &BenchCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        BenchCommand::Launch(args) => launch::run(args, printer),
        BenchCommand::Train(args) => train::run(args, printer),
    }
}
