//! `farrier fleet policy`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_wire::rest::{Done, PolicyView};
use farrier_wire::strict_json;

use super::session::FleetSession;
use crate::commands::Outcome;
use crate::printer::Printer;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum PolicyCommand {
    /// Print the policy in force, as JSON
    Show,
    /// Replace the whole policy; omitted settings get their defaults
    Set {
        /// Policy file in JSON, or `-` for stdin
        file: PathBuf,
    },
}

/// The server's limit for a policy document.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Reads a policy file, or stdin for `-`.
pub(crate) fn read_file(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().take(POLICY_BYTES_MAX).read_to_string(&mut text)
    } else {
        let open = File::open(file);
        open.and_then(|file| file.take(POLICY_BYTES_MAX).read_to_string(&mut text))
    };
    read.with_context(|| format!("failed to read `{}`", file.display()))?;
    Ok(text)
}

pub(super) fn run(
    session: &mut FleetSession,
    command: &PolicyCommand,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    match command {
        PolicyCommand::Show => {
            let PolicyView { policy } = session.get("/api/v1/policy")?;
            printer.json(&policy)?;
        }
        PolicyCommand::Set { file } => {
            let text = read_file(file)?;
            let policy =
                strict_json::parse(text.as_bytes()).context("the policy is not valid JSON")?;
            let Done { changed } = session.put("/api/v1/policy", &policy)?;
            printer.line(if changed {
                "the policy is in force"
            } else {
                "no change: this policy is already in force"
            })?;
        }
    }
    Ok(Outcome::Fine)
}
