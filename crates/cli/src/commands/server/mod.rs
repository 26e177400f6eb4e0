//! `farrier server`: the fleet.

mod archive;
mod keep;
mod revoke;
mod run;
mod token;
mod user;
mod verify_log;

use std::path::PathBuf;

use farrier_server::access::{Authority, AuthorityError, Store};

pub(crate) use token::span;

use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::{Hinted, warn};
use crate::printer::Printer;

/// Where the server keeps everything unless a flag says otherwise.
const DEFAULT_DIR: &str = "/var/lib/farrier-server";

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
        farrier_server::run::folder(&self.dir)?;
        if !farrier_server::run::log_path(&self.dir).exists() {
            warn(&anyhow::anyhow!(
                "no server has run in `{}` yet: what is made here counts for one that will, and for no other (--dir)",
                self.dir.display()
            ));
        }
        Ok(Store::open(&self.dir)?)
    }
}

/// The fleet's authority, for its fingerprint.
fn authority(dir: &std::path::Path) -> anyhow::Result<Authority> {
    Authority::open(dir, jiff::Timestamp::now()).map_err(|err| match err {
        AuthorityError::Gone(_) => Hinted::error(
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
        ServerCommand::Revoke(args) => revoke::run(args, printer),
    }
}
