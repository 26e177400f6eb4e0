//! `farrier facts framework`

use farrier_facts::FactSet;
use farrier_facts::framework::{Build, Coverage};

use super::{Lookup, print_json, print_set, record, unknown};
use crate::cli::Output;
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
            if let Some(coverage) = coverage_of(set, build) {
                printer.paragraph("  carries code for", record::VALUES_AT, &code_for(coverage))?;
                let line = format!("{} ({})", coverage.origin.line(), coverage.origin.kind);
                printer.paragraph("  code: source", record::VALUES_AT, &line)?;
            }
        }
    } else {
        let headings = ["Framework", "Version", "Build", "CUDA", "Carries code for", "Python"];
        let rows: Vec<Vec<String>> = builds.iter().rev().map(|build| row(set, build)).collect();
        printer.table(&headings, &rows)?;
    }
    print_set(set, printer)
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
        coverage_of(set, build).map_or_else(|| "-".to_owned(), code_for),
        build.requires_python.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

fn coverage_of<'a>(set: &'a FactSet, build: &Build) -> Option<&'a Coverage> {
    let cuda = build.cuda?;
    set.frameworks.coverage.iter().find(|coverage| {
        coverage.package == build.package
            && coverage.cuda == cuda
            && coverage.versions.iter().any(|version| version.covers(&build.version))
    })
}

fn code_for(coverage: &Coverage) -> String {
    if let Some(minimum) = coverage.minimum {
        return format!("{minimum} and later");
    }
    let mut list: Vec<String> = coverage.machine_code.iter().map(ToString::to_string).collect();
    list.extend(coverage.ptx.iter().map(|target| format!("{target}+PTX")));
    list.join(" ")
}

/// `torch`, `torch==2.11` or `torch==2.11.0`.
fn find<'a>(set: &'a FactSet, name: &str) -> anyhow::Result<Vec<&'a Build>> {
    let (package, version) = match name.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (name, None),
    };
    let package = set.frameworks.package(package).ok_or_else(|| {
        let known = set.frameworks.package.iter().map(|it| it.name.as_str());
        unknown("framework", package, known)
    })?;
    let builds = set.frameworks.build.iter().filter(|build| build.package == package.name);
    let Some(version) = version else { return Ok(builds.collect()) };
    let wanted = format!("{version}.");
    let matches = |build: &&Build| format!("{}.", build.version).starts_with(&wanted);
    let found: Vec<&Build> = builds.filter(matches).collect();
    if found.is_empty() {
        let known: Vec<String> =
            set.frameworks.builds(&package.name).map(|it| it.version.to_string()).collect();
        return Err(unknown("framework", name, known.iter().map(String::as_str)));
    }
    Ok(found)
}
