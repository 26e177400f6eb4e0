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
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    require_hash: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Parses a hash in the form in which this command prints it.
fn parse_hash(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let wrong = || "expected the 64 hexadecimal digits that `verify-log` printed".to_owned();
    is_hash.then(|| text.to_ascii_lowercase()).ok_or_else(wrong)
}

/// Why verification failed.
enum VerifyError {
    /// An entry was altered, or does not follow the previous entry.
    IntegrityError(String),
    /// The chain is intact, but no entry has the expected hash.
    HashNotFound(String),
}

impl std::fmt::Display for VerifyError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IntegrityError(text) => formatter.write_str(text),
            Self::HashNotFound(hash) => write!(formatter, "no entry has the hash {hash}"),
        }
    }
}

/// Opens the log in a data directory, or a log file.
pub(crate) fn open(path: &std::path::Path) -> anyhow::Result<SqliteLog> {
    let file = if path.is_dir() { log_path(path) } else { path.to_owned() };
    SqliteLog::open_to_read(&file).map_err(|err| {
        let message = format!("{err}: `{}`", file.display());
        Hinted::error(
            message,
            "name the server's data directory, or a file that `farrier server backup` wrote",
        )
    })
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut logs = args.archive.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    logs.push(open(&args.dir)?);
    let mut by_start = Vec::with_capacity(logs.len());
    for log in &logs {
        by_start.push((log.anchor()?.seq, log));
    }
    by_start.sort_by_key(|(seq, _)| *seq);
    let first = by_start.first().map_or(0, |(seq, _)| *seq);
    let logs: Vec<&dyn Log> = by_start.into_iter().map(|(_, log)| log as &dyn Log).collect();
    let mut not_rederived = 0;
    let flaw = match first_flaw(&logs)? {
        Some(flaw) => Some(VerifyError::IntegrityError(flaw)),
        None => check_contents(args, &logs, &mut not_rederived)?,
    };
    let Some(head) = logs.last().map(|log| log.head()).transpose()? else {
        return Ok(Outcome::Fine);
    };
    if args.output == Output::Json {
        printer.line(
            &json!({
                "intact": flaw.is_none(), "from": first + 1, "entries": head.seq,
                "hash": head.hash.to_string(),
                "replayed": args.replay && flaw.is_none(), "not_reproduced": not_rederived,
                "integrity_error": flaw.as_ref().map(ToString::to_string),
            })
            .to_string(),
        )?;
    } else if let Some(error) = &flaw {
        printer.line(&format!("VERIFICATION FAILED: {error}"))?;
        printer.line(match error {
            VerifyError::IntegrityError(_) => {
                "The entries before it are unaltered. A backup may have the rest."
            }
            VerifyError::HashNotFound(_) => {
                "The hash chain is intact: the log was truncated after that hash was noted, or it is another log. \
                 A backup may have the rest."
            }
        })?;
    } else {
        let decided = match not_rederived {
            _ if !args.replay => "",
            0 => ", every decision reproduced",
            _ => ", every decision of this version reproduced",
        };
        let which = match first {
            0 => format!("{} entries", head.seq),
            _ => format!("entries {} to {}", first + 1, head.seq),
        };
        printer.line(&format!("verified: {which}, hash chain intact{decided}"))?;
        if not_rederived > 0 {
            printer.line(&format!(
                "{not_rederived} entries were written by another version of the decision logic than {LOGIC_VERSION}: they were applied, but their decisions were not reproduced"
            ))?;
        }
        if let Some(log) = logs.first().filter(|_| first > 0) {
            let hash = log.anchor()?.hash;
            printer.line(&format!(
                "Entries 1 to {first} are in an archive that ends with hash {hash}."
            ))?;
        }
        printer.line(&format!("hash {}", head.hash))?;
    }
    Ok(Outcome::finding_if(flaw.is_some()))
}

/// Verifies each log, and checks that each log continues the previous log.
fn first_flaw(logs: &[&dyn Log]) -> Result<Option<String>, LogError> {
    for log in logs {
        if let Err(flaw) = verify(*log)? {
            return Ok(Some(flaw.to_string()));
        }
    }
    Ok(check_joined(logs)?.err().map(|flaw| flaw.to_string()))
}

/// Reads the logs again, for the checks of `--replay` and `--require-hash`.
fn check_contents(
    args: &Args,
    logs: &[&dyn Log],
    not_rederived: &mut u64,
) -> Result<Option<VerifyError>, LogError> {
    let mut is_hash_found = args.require_hash.is_none();
    let mut replay: Option<Replay> = None;
    for log in logs.iter().filter(|_| args.replay || args.require_hash.is_some()) {
        let base = log.base_state()?;
        let mut replayed = match replay.take() {
            None => Replay::from_state(base),
            Some(mut replayed) => {
                let (is_same, seq) = match replayed.state() {
                    Ok(state) => (*state == base, state.seq),
                    Err(divergence) => {
                        return Ok(Some(VerifyError::IntegrityError(divergence.to_string())));
                    }
                };
                // A replay does not repeat decisions that another version of the decision logic
                // made, so its state may differ from the snapshot. This is no error. The replay
                // continues with the snapshot, as the server did.
                let has_other_version = replayed.not_rederived() > *not_rederived;
                if args.replay && !is_same && !has_other_version {
                    return Ok(Some(VerifyError::IntegrityError(
                        IntegrityError::Snapshot(seq).to_string(),
                    )));
                }
                *not_rederived = replayed.not_rederived();
                replayed.continue_from(base)
            }
        };
        let mut seq = log.anchor()?.seq;
        loop {
            let page = log.read(seq, PAGE)?;
            let Some(last) = page.last() else { break };
            seq = last.seq;
            for stored in page {
                is_hash_found =
                    is_hash_found || args.require_hash.as_ref() == Some(&stored.hash.to_string());
                if !args.replay {
                    continue;
                }
                if let Err(divergence) = replayed.apply(stored.entry()?) {
                    return Ok(Some(VerifyError::IntegrityError(divergence.to_string())));
                }
            }
        }
        replay = Some(replayed);
    }
    if let Some(replayed) = &mut replay {
        if let Err(divergence) = replayed.state() {
            return Ok(Some(VerifyError::IntegrityError(divergence.to_string())));
        }
        *not_rederived = replayed.not_rederived();
    }
    Ok(args.require_hash.clone().filter(|_| !is_hash_found).map(VerifyError::HashNotFound))
}
