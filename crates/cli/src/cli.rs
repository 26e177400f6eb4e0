//! The flags.

use clap::{Parser, Subcommand, ValueEnum};

use crate::commands;

/// Keeps a fleet of NVIDIA GPUs fit for LLM work.
#[derive(Debug, Parser)]
#[command(name = "farrier", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The node daemon: watches the GPUs and everything around them
    Agent(commands::agent::Args),
    /// Measurements on this GPU: what launches cost, and training steps before and after
    #[command(subcommand)]
    Bench(commands::bench::BenchCommand),
    /// Is this node right? Or: will this GPU, driver, CUDA and framework work together?
    Check(Box<commands::check::Args>),
    /// What a kernel log says happened to the GPUs, and what to do
    Decode(commands::decode::Args),
    /// A server and 64 simulated nodes on the real wire: faults, what is found and decided, and why
    Demo(commands::demo::Args),
    /// Proves a GPU with work: memory, PCIe, HBM, matrix products, silent corruption
    Diag(commands::diag::Args),
    /// GPUs, driver branches, CUDA, frameworks, Xids and advisories, each with its source
    #[command(subcommand)]
    Facts(commands::facts::FactsCommand),
    /// The fleet: nodes, findings, what was decided and why, and what to do about it
    #[command(subcommand)]
    Fleet(commands::fleet::FleetCommand),
    /// Settings in scripts and environments that do nothing or harm, and what to use instead
    Lint(commands::lint::Args),
    /// Keep a token and a server, for `farrier fleet`
    Login(commands::login::Args),
    /// What training a model needs, how fast it goes, what bounds it, what it costs, with faults or without
    #[command(subcommand)]
    Plan(commands::plan::PlanCommand),
    /// The fleet's server: what nodes report, what is decided, who may speak
    #[command(subcommand)]
    Server(commands::server::ServerCommand),
    /// Simulated nodes: real NVML clients run against them unchanged
    #[command(subcommand)]
    Simulate(commands::simulate::SimulateCommand),
    /// What the agent of this node knows: GPUs, findings, what to do, what is not seen
    Status(commands::status::Args),
    /// Makes a node right for its work, with a way back: profiles of settings, planned, applied, verified, reverted
    #[command(subcommand)]
    Tune(commands::tune::TuneCommand),
    /// GPUs, live: what each does, what limits it, what was found, who holds it; of a fleet its nodes
    Top(commands::top::Args),
    /// Carries out orders from its input, as an agent does with those of a server
    #[command(hide = true)]
    Orders(commands::orders::Args),
    /// Makes calls that may never return, for a parent that does not wait
    #[command(subcommand, hide = true)]
    Probe(commands::probe::ProbeCommand),
}

/// Reads a day.
pub(crate) fn day(text: &str) -> Result<jiff::civil::Date, String> {
    text.parse().map_err(|_| "expected a day such as 2026-11-15".to_owned())
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}
