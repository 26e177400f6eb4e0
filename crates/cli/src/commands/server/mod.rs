//! `farrier server`: the fleet.

mod accept_log;
mod archive;
mod keep;
mod rebuild_access;
mod revoke;
mod run;
mod token;
mod user;
mod verify_log;

use std::path::PathBuf;

use farrier_server::access::{AccessError, Authority, AuthorityError, Store};
use farrier_server::log::recorded_head;
use farrier_server::run::log_path;

pub(crate) use token::span;

use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::{Hinted, warn};
use crate::printer::Printer;

/// Where the server keeps everything unless a flag says otherwise.
const DEFAULT_DIR: &str = "/var/lib/farrier-server";

/// What to do about an access store that lacks what the log has.
const BEHIND: &str = "put the newest copy of `access` back; or stop the server and run `farrier server rebuild-access --dir DIR`, which brings back from the log what was revoked";

/// The fleet: the log, decisions, and who may speak.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ServerCommand {
    /// Run the server in the foreground, until SIGTERM
    Run(run::Args),
    /// Tokens that nodes join with
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// People: who may look, operate, approve, administer, and where
    #[command(subcommand)]
    User(user::UserCommand),
    /// Is the log what was written? Every hash again; with --replay every decision, too
    VerifyLog(verify_log::Args),
    /// A whole copy of the log in one file; the server may run
    Backup(keep::BackupArgs),
    /// A log from a backup, in a folder that has none
    Restore(keep::RestoreArgs),
    /// Move what is old into a file of its own; the chain goes on. The server may run
    Archive(archive::Args),
    /// Go on with a log that is not the one that was acknowledged, such as an older copy that was put back on purpose
    AcceptLog(accept_log::Args),
    /// Bring who may speak back from the log, where `access` is lost or an older copy
    RebuildAccess(rebuild_access::Args),
    /// Let no certificate of a node count any more; its stream ends at once
    Revoke(revoke::Args),
}

/// The server's folder.
#[derive(Debug, clap::Args)]
struct Folder {
    /// Where the server keeps everything
    #[arg(long, value_name = "DIR", value_parser = absolute, default_value = DEFAULT_DIR)]
    dir: PathBuf,
}

impl Folder {
    /// Who may speak. The server may run at the same time.
    fn store(&self) -> anyhow::Result<Store> {
        farrier_server::run::prepare_folder(&self.dir)?;
        if !log_path(&self.dir).exists() {
            warn(&anyhow::anyhow!(
                "no server has run in `{}` yet: what is made here counts for one that will, and for no other (--dir)",
                self.dir.display()
            ));
        }
        let store = Store::open(&self.dir)?;
        // A change here would hide that others are missing.
        if let Some(recorded) = recorded_head(&log_path(&self.dir))? {
            store.check_not_behind(recorded.access).map_err(|err| match err {
                AccessError::Behind { .. } => Hinted::error(err.to_string(), BEHIND),
                other => other.into(),
            })?;
        }
        Ok(store)
    }
}

/// The fleet's authority, for its fingerprint.
fn authority(dir: &std::path::Path) -> anyhow::Result<Authority> {
    Authority::open(dir, jiff::Timestamp::now()).map_err(|err| match err {
        AuthorityError::Missing(_) => Hinted::error(
            err.to_string(),
            "put back both from where they were kept; or start the server with `--new-authority` first",
        ),
        other => other.into(),
    })
}

pub(crate) fn run(command: &ServerCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        ServerCommand::Run(args) => run::run(args),
        ServerCommand::Token(command) => token::run(command, printer),
        ServerCommand::User(command) => user::run(command, printer),
        ServerCommand::VerifyLog(args) => verify_log::run(args, printer),
        ServerCommand::Backup(args) => keep::back_up(args, printer),
        ServerCommand::Restore(args) => keep::restore(args, printer),
        ServerCommand::Archive(args) => archive::run(args, printer),
        ServerCommand::AcceptLog(args) => accept_log::run(args, printer),
        ServerCommand::RebuildAccess(args) => rebuild_access::run(args, printer),
        ServerCommand::Revoke(args) => revoke::run(args, printer),
    }
}
