//! The report for people.

use std::io;

use farrier_facts::diag::Grade;

use super::report::{GpuReport, Report, Row};
use crate::printer::{Printer, Tone};
use crate::stats::{Stats, significant};

pub(super) fn print(report: &Report, printer: &mut Printer) -> io::Result<()> {
    if report.simulated {
        printer.line("SIMULATED: nothing here was measured on a GPU")?;
        printer.line("")?;
    }
    let mut rest = &report.gpus[..];
    while let Some(first) = rest.first() {
        let alike = rest.iter().take_while(|gpu| is_alike(first, gpu)).count().max(1);
        if alike > 1 {
            untested(&rest[..alike], printer)?;
        } else {
            one(first, printer)?;
        }
        rest = &rest[alike..];
    }
    for note in &report.notes {
        printer.paragraph("note:", 6, note)?;
    }
    if !report.notes.is_empty() {
        printer.line("")?;
    }
    let driver = report.driver.as_deref().unwrap_or("not known");
    printer.line(&format!(
        "{}{}{}  level {}, {:.0} s, driver {driver}, facts {}",
        toned(report.grade, printer).to_uppercase(),
        counted(&report.gpus),
        if report.complete { "" } else { ", NOT COMPLETE" },
        report.level,
        report.took_s,
        report.set
    ))
}

/// How many GPUs came to what, where they did not all come to the same.
fn counted(gpus: &[GpuReport]) -> String {
    let grades = [Grade::Pass, Grade::NotRun, Grade::Degraded, Grade::Fail];
    let counts = grades.map(|grade| (gpus.iter().filter(|gpu| gpu.grade == grade).count(), grade));
    let told: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, grade)| format!("{count} {grade}"))
        .collect();
    if told.len() > 1 { format!(" ({})", told.join(", ")) } else { String::new() }
}

/// Whether two GPUs were not opened, for the same reason.
fn is_alike(one: &GpuReport, other: &GpuReport) -> bool {
    let why = |gpu: &GpuReport| (gpu.grade, gpu.tests.first().map(|row| row.why.clone()));
    one.about.is_none() && other.about.is_none() && why(one) == why(other)
}

/// GPUs that were not opened for one reason: it is said once.
fn untested(gpus: &[GpuReport], printer: &mut Printer) -> io::Result<()> {
    let Some(first) = gpus.first() else { return Ok(()) };
    let numbers: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let grade = toned(first.grade, printer);
    printer.line(&format!("GPU {}: {grade}", numbers.join(", ")))?;
    why_untested(first, printer)
}

/// Why nothing was tested, once for all tests, and what to do.
fn why_untested(gpu: &GpuReport, printer: &mut Printer) -> io::Result<()> {
    let why = gpu.tests.first().map_or("", |row| row.why.as_str());
    printer.line("")?;
    printer.paragraph("no test could be run:", 22, why)?;
    to_do(gpu, printer)?;
    printer.line("")
}

fn to_do(gpu: &GpuReport, printer: &mut Printer) -> io::Result<()> {
    match &gpu.remedy {
        Some(remedy) => printer.paragraph("what to do:", 12, remedy),
        None => Ok(()),
    }
}

fn one(gpu: &GpuReport, printer: &mut Printer) -> io::Result<()> {
    let part = gpu.part.as_deref().unwrap_or("a part that is not known");
    let who = match &gpu.uuid {
        Some(uuid) => format!(" {}, {part}, {uuid}", gpu.name),
        None => ", which does not say who it is".to_owned(),
    };
    printer.line(&format!("GPU {}{who}: {}", gpu.index, toned(gpu.grade, printer)))?;
    if gpu.about.is_none() {
        return why_untested(gpu, printer);
    }
    printer.line("")?;
    let rows: Vec<Vec<String>> = gpu.tests.iter().map(|row| cells(row, printer)).collect();
    printer.table(&["Test", "Verdict", "Measured", "Why"], &rows)?;
    if !gpu.complete || gpu.remedy.is_some() {
        printer.line("")?;
    }
    if !gpu.complete {
        let names: Vec<&str> = gpu.missing.iter().map(|test| test.name()).collect();
        let what =
            format!("{} could be tested and were not: nothing is said of them.", names.join(", "));
        printer.paragraph("not complete:", 14, &what)?;
    }
    to_do(gpu, printer)?;
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
    match (Stats::from_samples(row.samples.iter().copied()), row.value) {
        (Some(stats), Some(_)) => format!("{} {}", stats.format_with(significant), row.unit),
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
