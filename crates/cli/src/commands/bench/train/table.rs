//! Prints the report on a terminal.

use super::report::BenchReport;
use super::summary;
use super::view::{self, TextTable};
use crate::printer::{Printer, Tone};

pub(crate) fn print(report: &BenchReport, printer: &mut Printer) -> anyhow::Result<()> {
    for (name, value) in summary::machine(report) {
        printer.paragraph(name, 11, &value)?;
    }
    if let Some(differences) = report.incomparable() {
        let warning = printer.toned(Tone::Caution, &format!("Not comparable: {differences}."));
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
    for comparison in &report.steps {
        block(&view::speed(report, comparison), printer)?;
        printer.line("")?;
        let resources = view::resources(comparison);
        rows(&resources, printer)?;
        for line in view::eager_repeats(comparison) {
            printer.paragraph("", 0, &line)?;
        }
    }
    for comparison in &report.memory {
        block(&view::memory(comparison), printer)?;
    }
    if report.steps.is_empty() && report.memory.is_empty() {
        printer.line("")?;
        printer.line("Nothing measured yet.")?;
    }
    printer.line("")?;
    for note in summary::notes(report) {
        printer.paragraph("", 0, &note)?;
    }
    failures(report, printer)
}

fn block(block: &TextTable, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line("")?;
    let title = printer.toned(Tone::Strong, &block.title);
    printer.line(&title)?;
    rows(block, printer)
}

fn rows(block: &TextTable, printer: &mut Printer) -> anyhow::Result<()> {
    let headings: Vec<&str> = block.headings.iter().map(String::as_str).collect();
    printer.table(&headings, &block.rows)?;
    Ok(())
}

fn failures(report: &BenchReport, printer: &mut Printer) -> anyhow::Result<()> {
    if report.failed.is_empty() {
        return Ok(());
    }
    printer.line("")?;
    let title = printer.toned(Tone::Bad, &format!("{} failed", count(report)));
    printer.line(&title)?;
    for failed in &report.failed {
        printer.line(&format!("{} ({}): {}", failed.name, failed.what, failed.why))?;
        // The last line of a traceback names the error. The shard's file has more lines.
        for line in failed.stderr.iter().rev().take(3).rev() {
            printer.line(&format!("    {line}"))?;
        }
    }
    Ok(())
}

fn count(report: &BenchReport) -> String {
    match report.failed.len() {
        1 => "1 shard".to_owned(),
        many => format!("{many} shards"),
    }
}
