//! `farrier facts cuda`

use farrier_facts::FactSet;
use farrier_facts::cuda::Toolkit;

use super::{Lookup, print_json, record};
use crate::cli::Output;
use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

pub(super) fn run(set: &FactSet, lookup: &Lookup, printer: &mut Printer) -> anyhow::Result<()> {
    let toolkits: Vec<&Toolkit> = match &lookup.name {
        Some(name) => find(set, name)?,
        None => set.cuda.toolkit.iter().collect(),
    };
    if lookup.output == Output::Json {
        return print_json(set, "cuda", &toolkits, printer);
    }
    if lookup.name.is_some() {
        for toolkit in toolkits {
            record::print(&toolkit.name, toolkit, printer)?;
            if let Some(family) = set.cuda.family(toolkit.version.cuda.major) {
                let line = format!(
                    "{} or newer, by minor-version compatibility (not PTX)",
                    family.driver_min
                );
                printer.paragraph("  runs on driver", record::VALUES_AT, &line)?;
            }
        }
    } else {
        let headings = ["CUDA", "Name", "Ships with driver", "Runs on driver"];
        let rows: Vec<Vec<String>> = toolkits
            .iter()
            .map(|toolkit| {
                let family = set.cuda.family(toolkit.version.cuda.major);
                vec![
                    toolkit.version.to_string(),
                    toolkit.name.clone(),
                    toolkit.driver.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
                    family
                        .map(|family| format!("{} or newer", family.driver_min))
                        .unwrap_or_default(),
                ]
            })
            .collect();
        printer.table(&headings, &rows)?;
    }
    fact_sets::print(&set.set, printer)?;
    Ok(())
}

/// Finds by `12`, `12.8` or `12.8.1`.
fn find<'a>(set: &'a FactSet, name: &str) -> anyhow::Result<Vec<&'a Toolkit>> {
    let prefix = format!("{name}.");
    let matches = |toolkit: &&Toolkit| format!("{}.", toolkit.version).starts_with(&prefix);
    let found: Vec<&Toolkit> = set.cuda.toolkit.iter().filter(matches).collect();
    if found.is_empty() {
        let major = name.split('.').next().unwrap_or_default();
        let minors = set.cuda.minors().into_iter().rev().map(|minor| minor.to_string());
        let of_major = minors.filter(|minor| minor.split('.').next() == Some(major));
        let known: Vec<String> = of_major.collect();
        let hint = match known.as_slice() {
            [] => "`farrier facts cuda` lists them all".to_owned(),
            known => format!("published: {}", known.join(", ")),
        };
        return Err(Hinted::error(format!("no cuda `{name}` in the data"), hint));
    }
    Ok(found)
}
