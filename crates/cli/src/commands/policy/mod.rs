//! `farrier policy`: the one document of rules for quarantine and changes.

mod check;
mod diff;
pub(crate) mod document;
mod explain;
mod nodes;
mod report;
mod set;
mod sign;

use jiff::civil::Date;

use crate::cli::parse_date;
use crate::commands::Outcome;
use crate::commands::fleet::session::FleetSession;
use crate::fact_sets;
use crate::printer::Printer;

/// Commands for the policy.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PolicyCommand {
    /// Print the policy in force, as JSON
    Show,
    /// Replace the whole policy; omitted keys get their defaults
    ///
    /// Shows what the new policy changes, and for which nodes, and asks on a terminal.
    Set(set::Args),
    /// Check a policy file: values, conflicts, and signatures; the exit code is 1 if it has problems
    Check(check::Args),
    /// Show what differs between two policies, and for which nodes; the exit code is 1 if they
    /// differ
    Diff(diff::Args),
    /// Explain what the policy says about a node or a class of nodes, and where each value comes
    /// from
    Explain(explain::Args),
    /// Report what the drivers of the fleet need: support, advisories, skew, pins and exceptions;
    /// the exit code is 1 if something has to be done
    Report(report::Args),
    /// Sign a policy with an ed25519 key; overlays of sites are not signed
    Sign(sign::Args),
}

/// The day for which a policy is evaluated.
#[derive(Debug, clap::Args)]
struct EvaluationDay {
    /// The day for which the policy is evaluated [default: today]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    on: Option<Date>,
}

impl EvaluationDay {
    fn date(&self) -> Date {
        self.on.unwrap_or_else(fact_sets::today)
    }
}

pub(crate) fn run(command: &PolicyCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        PolicyCommand::Show => {
            let policy = document::from_server(&mut FleetSession::from_saved_login()?)?;
            printer.json(&policy)?;
            Ok(Outcome::Fine)
        }
        PolicyCommand::Set(args) => set::run(args, printer),
        PolicyCommand::Check(args) => check::run(args, printer),
        PolicyCommand::Diff(args) => diff::run(args, printer),
        PolicyCommand::Explain(args) => explain::run(args, printer),
        PolicyCommand::Report(args) => report::run(args, printer),
        PolicyCommand::Sign(args) => sign::run(args, printer),
    }
}
