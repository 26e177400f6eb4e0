//! `farrier server`: runs and administers the fleet server.

mod accept_log;
mod archive;
mod backup;
mod rebuild_access;
mod revoke;
mod run;
mod token;
mod user;
mod verify_log;

use std::path::PathBuf;

use farrier_server::access::{AccessError, AccessStore, Authority, AuthorityError};
use farrier_server::log::recorded_head;
use farrier_server::run::log_path;

pub(crate) use token::span;
pub(crate) use verify_log::open as open_log;

use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::{Hinted, warn};
use crate::printer::Printer;

/// Default data directory of the server.
const DEFAULT_DIR: &str = "/var/lib/farrier-server";

/// Hint for an access store that lacks changes recorded in the log.
const OUTDATED_ACCESS_HINT: &str = "restore the newest copy of `access`; or stop the server and run `farrier server rebuild-access --dir DIR`, which restores the revocations from the log";

/// Commands of the fleet server.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ServerCommand {
    /// Run the server in the foreground, until SIGTERM
    Run(run::Args),
    /// Manage join tokens of nodes
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Manage users: their roles and scopes
    #[command(subcommand)]
    User(user::UserCommand),
    /// Verify the hash chain of the log; with --replay, also every decision
    VerifyLog(verify_log::Args),
    /// Back up the log into one file, also while the server runs
    Backup(backup::BackupArgs),
    /// Restore a log from a backup, into a directory without one
    Restore(backup::RestoreArgs),
    /// Move old log entries into an archive file, also while the server runs; the hash chain
    /// continues
    Archive(archive::Args),
    /// Continue with a log that differs from the acknowledged log, such as an older copy that was
    /// restored on purpose
    AcceptLog(accept_log::Args),
    /// Rebuild the access store (`access`) from the log if it is lost or outdated
    RebuildAccess(rebuild_access::Args),
    /// Revoke all certificates of a node; its stream ends at once
    Revoke(revoke::Args),
}

#[derive(Debug, clap::Args)]
struct DataDir {
    /// Data directory of the server
    #[arg(long, value_name = "DIR", value_parser = absolute, default_value = DEFAULT_DIR)]
    dir: PathBuf,
}

impl DataDir {
    /// Opens the access store, also while the server runs.
    fn store(&self) -> anyhow::Result<AccessStore> {
        farrier_server::run::prepare_folder(&self.dir)?;
        if !log_path(&self.dir).exists() {
            warn(&anyhow::anyhow!(
                "no server has run in `{}` yet: this change applies only to a server that is started with this --dir",
                self.dir.display()
            ));
        }
        let store = AccessStore::open(&self.dir)?;
        // Refuse an outdated store. A new change would hide that earlier changes are missing.
        if let Some(recorded) = recorded_head(&log_path(&self.dir))? {
            store.check_not_behind(recorded.access).map_err(|err| match err {
                AccessError::Behind { .. } => Hinted::error(err.to_string(), OUTDATED_ACCESS_HINT),
                other => other.into(),
            })?;
        }
        Ok(store)
    }
}

/// Opens the fleet's CA to read its fingerprint.
fn authority(dir: &std::path::Path) -> anyhow::Result<Authority> {
    Authority::open(dir, jiff::Timestamp::now()).map_err(|err| match err {
        AuthorityError::Missing(_) => Hinted::error(
            err.to_string(),
            "restore both from your copy; or start the server with `--new-authority` first",
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
        ServerCommand::Backup(args) => backup::back_up(args, printer),
        ServerCommand::Restore(args) => backup::restore(args, printer),
        ServerCommand::Archive(args) => archive::run(args, printer),
        ServerCommand::AcceptLog(args) => accept_log::run(args, printer),
        ServerCommand::RebuildAccess(args) => rebuild_access::run(args, printer),
        ServerCommand::Revoke(args) => revoke::run(args, printer),
    }
}
