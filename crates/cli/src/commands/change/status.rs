//! `farrier change status` and `history`.

use farrier_fleet::change::ChangeRecord;
use serde::Serialize;

use super::apply::print_end;
use super::node::{ChangeNodeArgs, name};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;

const STATUS_VERSION: u32 = 1;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    node: ChangeNodeArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

#[derive(Debug, Serialize)]
struct StatusReport<'a> {
    v: u32,
    /// The current or last change. `None` if there was none.
    change: Option<&'a ChangeRecord>,
}

#[derive(Debug, Serialize)]
struct HistoryReport<'a> {
    v: u32,
    changes: &'a [ChangeRecord],
}

pub(super) fn status(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let journal = args.node.read_journal()?;
    let change = journal.history().last();
    if args.output == Output::Json {
        printer.json(&StatusReport { v: STATUS_VERSION, change })?;
        return Ok(Outcome::Fine);
    }
    let Some(record) = change else {
        printer.line("This node had no change.")?;
        return Ok(Outcome::Fine);
    };
    print_end(record, printer)?;
    printer.line(&format!("In this state since {}: {}", record.entered_at, record.reason))?;
    if let Some(action) = &record.visit.begun {
        printer.line(&format!("Begun: {action}"))?;
    }
    if let Some((action, failure)) = &record.visit.failure {
        printer.paragraph("", 0, &format!("Last failure: {action}: {failure}"))?;
    }
    if let Some((by, reason)) = &record.released_by {
        printer.line(&format!("Released by {by}: {reason}"))?;
    }
    Ok(Outcome::Fine)
}

pub(super) fn history(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let journal = args.node.read_journal()?;
    let changes = &journal.history().records;
    if args.output == Output::Json {
        printer.json(&HistoryReport { v: STATUS_VERSION, changes })?;
        return Ok(Outcome::Fine);
    }
    if changes.is_empty() {
        printer.line("This node had no change.")?;
        return Ok(Outcome::Fine);
    }
    let rows: Vec<Vec<String>> = changes.iter().map(row).collect();
    printer.table(&["CHANGE", "ACCEPTED", "FROM", "TO", "STATE", "CAUSE"], &rows)?;
    Ok(Outcome::Fine)
}

fn row(record: &ChangeRecord) -> Vec<String> {
    let request = &record.request;
    vec![
        request.id.to_string(),
        record.accepted_at.strftime("%F %H:%M").to_string(),
        name(&request.from.driver, request.from.id),
        name(&request.to.driver, request.to.id),
        record.state.to_string(),
        record.cause.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}
