//! `farrier server`: the fleet.

mod revoke;
mod run;
mod token;

use std::path::PathBuf;

use farrier_server::access::Store;

use crate::commands::Outcome;
use crate::commands::agent::absolute;
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
        Ok(Store::open(&self.dir)?)
    }
}

pub(crate) fn run(command: &ServerCommand, printer: &mut Printer) -> anyhow::Result<Outcome> {
    match command {
        ServerCommand::Run(args) => run::run(args),
        ServerCommand::Token(command) => token::run(command, printer),
        ServerCommand::Revoke(args) => revoke::run(args, printer),
    }
}
