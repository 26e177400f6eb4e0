//! `farrier facts advisory`

use farrier_facts::FactSet;
use farrier_facts::advisory::{Advisory, Regression};

use super::{Lookup, print_json, record, unknown};
use crate::cli::Output;
use crate::fact_sets;
use crate::printer::Printer;

pub(super) fn run(set: &FactSet, lookup: &Lookup, printer: &mut Printer) -> anyhow::Result<()> {
    let name = lookup.name.as_deref();
    let advisories: Vec<&Advisory> = set
        .advisories
        .advisory
        .iter()
        .filter(|advisory| name.is_none_or(|name| matches(advisory, name)))
        .collect();
    let regressions: Vec<&Regression> = set
        .advisories
        .regression
        .iter()
        .filter(|regression| name.is_none_or(|name| name == "regression" || regression.id == name))
        .collect();
    if let Some(name) = name
        && advisories.is_empty()
        && regressions.is_empty()
    {
        let ids = set.advisories.advisory.iter().map(|advisory| advisory.id.as_str());
        let regressions = set.advisories.regression.iter().map(|regression| regression.id.as_str());
        let known = ids.chain(regressions);
        return Err(unknown("advisory", name, known));
    }
    if lookup.output == Output::Json {
        let advisories = advisories.iter().map(serde_json::to_value);
        let regressions = regressions.iter().map(serde_json::to_value);
        let all: Vec<serde_json::Value> =
            advisories.chain(regressions).collect::<Result<_, _>>()?;
        return print_json(set, "advisory", &all, printer);
    }
    if name.is_some() && advisories.len() + regressions.len() <= 3 {
        for advisory in advisories {
            record::print(&advisory.id, advisory, printer)?;
        }
        for regression in regressions {
            record::print(&regression.id, regression, printer)?;
        }
    } else {
        print_lists(&advisories, &regressions, printer)?;
    }
    fact_sets::print(&set.set, printer)?;
    Ok(())
}

/// Matches by CVE, bulletin number or product.
fn matches(advisory: &Advisory, name: &str) -> bool {
    advisory.id.eq_ignore_ascii_case(name)
        || advisory.bulletin == name
        || advisory.product.name() == name
}

fn print_lists(
    advisories: &[&Advisory],
    regressions: &[&Regression],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let headings = ["Advisory", "Published", "CVSS", "Product", "Fixed in", "Summary"];
    let rows: Vec<Vec<String>> = advisories
        .iter()
        .map(|advisory| {
            let drivers = advisory.fixed_drivers.iter().map(|fixed| fixed.version.to_string());
            let components = advisory
                .fixed_components
                .iter()
                .map(|fixed| format!("{} {}", fixed.component, fixed.version));
            vec![
                advisory.id.clone(),
                advisory.published.to_string(),
                format!("{} {}", advisory.score, advisory.level.name()),
                advisory.product.name().to_owned(),
                drivers.chain(components).collect::<Vec<_>>().join(", "),
                advisory.summary.clone(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        printer.table(&headings, &rows)?;
    }
    if !regressions.is_empty() {
        printer.line("")?;
        let headings = ["Regression", "Drivers", "Seen on", "What happens"];
        let rows: Vec<Vec<String>> = regressions
            .iter()
            .map(|regression| {
                let ranges = regression.drivers.iter().map(|range| match &range.to {
                    Some(to) if *to == range.from => to.to_string(),
                    Some(to) => format!("{} to {to}", range.from),
                    None => format!("{} and later of the branch", range.from),
                });
                vec![
                    regression.id.clone(),
                    ranges.collect::<Vec<_>>().join(", "),
                    regression.seen_on.clone(),
                    regression.what.clone(),
                ]
            })
            .collect();
        printer.table(&headings, &rows)?;
    }
    Ok(())
}
