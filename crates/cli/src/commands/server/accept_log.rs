//! `farrier server accept-log`: continues with a log other than the acknowledged one.

use farrier_server::access::Store;
use farrier_server::log::{Accepted, FormatMismatch, LogError, accept};
use farrier_server::run::{lock_folder, log_path, prepare_folder};

use super::Folder;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    folder: Folder,
}

/// Hint for a log that this version cannot read.
pub(super) fn hint(what: ForeignLog) -> &'static str {
    match what {
        FormatMismatch::Format(_) | FormatMismatch::State => {
            "it is of a later version: use the version that wrote it"
        }
        FormatMismatch::Empty => {
            "move `log` and `log-head` away, and put a backup back with `farrier server restore`"
        }
        FormatMismatch::Database => "--dir names the folder of a server",
    }
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let path = log_path(&args.folder.dir);
    if !path.exists() {
        let message = format!("`{}` is not there", path.display());
        return Err(Hinted::error(message, "--dir names the folder of a server that has run"));
    }
    prepare_folder(&args.folder.dir)?;
    let _lock = lock_folder(&args.folder.dir)?;
    let accepted = accept(&path).map_err(|err| match err {
        LogError::UnknownFormat { what, .. } => Hinted::error(err.to_string(), hint(what)),
        other => other.into(),
    })?;
    let Accepted { before, end } = match accepted {
        Ok(accepted) => accepted,
        Err(flaw) => {
            printer.line(&format!("NOT WHOLE: {flaw}"))?;
            printer.line("Nothing was accepted. `farrier server restore` puts a backup back.")?;
            return Ok(Outcome::Finding);
        }
    };
    // Without an access store there is nothing to reset; the server reports that at its start.
    if args.folder.dir.join("access").exists() {
        Store::open(&args.folder.dir)?.clear_log()?;
    }
    match before {
        Some(before) if before == end => {
            printer.line("this is the log that was acknowledged: there was nothing to accept")?;
        }
        Some(before) if before.seq > end.seq => printer.line(&format!(
            "accepted: entries {} to {} were acknowledged, and are given up",
            end.seq + 1,
            before.seq
        ))?,
        Some(before) => {
            printer.line(&format!(
                "accepted: it is another log from entry {} on or before",
                before.seq
            ))?;
        }
        None => printer.line("accepted: which entry was acknowledged last was not known")?,
    }
    printer.line(&format!("The server goes on from entry {}, hash {}", end.seq, end.hash))?;
    Ok(Outcome::Fine)
}
