//! The report for people at a terminal.

use super::about;
use super::report::Report;
use super::view::{self, Block};
use crate::printer::{Printer, Tone};

pub(crate) fn print(report: &Report, printer: &mut Printer) -> anyhow::Result<()> {
    for (what, value) in about::machine(report) {
        printer.paragraph(what, 11, &value)?;
    }
    if let Some(mixed) = report.mixed() {
        let warning = printer.toned(Tone::Caution, &format!("Not comparable: {mixed}."));
        printer.line(&warning)?;
    }
    if let Some(hosts) = report.hosts_differ() {
        let warning = printer.toned(Tone::Caution, &format!("Several hosts: {hosts}."));
        printer.line(&warning)?;
    }
    let changes = view::changes(report);
    if !changes.rows.is_empty() {
        block(&changes, printer)?;
    }
    for found in &report.steps {
        block(&view::speed(report, found), printer)?;
        printer.line("")?;
        let burden = view::burden(found);
        rows(&burden, printer)?;
        for line in view::eager_repeats(found) {
            printer.paragraph("", 0, &line)?;
        }
    }
    for found in &report.memory {
        block(&view::memory(found), printer)?;
    }
    if report.steps.is_empty() && report.memory.is_empty() {
        printer.line("")?;
        printer.line("Nothing is measured yet.")?;
    }
    printer.line("")?;
    for note in about::notes(report) {
        printer.paragraph("", 0, &note)?;
    }
    failures(report, printer)
}

fn block(block: &Block, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let title = printer.toned(Tone::Strong, &block.title);
    printer.line(&title)?;
    rows(block, printer)
}

fn rows(block: &Block, printer: &mut Printer) -> anyhow::Result<()> {
    let headings: Vec<&str> = block.headings.iter().map(String::as_str).collect();
    printer.table(&headings, &block.rows)?;
    Ok(())
}

fn failures(report: &Report, printer: &mut Printer) -> anyhow::Result<()> {
    if report.failed.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let title = printer.toned(Tone::Bad, &format!("{} without a result", count(report)));
    printer.line(&title)?;
    for failed in &report.failed {
        printer.line(&format!("{} ({}): {}", failed.name, failed.what, failed.why))?;
        // The last line of a traceback names the error; all of them are in the shard's file.
        for line in failed.stderr.iter().rev().take(3).rev() {
            printer.line(&format!("    {line}"))?;
        }
    }
    Ok(())
}

fn count(report: &Report) -> String {
    match report.failed.len() {
        1 => "1 shard".to_owned(),
        many => format!("{many} shards"),
    }
}
