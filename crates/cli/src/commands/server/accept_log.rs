//! `farrier server accept-log`: lets the server continue with a log that differs from the
//! acknowledged log, such as an older copy that was restored.

use farrier_server::access::AccessStore;
use farrier_server::log::{Accepted, FormatMismatch, LogError, accept};
use farrier_server::run::{lock_folder, log_path, prepare_folder};

use super::DataDir;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataDir,
}

/// Hint for a log that this version cannot read.
pub(super) fn hint(mismatch: FormatMismatch) -> &'static str {
    match mismatch {
        FormatMismatch::Format(_) | FormatMismatch::State => {
            "a newer version wrote it: use the version that wrote it"
        }
        FormatMismatch::Empty => {
            "move `log` and `log-head` away, and restore a backup with `farrier server restore`"
        }
        FormatMismatch::Database => "--dir must be the data directory of a server",
    }
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let path = log_path(&args.data.dir);
    if !path.exists() {
        let message = format!("`{}` does not exist", path.display());
        return Err(Hinted::error(
            message,
            "--dir must be the data directory of a server that has run",
        ));
    }
    prepare_folder(&args.data.dir)?;
    let _lock = lock_folder(&args.data.dir)?;
    let accepted = accept(&path).map_err(|err| match err {
        LogError::UnknownFormat { what, .. } => Hinted::error(err.to_string(), hint(what)),
        other => other.into(),
    })?;
    let Accepted { before, end } = match accepted {
        Ok(accepted) => accepted,
        Err(flaw) => {
            printer.line(&format!("VERIFICATION FAILED: {flaw}"))?;
            printer
                .line("The log was not accepted. `farrier server restore` restores a backup.")?;
            return Ok(Outcome::Finding);
        }
    };
    // Without an access store, there is nothing to reset. The server reports the missing store when
    // it starts.
    if args.data.dir.join("access").exists() {
        AccessStore::open(&args.data.dir)?.clear_log()?;
    }
    match before {
        Some(before) if before == end => {
            printer.line("this is the acknowledged log: there is nothing to accept")?;
        }
        Some(before) if before.seq > end.seq => printer.line(&format!(
            "accepted: the acknowledged entries {} to {} are lost",
            end.seq + 1,
            before.seq
        ))?,
        Some(before) => {
            printer.line(&format!(
                "accepted: the log differs from the acknowledged log at entry {} or earlier",
                before.seq
            ))?;
        }
        None => printer.line("accepted: the last acknowledged entry was unknown")?,
    }
    printer.line(&format!("The server continues from entry {}, hash {}", end.seq, end.hash))?;
    Ok(Outcome::Fine)
}
