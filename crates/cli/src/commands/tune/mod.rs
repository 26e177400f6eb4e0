//! `farrier tune`: makes a node right for its work, with a way back.
//!
//! ```text
//! list, show ── profiles as data
//! plan, verify ─ look ─ farrier_facts::tune::plan ─> print
//! apply ─ plan, a yes ─ farrier_hardware::tune::apply ─> what came of each step
//! revert ─ the journal ─ farrier_hardware::tune::revert ─> what came of each change
//! ```

mod apply;
mod node;
mod print;
mod profile;
mod revert;
mod verify;

use clap::Subcommand;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

/// What to do with settings.
#[derive(Debug, Subcommand)]
pub(crate) enum TuneCommand {
    /// The profiles that come with farrier
    List(ListArgs),
    /// A profile: each setting with its reason and source
    Show(profile::ShowArgs),
    /// What a profile would change on this node, and what does not apply or is not known
    ///
    /// Nothing is changed. Exit code 0: all as wanted, or not for this node; 1: something to change or not known.
    Plan(verify::Args),
    /// Shows the plan, asks, and makes the changes; what was there before is kept for `revert`
    ///
    /// Exit code 0: all of it is set, or not for this node; 1: something was not done or is not known; 2: an error.
    Apply(apply::Args),
    /// Whether this node is still as a profile wants it
    ///
    /// Exit code 0: it is; 1: something has drifted, or is not known.
    Verify(verify::Args),
    /// Gives back exactly what was there before, newest change first, also after a crash
    ///
    /// What somebody else has changed since is told and left alone. Exit code 0: all of it is back; 1: something is not.
    Revert(revert::Args),
}

/// How to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(crate) fn run(command: &TuneCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        TuneCommand::List(args) => profile::list(args.output, printer),
        TuneCommand::Show(args) => profile::show(args, printer),
        TuneCommand::Plan(args) => verify::run(args, "Plan", printer),
        TuneCommand::Apply(args) => apply::run(args, printer),
        TuneCommand::Verify(args) => verify::run(args, "Verify", printer),
        TuneCommand::Revert(args) => revert::run(args, printer),
    }
}
