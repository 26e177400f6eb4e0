//! `farrier facts sets` and `farrier facts update`

use std::path::PathBuf;

use farrier_facts::FactSet;
use serde::Serialize;

use crate::cli::Output;
use crate::fact_sets;
use crate::printer::Printer;

/// Lists the embedded and the installed fact sets; the newest is active.
#[derive(Debug, clap::Args)]
pub(crate) struct SetsArgs {
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Validates a newer fact set and installs it. An invalid file changes nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct UpdateArgs {
    /// Fact set: one JSON document, as printed by `farrier facts export`
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
}

#[derive(Serialize)]
struct FactSetRow {
    set: String,
    date: jiff::civil::Date,
    active: bool,
    path: Option<PathBuf>,
}

pub(super) fn list(args: &SetsArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let active = fact_sets::active().set.clone();
    let embedded = &FactSet::embedded().set;
    let mut rows = vec![FactSetRow {
        set: embedded.name.clone(),
        date: embedded.date,
        active: active == *embedded,
        path: None,
    }];
    rows.extend(fact_sets::installed().into_iter().map(|installed| FactSetRow {
        active: active == installed.id,
        set: installed.id.name,
        date: installed.id.date,
        path: Some(installed.path),
    }));
    if args.output == Output::Json {
        printer.json(&rows)?;
        return Ok(());
    }
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let path = row.path.as_ref().map(|path| path.display().to_string());
            vec![
                row.set.clone(),
                row.date.to_string(),
                if row.active { "active" } else { "-" }.to_owned(),
                path.unwrap_or_else(|| "embedded".to_owned()),
            ]
        })
        .collect();
    printer.table(&["Set", "Date", "State", "Path"], &lines)?;
    Ok(())
}

pub(super) fn update(args: &UpdateArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let installed = fact_sets::install(&args.from)?;
    printer.line(&format!(
        "installed `{}` of {} as {}; it is now active. Delete the file to go back",
        installed.id.name,
        installed.id.date,
        installed.path.display()
    ))?;
    Ok(())
}
