//! The report for people.

use std::io;

use farrier_facts::diag::Grade;

use super::report::{GpuReport, Report, Row};
use crate::printer::{Printer, Tone};
use crate::spread::{Spread, figures};

pub(super) fn print(report: &Report, printer: &mut Printer) -> io::Result<()> {
    if report.simulated {
        printer.line("SIMULATED: nothing here was measured on a GPU")?;
        printer.line("")?;
    }
    for gpu in &report.gpus {
        one(gpu, printer)?;
    }
    for note in &report.notes {
        printer.paragraph("note:", 6, note)?;
    }
    if !report.notes.is_empty() {
        printer.line("")?;
    }
    let driver = report.driver.as_deref().unwrap_or("not known");
    printer.line(&format!(
        "{}{}  level {}, {:.0} s, driver {driver}, facts {}",
        toned(report.grade, printer).to_uppercase(),
        if report.complete { "" } else { ", NOT COMPLETE" },
        report.level,
        report.took_s,
        report.set
    ))
}

fn one(gpu: &GpuReport, printer: &mut Printer) -> io::Result<()> {
    let part = gpu.part.as_deref().unwrap_or("a part that is not known");
    printer.line(&format!(
        "GPU {} {}, {part}, {}: {}",
        gpu.index,
        gpu.name,
        gpu.uuid,
        toned(gpu.grade, printer)
    ))?;
    printer.line("")?;
    let rows: Vec<Vec<String>> = gpu.tests.iter().map(|row| cells(row, printer)).collect();
    printer.table(&["Test", "Verdict", "Measured", "Why"], &rows)?;
    if !gpu.complete {
        let names: Vec<&str> = gpu.missing.iter().map(|test| test.name()).collect();
        let what =
            format!("{} could be tested and were not: nothing is said of them.", names.join(", "));
        printer.line("")?;
        printer.paragraph("not complete:", 14, &what)?;
    }
    printer.line("")
}

fn cells(row: &Row, printer: &Printer) -> Vec<String> {
    vec![
        row.test.name().to_owned(),
        toned(row.grade, printer),
        measured(row),
        if row.why.is_empty() { row.detail.clone() } else { row.why.clone() },
    ]
}

/// The median with its range and unit.
pub(super) fn measured(row: &Row) -> String {
    match (Spread::of(row.samples.iter().copied()), row.value) {
        (Some(spread), Some(_)) => format!("{} {}", spread.text(figures), row.unit),
        _ => String::new(),
    }
}

fn toned(grade: Grade, printer: &Printer) -> String {
    let tone = match grade {
        Grade::Pass => Tone::Good,
        Grade::NotRun | Grade::Degraded => Tone::Caution,
        Grade::Fail => Tone::Bad,
    };
    printer.toned(tone, &grade.to_string())
}
