//! Search flags of `farrier plan train` and `farrier plan goodput`.

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
pub(super) struct SearchArgs {
    /// Search for the best parallelism config (see docs/plan.md for the search space); given values
    /// are kept
    #[arg(long)]
    pub(super) search: bool,
    /// Criterion to choose among several GPU counts: throughput, cost per token, or tokens per
    /// dollar including failures. For each count the fastest config is used
    #[arg(long = "for", value_name = "GOAL", default_value = "speed", requires = "search")]
    pub(super) goal: SearchGoal,
}

/// What to optimize across GPU counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SearchGoal {
    /// Most tokens per second
    Speed,
    /// Lowest cost per token
    Cost,
    /// Most tokens per dollar, including failures and checkpoints
    Goodput,
}
