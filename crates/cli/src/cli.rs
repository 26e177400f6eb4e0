//! The command line: global options and subcommands.

use clap::{Parser, Subcommand, ValueEnum};

use crate::commands;

/// Keeps a fleet of NVIDIA GPUs fit for LLM work.
#[derive(Debug, Parser)]
#[command(name = "farrier", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the node agent: monitor GPUs, drivers and the host, and report findings
    Agent(commands::agent::Args),
    /// Benchmark this GPU: kernel launch cost, and training steps with and without Farrier
    #[command(subcommand)]
    Bench(commands::bench::BenchCommand),
    /// Driver bundles: create, inspect, verify, compare, sign and import them
    #[command(subcommand)]
    Bundle(commands::bundle::BundleCommand),
    /// Change the driver of this node: plan, apply, roll back
    #[command(subcommand)]
    Change(commands::change::ChangeCommand),
    /// Check this node's configuration, or whether a GPU, driver, CUDA and framework work together
    Check(Box<commands::check::Args>),
    /// Explain GPU faults in a kernel log, and what to do about them
    Decode(commands::decode::Args),
    /// Run a server with 64 simulated nodes and faults, over the real protocol, and show each
    /// decision
    Demo(commands::demo::Args),
    /// Test GPUs under load: memory, PCIe, HBM bandwidth, GEMM, silent data corruption
    Diag(commands::diag::Args),
    /// Look up GPUs, driver branches, CUDA, frameworks, Xids and advisories, with sources
    #[command(subcommand)]
    Facts(commands::facts::FactsCommand),
    /// Query and operate the fleet: nodes, findings, decisions and their reasons
    #[command(subcommand)]
    Fleet(commands::fleet::FleetCommand),
    /// Find settings in scripts and environments that have no effect or do harm
    Lint(commands::lint::Args),
    /// Save a server address and token for `farrier fleet`
    Login(commands::login::Args),
    /// Notifications of the fleet: check the policy, test receivers, show the queue, mute alerts
    #[command(subcommand)]
    Notify(commands::notify::NotifyCommand),
    /// Plan training: memory, speed, bottleneck, cost and goodput
    #[command(subcommand)]
    Plan(commands::plan::PlanCommand),
    /// The policy: show, set, check and explain the rules of quarantine and driver changes
    #[command(subcommand)]
    Policy(commands::policy::PolicyCommand),
    /// Show the runbook of a finding: meaning, first commands, automation, when to replace the part
    Runbook(commands::runbook::Args),
    /// Run and administer the fleet server
    #[command(subcommand)]
    Server(commands::server::ServerCommand),
    /// Simulate nodes that unmodified NVML clients can run against
    #[command(subcommand)]
    Simulate(commands::simulate::SimulateCommand),
    /// Show this node's agent status: GPUs, findings, recommended actions, coverage gaps
    Status(commands::status::Args),
    /// Tune a node with settings profiles: plan, apply, verify, revert
    #[command(subcommand)]
    Tune(commands::tune::TuneCommand),
    /// Monitor GPUs live: utilisation, bottleneck, findings, processes; or the nodes of a fleet
    Top(commands::top::Args),
    /// Execute orders read from stdin, as an agent does with a server's orders
    #[command(hide = true)]
    Orders(commands::orders::Args),
    /// Make driver calls that may hang, in a child process that the parent can abandon
    #[command(subcommand, hide = true)]
    Probe(commands::probe::ProbeCommand),
}

pub(crate) fn parse_date(text: &str) -> Result<jiff::civil::Date, String> {
    text.parse().map_err(|_| "expected a date such as 2026-11-15".to_owned())
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// A table for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
}
