//! `farrier server verify-log`.

use std::path::PathBuf;

use farrier_fleet::fleet::replay::Replay;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{Log, LogError, verify};
use farrier_server::run::log_path;
use serde_json::json;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Entries read at once.
const PAGE: usize = 4096;

/// Reads a log again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server's folder, or a backup
    #[arg(value_parser = absolute)]
    dir: PathBuf,
    /// Decide again on everything that was taken in, too
    #[arg(long)]
    replay: bool,
    /// The log must hold this hash: one that was noted earlier, so that an end that was cut off shows
    #[arg(long, value_name = "HASH")]
    holds: Option<String>,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The log in a server's folder, or the file itself.
pub(super) fn open(path: &std::path::Path) -> anyhow::Result<SqliteLog> {
    let file = if path.is_dir() { log_path(path) } else { path.to_owned() };
    SqliteLog::open_to_read(&file).map_err(|err| {
        let message = format!("{err}: `{}`", file.display());
        Hinted::error(
            message,
            "name the server's folder, or a file that `farrier server backup` made",
        )
    })
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let log = open(&args.dir)?;
    let flaw = match verify(&log)? {
        Err(flaw) => Some(flaw.to_string()),
        Ok(_) => missing(args, &log)?.or(diverging(args, &log)?),
    };
    let head = log.head()?;
    if args.output == Output::Json {
        printer.line(
            &json!({
                "whole": flaw.is_none(), "entries": head.seq, "hash": head.hash.to_string(),
                "replayed": args.replay && flaw.is_none(), "flaw": flaw,
            })
            .to_string(),
        )?;
    } else if let Some(flaw) = &flaw {
        printer.line(&format!("NOT WHOLE: {flaw}"))?;
        printer.line("What comes before it is as it was written. A backup may have the rest.")?;
    } else {
        let decided = if args.replay { ", and what was decided follows from it" } else { "" };
        printer.line(&format!("whole: {} entries are as they were written{decided}", head.seq))?;
        printer.line(&format!("hash {}", head.hash))?;
    }
    Ok(Outcome::finding_if(flaw.is_some()))
}

fn missing(args: &Args, log: &SqliteLog) -> Result<Option<String>, LogError> {
    let Some(wanted) = &args.holds else { return Ok(None) };
    let mut seq = 0;
    loop {
        let page = log.read(seq, PAGE)?;
        let Some(last) = page.last() else { break };
        if page.iter().any(|it| it.hash.to_string() == *wanted) {
            return Ok(None);
        }
        seq = last.seq;
    }
    Ok(Some(format!("no entry has the hash {wanted}: the end was cut off, or it is another log")))
}

fn diverging(args: &Args, log: &SqliteLog) -> Result<Option<String>, LogError> {
    if !args.replay {
        return Ok(None);
    }
    let mut replay = Replay::default();
    let mut seq = 0;
    loop {
        let page = log.read(seq, PAGE)?;
        let Some(last) = page.last() else { break };
        seq = last.seq;
        for stored in &page {
            if let Err(divergence) = replay.take(stored.entry()?) {
                return Ok(Some(divergence.to_string()));
            }
        }
    }
    Ok(replay.finish().err().map(|divergence| divergence.to_string()))
}
