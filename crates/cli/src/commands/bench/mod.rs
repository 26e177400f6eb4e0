//! `farrier bench`: benchmarks on this machine's GPU, with medians and ranges.

mod launch;
mod train;

use super::Outcome;
use crate::printer::Printer;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure kernel launches, CUDA graphs, synchronisation and small copies
    Launch(launch::Args),
    /// Benchmark training steps before and after: throughput, launches, memory, cost
    Train(Box<train::Args>),
}

pub(crate) fn run(command: &BenchCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        BenchCommand::Launch(args) => launch::run(args, printer),
        BenchCommand::Train(args) => train::run(args, printer),
    }
}
