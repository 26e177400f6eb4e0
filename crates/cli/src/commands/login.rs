//! `farrier login`: saves a server address and a token.

use std::io::Read;

use farrier_wire::client::ServerUrl;
use farrier_wire::rest::Me;

use super::fleet::session::{FleetSession, Login};
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Arguments of `farrier login`. The login is saved after a request with it succeeds.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Server address, as https://HOST:PORT
    #[arg(long, value_name = "URL")]
    server: ServerUrl,
    /// SHA-256 fingerprint of the server's CA, as printed by `farrier server user add`
    #[arg(long, value_name = "SHA256")]
    ca_fingerprint: Option<String>,
    /// Token, or `-` to read it from stdin
    #[arg(long)]
    token: String,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let token = match args.token.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().take(4096).read_to_string(&mut text)?;
            text
        }
        token => token.to_owned(),
    };
    if args.ca_fingerprint.is_none() && !args.server.is_plain() {
        return Err(Hinted::error(
            "--ca-fingerprint is missing",
            "`farrier server user add` prints it with the token",
        ));
    }
    let login = Login {
        server: args.server.to_string(),
        ca_fingerprint: args.ca_fingerprint.clone(),
        token: token.trim().to_owned(),
    };
    let me: Me = FleetSession::open(&login)?.get("/api/v1/me")?;
    let path = login.save()?;
    printer.line(&format!(
        "logged in as {}, {} of {}, at {} until {:.0}",
        me.name, me.role, me.scope, login.server, me.expires
    ))?;
    printer.line(&format!("saved in {}", path.display()))?;
    Ok(Outcome::Fine)
}
