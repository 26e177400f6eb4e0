//! `farrier server archive`: moves the oldest log entries into an archive file.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Archived, archive};
use farrier_server::run::log_path;
use jiff::{SignedDuration, Timestamp};

use super::backup::create_new;
use super::span;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Data directory of the server
    #[arg(value_parser = absolute)]
    dir: PathBuf,
    /// Archive to create; the file must not exist yet
    #[arg(value_parser = absolute)]
    file: PathBuf,
    /// Minimum age of entries to move, such as 90d
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "90d")]
    older_than: SignedDuration,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let path = log_path(&args.dir);
    if !path.exists() {
        let message = format!("`{}` does not exist", path.display());
        return Err(Hinted::error(message, "name the data directory of a server that has run"));
    }
    let mut log = SqliteLog::open(&path)?;
    let before =
        Timestamp::now().checked_sub(args.older_than).context("`--older-than` is too large")?;
    drop(create_new(&args.file)?);
    let moved = archive(&mut log, before, &args.file);
    if matches!(moved, Ok(Ok(Archived::Nothing) | Err(_))) {
        // No entry was moved. Remove the incomplete file, because it could be mistaken for an
        // archive.
        let _ = fs::remove_file(&args.file);
    }
    let moved = moved.with_context(|| {
        let file = args.file.display();
        format!("`{file}` may contain entries that are no longer in the log; check with `farrier server verify-log`")
    });
    match moved? {
        Ok(Archived::Moved { from, through }) => {
            let file = args.file.display();
            let through_seq = through.seq;
            printer.line(&format!("{file}: entries {from} to {through_seq}, hash chain intact"))?;
            printer.line(&format!("hash {}; the log continues from it", through.hash))?;
            Ok(Outcome::Fine)
        }
        Ok(Archived::Nothing) => {
            printer.line("nothing was archived: no entry is that old")?;
            Ok(Outcome::Fine)
        }
        Err(flaw) => {
            printer.line(&format!("VERIFICATION FAILED: {flaw}"))?;
            printer.line("Nothing was archived. `farrier server verify-log` shows more.")?;
            Ok(Outcome::Finding)
        }
    }
}
