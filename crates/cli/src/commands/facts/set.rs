//! `farrier facts sets` and `farrier facts update`

use std::path::PathBuf;

use farrier_facts::FactSet;
use serde::Serialize;

use crate::cli::Output;
use crate::fact_sets;
use crate::printer::Printer;

/// The embedded set and those installed beside it; the newest is in force.
#[derive(Debug, clap::Args)]
pub(crate) struct SetsArgs {
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Checks all of a newer set and installs it. A bad file changes nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct UpdateArgs {
    /// The set: one JSON document, as `farrier facts export` prints it
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
}

#[derive(Serialize)]
struct Row {
    set: String,
    date: jiff::civil::Date,
    active: bool,
    path: Option<PathBuf>,
}

pub(super) fn list(args: &SetsArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let active = fact_sets::active().set.clone();
    let embedded = &FactSet::embedded().set;
    let mut rows = vec![Row {
        set: embedded.name.clone(),
        date: embedded.date,
        active: active == *embedded,
        path: None,
    }];
    rows.extend(fact_sets::installed().into_iter().map(|found| Row {
        active: active == found.id,
        set: found.id.name,
        date: found.id.date,
        path: Some(found.path),
    }));
    if args.output == Output::Json {
        printer.json(&rows)?;
        return Ok(());
    }
    let lines: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let place = row.path.as_ref().map(|path| path.display().to_string());
            vec![
                row.set.clone(),
                row.date.to_string(),
                if row.active { "in force" } else { "-" }.to_owned(),
                place.unwrap_or_else(|| "embedded".to_owned()),
            ]
        })
        .collect();
    printer.table(&["Set", "Date", "State", "Where"], &lines)?;
    Ok(())
}

pub(super) fn update(args: &UpdateArgs, printer: &mut Printer) -> anyhow::Result<()> {
    let installed = fact_sets::install(&args.from)?;
    printer.line(&format!(
        "installed `{}` of {} as {}; it is in force now, delete the file to go back",
        installed.id.name,
        installed.id.date,
        installed.path.display()
    ))?;
    Ok(())
}
