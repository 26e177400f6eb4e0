//! One module per subcommand. A command reads its input, calls a library crate, and prints.

pub(crate) mod agent;
pub(crate) mod bench;
pub(crate) mod bundle;
pub(crate) mod change;
pub(crate) mod check;
pub(crate) mod decode;
pub(crate) mod demo;
pub(crate) mod diag;
pub(crate) mod facts;
pub(crate) mod fleet;
pub(crate) mod lint;
pub(crate) mod login;
pub(crate) mod notify;
pub(crate) mod orders;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod probe;
pub(crate) mod receiver_folders;
pub(crate) mod runbook;
mod runbook_pointer;
pub(crate) mod server;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod tune;

use crate::cli::{Cli, Command};
use crate::printer::Printer;

/// How a command ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Exit code 0.
    Fine,
    /// Exit code 1: a negative result.
    Finding,
}

impl Outcome {
    /// A finding if `found`.
    pub(crate) fn finding_if(found: bool) -> Self {
        if found { Self::Finding } else { Self::Fine }
    }
}

/// Runs the parsed subcommand.
pub(crate) fn run(cli: Cli, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match cli.command {
        Command::Agent(args) => agent::run(&args, printer),
        Command::Bench(command) => bench::run(&command, printer),
        Command::Bundle(command) => bundle::run(&command, printer),
        Command::Change(command) => change::run(&command, printer),
        Command::Check(args) => check::run(&args, printer),
        Command::Decode(args) => decode::run(&args, printer),
        Command::Demo(args) => demo::run(&args, printer),
        Command::Diag(args) => diag::run(&args, printer),
        Command::Facts(command) => facts::run(&command, printer),
        Command::Fleet(command) => fleet::run(&command, printer),
        Command::Lint(args) => lint::run(&args, printer),
        Command::Login(args) => login::run(&args, printer),
        Command::Notify(command) => notify::run(&command, printer),
        Command::Orders(args) => orders::run(&args, printer),
        Command::Plan(command) => plan::run(&command, printer),
        Command::Policy(command) => policy::run(&command, printer),
        Command::Probe(command) => probe::run(&command, printer),
        Command::Runbook(args) => runbook::run(&args, printer),
        Command::Server(command) => server::run(&command, printer),
        Command::Simulate(command) => simulate::run(&command, printer),
        Command::Status(args) => status::run(&args, printer),
        Command::Tune(command) => tune::run(&command, printer),
        Command::Top(args) => top::run(&args, printer),
    }
}
