//! `farrier server verify-log`.

use std::path::PathBuf;

use farrier_fleet::fleet::LOGIC_VERSION;
use farrier_fleet::fleet::replay::Replay;
use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::{IntegrityError, Log, LogError, check_joined, verify};
use farrier_server::run::log_path;
use serde_json::json;

use crate::cli::Output;
use crate::commands::Outcome;
use crate::commands::agent::absolute;
use crate::failure::Hinted;
use crate::printer::Printer;

/// Entries per read.
const PAGE: usize = 4096;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Data directory of the server, or a backup
    #[arg(value_parser = absolute)]
    dir: PathBuf,
    /// Archive made by `farrier server archive`; repeat for each file
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    archive: Vec<PathBuf>,
    /// Also repeat every decision on the logged inputs and compare
    #[arg(long)]
    replay: bool,
    /// Require an entry with this hash; a hash noted earlier reveals a log that was truncated since
    #[arg(long, value_name = "HASH", value_parser = hash)]
    holds: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Parses a hash as this command prints it.
fn hash(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let wrong = || "expected the 64 hexadecimal digits that `verify-log` printed then".to_owned();
    is_hash.then(|| text.to_ascii_lowercase()).ok_or_else(wrong)
}

/// Why verification failed.
enum Wrong {
    /// An entry was altered, or does not follow the one before.
    IntegrityError(String),
    /// The chain is intact, but no entry has the expected hash.
    NotHeld(String),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IntegrityError(text) => formatter.write_str(text),
            Self::NotHeld(hash) => write!(formatter, "no entry has the hash {hash}"),
        }
    }
}

/// Opens the log in a data directory, or a log file.
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
    let mut logs = args.archive.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    logs.push(open(&args.dir)?);
    let mut begun = Vec::with_capacity(logs.len());
    for log in &logs {
        begun.push((log.anchor()?.seq, log));
    }
    begun.sort_by_key(|(seq, _)| *seq);
    let first = begun.first().map_or(0, |(seq, _)| *seq);
    let logs: Vec<&dyn Log> = begun.into_iter().map(|(_, log)| log as &dyn Log).collect();
    let mut not_rederived = 0;
    let flaw = match flawed(&logs)? {
        Some(flaw) => Some(Wrong::IntegrityError(flaw)),
        None => read_on(args, &logs, &mut not_rederived)?,
    };
    let Some(head) = logs.last().map(|log| log.head()).transpose()? else {
        return Ok(Outcome::Fine);
    };
    if args.output == Output::Json {
        printer.line(
            &json!({
                "whole": flaw.is_none(), "from": first + 1, "entries": head.seq,
                "hash": head.hash.to_string(),
                "replayed": args.replay && flaw.is_none(), "not_rederived": not_rederived, "flaw": flaw.as_ref().map(ToString::to_string),
            })
            .to_string(),
        )?;
    } else if let Some(wrong) = &flaw {
        printer.line(&format!("NOT WHOLE: {wrong}"))?;
        printer.line(match wrong {
            Wrong::IntegrityError(_) => {
                "What comes before it is as it was written. A backup may have the rest."
            }
            Wrong::NotHeld(_) => {
                "Every entry that is here is as it was written: the end was cut off after that hash was noted, or this is another log. \
                 A backup may have the rest."
            }
        })?;
    } else {
        let decided = match not_rederived {
            _ if !args.replay => "",
            0 => ", and what was decided follows from it",
            _ => ", and what this version decided follows from it",
        };
        let which = match first {
            0 => format!("{} entries are", head.seq),
            _ => format!("entries {} to {} are", first + 1, head.seq),
        };
        printer.line(&format!("whole: {which} as they were written{decided}"))?;
        if not_rederived > 0 {
            printer.line(&format!(
                "{not_rederived} entries were written with another version of the decision logic than {LOGIC_VERSION}: they were folded and not decided again"
            ))?;
        }
        if let Some(log) = logs.first().filter(|_| first > 0) {
            let hash = log.anchor()?.hash;
            printer
                .line(&format!("Entries 1 to {first} are in an archive that ends with {hash}."))?;
        }
        printer.line(&format!("hash {}", head.hash))?;
    }
    Ok(Outcome::finding_if(flaw.is_some()))
}

/// Verifies each log, then that each continues the one before.
fn flawed(logs: &[&dyn Log]) -> Result<Option<String>, LogError> {
    for log in logs {
        if let Err(flaw) = verify(*log)? {
            return Ok(Some(flaw.to_string()));
        }
    }
    Ok(check_joined(logs)?.err().map(|flaw| flaw.to_string()))
}

/// Reads the logs again, for `--replay` and `--holds`: checks that hashes alone do not cover.
fn read_on(
    args: &Args,
    logs: &[&dyn Log],
    not_rederived: &mut u64,
) -> Result<Option<Wrong>, LogError> {
    let mut is_held = args.holds.is_none();
    let mut replay: Option<Replay> = None;
    for log in logs.iter().filter(|_| args.replay || args.holds.is_some()) {
        let begin = log.base_state()?;
        let mut replayed = match replay.take() {
            None => Replay::on(begin),
            Some(mut replayed) => {
                let (is_same, seq) = match replayed.settled() {
                    Ok(state) => (*state == begin, state.seq),
                    Err(divergence) => {
                        return Ok(Some(Wrong::IntegrityError(divergence.to_string())));
                    }
                };
                // A snapshot of an older format has other reasons than a fold of its entries. The
                // server continued from the snapshot.
                let is_foreign = replayed.not_rederived() > *not_rederived;
                if args.replay && !is_same && !is_foreign {
                    return Ok(Some(Wrong::IntegrityError(
                        IntegrityError::Snapshot(seq).to_string(),
                    )));
                }
                *not_rederived = replayed.not_rederived();
                replayed.go_on_from(begin)
            }
        };
        let mut seq = log.anchor()?.seq;
        loop {
            let page = log.read(seq, PAGE)?;
            let Some(last) = page.last() else { break };
            seq = last.seq;
            for stored in page {
                is_held = is_held || args.holds.as_ref() == Some(&stored.hash.to_string());
                if !args.replay {
                    continue;
                }
                if let Err(divergence) = replayed.take(stored.entry()?) {
                    return Ok(Some(Wrong::IntegrityError(divergence.to_string())));
                }
            }
        }
        replay = Some(replayed);
    }
    if let Some(replayed) = &mut replay {
        if let Err(divergence) = replayed.settled() {
            return Ok(Some(Wrong::IntegrityError(divergence.to_string())));
        }
        *not_rederived = replayed.not_rederived();
    }
    Ok(args.holds.clone().filter(|_| !is_held).map(Wrong::NotHeld))
}
