//! `farrier change`: moves this node to another driver bundle, with a verified way back.
//!
//! ```text
//! plan, apply ─ BundleFiles, PackageManager ─ preflight, rehearsal ─> print
//! apply, resume, rollback ─ ChangeJournal ─ farrier_hardware::change::execute ─> steps on stderr
//! status, history ─ ChangeJournal (read only) ─> print
//! ```

mod apply;
mod node;
mod plan;
mod progress;
mod status;

use clap::Subcommand;

use crate::commands::Outcome;
use crate::printer::Printer;

#[derive(Debug, Subcommand)]
pub(crate) enum ChangeCommand {
    /// Show what a change would do: checks, packages, and the way back
    ///
    /// Nothing is installed. Root is needed to simulate the package transactions. Exit code 0: the
    /// change can be applied; 1: it would be refused.
    Plan(plan::Args),
    /// Show the plan, ask for confirmation, and change the driver
    ///
    /// Exit code 0: the change is committed; 1: it ended otherwise, with the reason; 2: an error.
    Apply(apply::Args),
    /// Show the state of the current or last change
    Status(status::Args),
    /// Roll back the current change, or return to the driver before the last one
    Rollback(apply::RollbackArgs),
    /// List the changes of this node
    History(status::Args),
    /// Continue a change after a reboot or a crash
    ///
    /// The unit farrier-change-resume.service runs this command after each boot. Exit code 0: there
    /// was nothing to continue, or the change is committed; 1: it ended otherwise.
    Resume(apply::ResumeArgs),
    /// End the quarantine of a failed change, after a person has repaired the node
    Release(apply::ReleaseArgs),
}

pub(crate) fn run(command: &ChangeCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        ChangeCommand::Plan(args) => plan::run(args, printer),
        ChangeCommand::Apply(args) => apply::run(args, printer),
        ChangeCommand::Status(args) => status::status(args, printer),
        ChangeCommand::Rollback(args) => apply::rollback(args, printer),
        ChangeCommand::History(args) => status::history(args, printer),
        ChangeCommand::Resume(args) => apply::resume(args, printer),
        ChangeCommand::Release(args) => apply::release(args, printer),
    }
}
