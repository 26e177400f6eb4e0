//! `farrier tune`: applies settings profiles to a node, and reverts them.
//!
//! ```text
//! list, show ── profiles as data
//! plan, verify ─ read settings ─ farrier_facts::tune::plan ─> print
//! apply ─ plan, confirm ─ farrier_hardware::tune::apply ─> result of each step
//! revert ─ journal ─ farrier_hardware::tune::revert ─> result of each change
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

#[derive(Debug, Subcommand)]
pub(crate) enum TuneCommand {
    /// List the built-in profiles
    List(ListArgs),
    /// Show a profile: each setting with its reason and source
    Show(profile::ShowArgs),
    /// Show what a profile would change on this node, and what does not apply or is unknown
    ///
    /// Nothing is changed. Exit code 0: every setting matches the profile or does not apply; 1: a
    /// setting would change or is unknown.
    Plan(verify::Args),
    /// Show the plan, ask for confirmation, and apply it; previous values are saved for `revert`
    ///
    /// Exit code 0: all settings are applied or do not apply; 1: a setting failed or is unknown; 2:
    /// an error.
    Apply(apply::Args),
    /// Check whether this node still matches a profile
    ///
    /// Exit code 0: it does; 1: a setting has drifted or is unknown.
    Verify(verify::Args),
    /// Restore the previous values, newest change first, also after a crash
    ///
    /// Values that others have changed since then are reported and left alone. Exit code 0:
    /// everything is restored; 1: something is not.
    Revert(revert::Args),
}

/// Options of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Output format
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
