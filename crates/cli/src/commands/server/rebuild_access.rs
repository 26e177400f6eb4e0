//! `farrier server rebuild-access`: who may speak, from the log.

use std::path::PathBuf;

use farrier_fleet::fleet::NodeId;
use farrier_server::access::{AccessError, Lost, Rebuilt, Store, changes_in};
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, joined, verify};
use farrier_server::run::{folder, log_path, take};
use jiff::Timestamp;

use super::Folder;
use super::verify_log::open;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Rebuilds the access store.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    folder: Folder,
    /// What `farrier server archive` moved out of the log; for each file once
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    archive: Vec<PathBuf>,
}

/// The logs in the order of their entries, each whole and one following on the other.
fn logs(args: &Args) -> anyhow::Result<Vec<SqliteLog>> {
    let mut logs = args.archive.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    logs.push(open(&log_path(&args.folder.dir))?);
    let mut begun = Vec::with_capacity(logs.len());
    for log in logs {
        begun.push((log.anchor()?.seq, log));
    }
    begun.sort_by_key(|(seq, _)| *seq);
    let logs: Vec<SqliteLog> = begun.into_iter().map(|(_, log)| log).collect();
    let all: Vec<&dyn Log> = logs.iter().map(|it| it as &dyn Log).collect();
    let mut flaw = None;
    for log in &all {
        flaw = flaw.or(verify(*log)?.err());
    }
    if let Some(flaw) = flaw.or(joined(&all)?.err()) {
        let message = format!("the log is not whole: {flaw}");
        return Err(Hinted::error(message, "`farrier server verify-log` says more"));
    }
    Ok(logs)
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let dir = &args.folder.dir;
    if !log_path(dir).exists() {
        let message = format!("`{}` is not there", log_path(dir).display());
        return Err(Hinted::error(message, "--dir names the folder of a server that has run"));
    }
    folder(dir)?;
    let _lock = take(dir)?;
    let logs = logs(args)?;
    let store = Store::open(dir)?;
    if let Some(first) = logs.first() {
        let (begin, last) = (first.beginning()?, store.last_change()?);
        // Without the authority's key no certificate counts that was ever given: nothing can be missed.
        let has_authority = ["ca.key", "ca.pem"].iter().any(|name| dir.join(name).exists());
        if begin.access > last && has_authority {
            return Err(Hinted::error(
                format!(
                    "entries 1 to {} are in an archive, and changes {} to {} with them",
                    begin.seq,
                    last + 1,
                    begin.access
                ),
                "--archive FILE names each archive; where one is lost, move `ca.key` and `ca.pem` away and do this again: then every node enrols anew",
            ));
        }
    }
    let logs: Vec<&dyn Log> = logs.iter().map(|it| it as &dyn Log).collect();
    let changes = changes_in(&logs)?;
    let rebuilt = store.rebuild(&changes, Timestamp::now()).map_err(|err| match err {
        AccessError::Diverged(_) => Hinted::error(
            err.to_string(),
            "move `access` and what belongs to it away, and do this again",
        ),
        other => other.into(),
    })?;
    tell(&rebuilt, printer)?;
    Ok(Outcome::Fine)
}

fn tell(rebuilt: &Rebuilt, printer: &mut Printer) -> anyhow::Result<()> {
    match rebuilt.changes {
        0 => printer.line("the access store has every change that the log has")?,
        1 => printer.line("1 change was brought back from the log")?,
        some => printer.line(&format!("{some} changes were brought back from the log"))?,
    }
    if !rebuilt.revoked.is_empty() {
        let names: Vec<&str> = rebuilt.revoked.iter().map(NodeId::as_str).collect();
        printer.paragraph("Revoked:", 9, &names.join(", "))?;
    }
    if !rebuilt.lost.is_empty() {
        printer.line(
            "Tokens whose hash only the lost store had; they admit nobody. To be made anew:",
        )?;
    }
    for (id, lost) in &rebuilt.lost {
        let again = match lost {
            Lost::Person { name, role, scope } => {
                format!("{name}, {role} of {scope}: `farrier server user add {name} --role {role}`")
            }
            Lost::Join { pool, node } => {
                let only = node.as_ref().map(|it| format!(" --node {it}")).unwrap_or_default();
                format!("nodes of pool {pool}: `farrier server token create --pool {pool}{only}`")
            }
        };
        printer.paragraph(&format!("  {id}"), 6, &again)?;
    }
    Ok(())
}
