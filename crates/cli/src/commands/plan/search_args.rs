//! A search as flags: of `farrier plan train` and of `farrier plan goodput`.

use clap::ValueEnum;

/// Whether to search, and for what.
#[derive(Debug, clap::Args)]
pub(super) struct SearchArgs {
    /// Try splits and take the best (docs/plan.md says which); what is given stays as it is
    #[arg(long)]
    pub(super) search: bool,
    /// What is best of several numbers of GPUs: most tokens a second, least cost, or most tokens for the money with
    /// faults counted; the split of each number is the fastest
    #[arg(long = "for", value_name = "GOAL", default_value = "speed", requires = "search")]
    pub(super) goal: SearchGoal,
}

/// What a search is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SearchGoal {
    /// Most tokens a second.
    Speed,
    /// Least dollars for a token.
    Cost,
    /// Most tokens for a dollar, with faults and checkpoints counted.
    Goodput,
}
