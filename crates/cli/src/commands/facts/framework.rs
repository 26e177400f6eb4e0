//! `farrier facts framework`

use farrier_facts::FactSet;
use farrier_facts::framework::{Build, TargetCoverage};

use super::{Lookup, print_json, record, unknown};
use crate::cli::Output;
use crate::fact_sets;
use crate::printer::Printer;

pub(super) fn run(set: &FactSet, lookup: &Lookup, printer: &mut Printer) -> anyhow::Result<()> {
    let builds: Vec<&Build> = match &lookup.name {
        Some(name) => find(set, name)?,
        None => set.frameworks.build.iter().collect(),
    };
    if lookup.output == Output::Json {
        return print_json(set, "framework", &builds, printer);
    }
    let one_version = builds
        .windows(2)
        .all(|pair| pair[0].package == pair[1].package && pair[0].version == pair[1].version);
    if lookup.name.is_some() && one_version {
        for build in builds {
            let title = format!("{} {} ({})", build.package, build.version, build.build);
            record::print(&title, build, printer)?;
            if let Some(coverage) = coverage_for(set, build) {
                printer.paragraph("  contains code for", record::VALUES_AT, &coverage.list())?;
                let line = format!("{} ({})", coverage.origin.line(), coverage.origin.kind);
                printer.paragraph("  code: source", record::VALUES_AT, &line)?;
            }
        }
    } else {
        let headings = ["Framework", "Version", "Build", "CUDA", "Carries code for", "Python"];
        let rows: Vec<Vec<String>> = builds.iter().rev().map(|build| row(set, build)).collect();
        printer.table(&headings, &rows)?;
    }
    fact_sets::print(&set.set, printer)?;
    Ok(())
}

fn row(set: &FactSet, build: &Build) -> Vec<String> {
    let cuda = match (build.cuda, &build.torch) {
        (_, Some(torch)) => format!("as torch {torch}"),
        (Some(cuda), None) => build
            .cuda_below
            .map_or_else(|| cuda.to_string(), |below| format!("{cuda} to below {below}")),
        (None, None) => "unknown".to_owned(),
    };
    vec![
        build.package.clone(),
        build.version.to_string(),
        build.build.clone(),
        cuda,
        coverage_for(set, build).map_or_else(|| "-".to_owned(), TargetCoverage::list),
        build.requires_python.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// The GPU architectures a build has code for, if a source lists this exact build.
fn coverage_for<'a>(set: &'a FactSet, build: &Build) -> Option<&'a TargetCoverage> {
    let cuda = build.cuda?;
    let entry = set.frameworks.coverage(&build.package, &build.version, cuda)?;
    (!entry.assumed).then_some(entry.coverage)
}

/// Finds by `torch`, `torch==2.11` or `torch==2.11.0`.
fn find<'a>(set: &'a FactSet, name: &str) -> anyhow::Result<Vec<&'a Build>> {
    let (package, version) = match name.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (name, None),
    };
    let package = set.frameworks.package(package).ok_or_else(|| {
        let known = set.frameworks.package.iter().map(|package| package.name.as_str());
        unknown("framework", package, known)
    })?;
    let builds = set.frameworks.build.iter().filter(|build| build.package == package.name);
    let Some(version) = version else { return Ok(builds.collect()) };
    let (version, tag) = match version.split_once('+') {
        Some((version, tag)) => (version, Some(tag)),
        None => (version, None),
    };
    let prefix = format!("{version}.");
    let matches = |build: &&Build| {
        format!("{}.", build.version).starts_with(&prefix)
            && tag.is_none_or(|tag| build.build == tag)
    };
    let found: Vec<&Build> = builds.filter(matches).collect();
    if found.is_empty() {
        let known: Vec<String> =
            set.frameworks.builds(&package.name).map(|build| build.version.to_string()).collect();
        return Err(unknown("framework", name, known.iter().map(String::as_str)));
    }
    Ok(found)
}
