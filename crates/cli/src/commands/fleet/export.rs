//! `farrier fleet export`.

use clap::ValueEnum;
use serde_json::Value;

use super::session::{FleetSession, Path, explained};
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::Printer;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Data to export
    #[arg(value_enum, default_value_t)]
    data: ExportKind,
    /// Only log entries after this one
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum ExportKind {
    /// Current state of the nodes
    #[default]
    State,
    /// The event log
    Log,
}

pub(super) fn run(
    session: &mut FleetSession,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    let data = if args.data == ExportKind::Log { "log" } else { "state" };
    let path = Path::new("/api/v1/export").with("data", Some(data)).with("after", args.after);
    read_lines(session, &path, |line| Ok(printer.json_line(&line)?))?;
    Ok(Outcome::Fine)
}

/// Reads an export up to its end. Fails if the server could not complete the export.
pub(crate) fn read_lines(
    session: &mut FleetSession,
    path: &Path,
    mut handle: impl FnMut(Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for line in session.lines(path.as_str())? {
        let line: Value = serde_json::from_str(&line.map_err(|err| explained(&err))?)?;
        // If an export is incomplete, its last line is a problem document.
        let problem = line.get("type").and_then(Value::as_str);
        if problem.is_some_and(|uri| uri.starts_with("urn:farrier:problem:")) {
            let detail = line.get("detail").and_then(Value::as_str).unwrap_or_default();
            return Err(Hinted::error(format!("the export is incomplete: {detail}"), "try again"));
        }
        handle(line)?;
    }
    Ok(())
}
