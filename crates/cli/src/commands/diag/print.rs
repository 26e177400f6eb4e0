//! Prints the report for people.

use std::io;

use farrier_facts::diag::Grade;

use super::report::{DiagReport, GpuReport, TestRow};
use crate::printer::{Printer, Tone};
use crate::stats::{Stats, significant};

pub(super) fn print(report: &DiagReport, printer: &mut Printer) -> io::Result<()> {
    if report.simulated {
        printer.line("SIMULATED: no real GPU was measured")?;
        printer.line("")?;
    }
    let mut rest = &report.gpus[..];
    while let Some(first) = rest.first() {
        let alike = rest.iter().take_while(|gpu| is_alike(first, gpu)).count().max(1);
        if alike > 1 {
            print_untested(&rest[..alike], printer)?;
        } else {
            print_gpu(first, printer)?;
        }
        rest = &rest[alike..];
    }
    for note in &report.notes {
        printer.paragraph("note:", 6, note)?;
    }
    if !report.notes.is_empty() {
        printer.line("")?;
    }
    let driver = report.driver.as_deref().unwrap_or("unknown");
    printer.line(&format!(
        "{}{}{}  level {}, {:.0} s, driver {driver}, facts {}",
        toned(report.grade, printer).to_uppercase(),
        grade_counts(&report.gpus),
        if report.complete { "" } else { ", INCOMPLETE" },
        report.level,
        report.took_s,
        report.set
    ))
}

/// Number of GPUs per grade, if the grades differ.
fn grade_counts(gpus: &[GpuReport]) -> String {
    let grades = [Grade::Pass, Grade::NotRun, Grade::Degraded, Grade::Fail];
    let counts = grades.map(|grade| (gpus.iter().filter(|gpu| gpu.grade == grade).count(), grade));
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, grade)| format!("{count} {grade}"))
        .collect();
    if counts.len() > 1 { format!(" ({})", counts.join(", ")) } else { String::new() }
}

/// Whether both GPUs could not be opened, for the same reason.
fn is_alike(one: &GpuReport, other: &GpuReport) -> bool {
    let why = |gpu: &GpuReport| (gpu.grade, gpu.tests.first().map(|row| row.why.clone()));
    one.about.is_none() && other.about.is_none() && why(one) == why(other)
}

/// Prints GPUs that were not opened for the same reason, as one entry.
fn print_untested(gpus: &[GpuReport], printer: &mut Printer) -> io::Result<()> {
    let Some(first) = gpus.first() else { return Ok(()) };
    let numbers: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let grade = toned(first.grade, printer);
    printer.line(&format!("GPU {}: {grade}", numbers.join(", ")))?;
    print_untested_reason(first, printer)
}

/// Prints why nothing was tested, and the remedy.
fn print_untested_reason(gpu: &GpuReport, printer: &mut Printer) -> io::Result<()> {
    let why = gpu.tests.first().map_or("", |row| row.why.as_str());
    printer.line("")?;
    printer.paragraph("no test was run:", 17, why)?;
    print_remedy(gpu, printer)?;
    printer.line("")
}

fn print_remedy(gpu: &GpuReport, printer: &mut Printer) -> io::Result<()> {
    match &gpu.remedy {
        Some(remedy) => printer.paragraph("what to do:", 12, remedy),
        None => Ok(()),
    }
}

fn print_gpu(gpu: &GpuReport, printer: &mut Printer) -> io::Result<()> {
    let model = gpu.part.as_deref().unwrap_or("unknown model");
    let identity = match &gpu.uuid {
        Some(uuid) => format!(" {}, {model}, {uuid}", gpu.name),
        None => " without a UUID".to_owned(),
    };
    printer.line(&format!("GPU {}{identity}: {}", gpu.index, toned(gpu.grade, printer)))?;
    if gpu.about.is_none() {
        return print_untested_reason(gpu, printer);
    }
    printer.line("")?;
    let rows: Vec<Vec<String>> = gpu.tests.iter().map(|row| cells(row, printer)).collect();
    printer.table(&["Test", "Verdict", "Measured", "Why"], &rows)?;
    if !gpu.complete || gpu.remedy.is_some() {
        printer.line("")?;
    }
    if !gpu.complete {
        let names: Vec<&str> = gpu.missing.iter().map(|test| test.name()).collect();
        let what = format!("{} apply to this GPU and were not run.", names.join(", "));
        printer.paragraph("incomplete:", 12, &what)?;
    }
    print_remedy(gpu, printer)?;
    printer.line("")
}

fn cells(row: &TestRow, printer: &Printer) -> Vec<String> {
    vec![
        row.test.name().to_owned(),
        toned(row.grade, printer),
        measured(row),
        if row.why.is_empty() { row.detail.clone() } else { row.why.clone() },
    ]
}

/// The median with its range and unit.
pub(super) fn measured(row: &TestRow) -> String {
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
