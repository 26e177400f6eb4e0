//! `farrier policy sign`.

use std::path::PathBuf;

use farrier_server::policy_key::{PolicyKeyError, PolicySigningKey};

use super::document;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Policy file in TOML or JSON, or `-` for stdin
    file: PathBuf,
    /// Private key in PEM; `openssl genpkey -algorithm ed25519 -out KEY` creates one
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
}

/// Prints the whole policy with the signature, because the signature covers the defaults of omitted
/// keys too.
pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut policy = document::read(&args.file)?;
    policy.check()?;
    let key = PolicySigningKey::read(&args.key).map_err(|err| match err {
        PolicyKeyError::Loose(_) => {
            Hinted::error(err.to_string(), "if others may have read it, use another key")
        }
        PolicyKeyError::Form { .. } => Hinted::error(
            err.to_string(),
            "`openssl genpkey -algorithm ed25519 -out KEY` creates one",
        ),
        PolicyKeyError::Read { .. } => err.into(),
    })?;
    let signature = key.sign(&policy);
    policy.signatures.retain(|known| known.key != signature.key);
    policy.signatures.push(signature);
    printer.json(&policy)?;
    Ok(Outcome::Fine)
}
