//! `farrier facts driver`

use farrier_facts::FactSet;
use farrier_facts::driver::{BranchFacts, Release};
use farrier_facts::version::{Branch, DriverVersion};
use serde::Serialize;

use super::{Lookup, print_json, record, unknown};
use crate::cli::Output;
use crate::fact_sets;
use crate::printer::Printer;

/// A branch and, if the lookup named a release, that release.
#[derive(Serialize)]
struct DriverRecord<'a> {
    branch: &'a BranchFacts,
    release: Option<&'a Release>,
}

pub(super) fn run(set: &FactSet, lookup: &Lookup, printer: &mut Printer) -> anyhow::Result<()> {
    let found: Vec<DriverRecord<'_>> = match &lookup.name {
        Some(name) => vec![find(set, name)?],
        None => {
            set.drivers.branch.iter().map(|branch| DriverRecord { branch, release: None }).collect()
        }
    };
    if lookup.output == Output::Json {
        return print_json(set, "driver", &found, printer);
    }
    if lookup.name.is_some() {
        for DriverRecord { branch, release } in &found {
            record::print(&branch.branch.to_string(), branch, printer)?;
            if let Some(release) = release {
                record::print(&release.version.to_string(), release, printer)?;
            }
            let releases: Vec<String> = set
                .drivers
                .release
                .iter()
                .filter(|release| release.version.branch() == branch.branch)
                .map(|release| format!("{} ({})", release.version, release.date))
                .collect();
            printer.paragraph("  releases", record::VALUES_AT, &releases.join(", "))?;
        }
    } else {
        let today = fact_sets::today();
        let headings =
            ["Branch", "Kind", "CUDA", "First release", "Latest", "End of support", "Today"];
        let rows: Vec<Vec<String>> = found
            .iter()
            .rev()
            .map(|DriverRecord { branch, .. }| {
                let mark = |field: &str| {
                    if branch.unverified.iter().any(|name| name == field) { " *" } else { "" }
                };
                vec![
                    branch.branch.to_string(),
                    format!("{}{}", branch.lifecycle.name(), mark("lifecycle")),
                    format!("{}{}", branch.native_cuda, mark("native_cuda")),
                    branch.first_release.to_string(),
                    branch.latest.to_string(),
                    branch.end_of_support.map_or_else(
                        || "not stated".to_owned(),
                        |end| format!("{end}{}", mark("end_of_support")),
                    ),
                    branch.support(today).name().to_owned(),
                ]
            })
            .collect();
        printer.table(&headings, &rows)?;
        printer.line("")?;
        printer.line("* unverified: not confirmed by an NVIDIA source")?;
    }
    fact_sets::print(&set.set, printer)?;
    Ok(())
}

fn find<'a>(set: &'a FactSet, name: &str) -> anyhow::Result<DriverRecord<'a>> {
    let digits = name.strip_prefix(['R', 'r']).unwrap_or(name);
    let version = name.parse::<DriverVersion>().ok();
    let number = match &version {
        Some(version) => Some(version.branch()),
        None => digits.parse().ok().map(Branch),
    };
    let branch = number.and_then(|number| set.drivers.branch(number)).ok_or_else(|| {
        let known: Vec<String> =
            set.drivers.branch.iter().map(|branch| branch.branch.0.to_string()).collect();
        unknown("driver", name, known.iter().map(String::as_str))
    })?;
    let release = version
        .and_then(|version| set.drivers.release.iter().find(|entry| entry.version == version));
    Ok(DriverRecord { branch, release })
}
