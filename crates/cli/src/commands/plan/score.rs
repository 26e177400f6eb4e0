//! `farrier plan score`

use std::path::PathBuf;

use anyhow::Context;
use farrier_planner::Planner;
use farrier_planner::published;
use farrier_planner::score::{Score, Scored, Tally, score};

use super::figures::percent;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;
use crate::sets;

/// Which table.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A table of runs, with the columns of `data/planner/published_training.csv`; the one that ships without it
    file: Option<PathBuf>,
    /// List so many rows, worst first
    #[arg(long, value_name = "N", default_value = "0")]
    worst: usize,
    /// In JSON, every row with its estimate
    #[arg(long)]
    rows: bool,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = sets::active();
    let (name, bytes) = match &args.file {
        Some(path) => {
            let bytes = std::fs::read(path)
                .with_context(|| format!("failed to read `{}`", path.display()))?;
            (path.display().to_string(), bytes)
        }
        None => ("the published runs that ship".to_owned(), published::embedded().to_vec()),
    };
    let table = published::read(&facts, &bytes).with_context(|| format!("`{name}`"))?;
    let score = score(Planner::shipped(), table);
    match args.output {
        Output::Json if args.rows => {
            let mut document = serde_json::to_value(&score)?;
            document["rows"] = score.rows.iter().map(line).collect();
            printer.json(&document)?;
        }
        Output::Json => printer.json(&score)?,
        Output::Table => print(&name, &score, args.worst, printer)?,
    }
    Ok(Outcome::Fine)
}

/// A row for programs.
fn line(scored: &Scored) -> serde_json::Value {
    let run = &scored.row.run;
    serde_json::json!({
        "source": scored.row.source,
        "date": scored.row.date,
        "model": run.model.name,
        "gpu": scored.row.gpu,
        "gpus": run.layout.gpus(),
        "precision": run.precision.name(),
        "seq_len": run.seq_len,
        "global_batch": run.global_batch,
        "layout": run.layout,
        "assumed": scored.row.assumed,
        "measured_step_s": scored.row.step_s,
        "estimated_step_s": scored.row.step_s * (1.0 + scored.error),
        "error": scored.error,
        "inside_p10_p90": scored.inside,
    })
}

fn print(name: &str, score: &Score, worst: usize, printer: &mut Printer) -> anyhow::Result<()> {
    let overall = &score.overall;
    printer.line(&format!(
        "{name}: {} rows, {} state their whole configuration, {} of those are estimated.",
        overall.rows, overall.complete, overall.covered
    ))?;
    if score.held_out > 0 {
        printer.line(&format!(
            "{} of the rows are ones that the model was fitted to: each is estimated by a fit without its group.",
            score.held_out
        ))?;
    }
    printer.line("")?;
    let mut rows =
        vec![row("complete", overall), row("incomplete, the rest assumed", &score.incomplete)];
    for (kind, tallies) in &score.by {
        for (key, tally) in tallies {
            let key: String = key.chars().take(60).collect();
            rows.push(row(&format!("{kind} {key}"), tally));
        }
    }
    printer.table(
        &["Step time", "Rows", "Mean error", "Median", "P90", "Bias", "In P10-P90"],
        &rows,
    )?;
    if !score.uncovered.is_empty() {
        printer.line("")?;
        printer.line("Not estimated:")?;
        for (why, count) in &score.uncovered {
            printer.line(&format!("  {count:3} {why}"))?;
        }
    }
    if worst > 0 {
        printer.line("")?;
        let rows: Vec<Vec<String>> = score
            .rows
            .iter()
            .take(worst)
            .map(|scored| {
                let run = &scored.row.run;
                vec![
                    format!("{:+.1} %", 100.0 * scored.error),
                    run.model.name.clone(),
                    format!("{} × {}", run.layout.gpus(), scored.row.gpu),
                    run.precision.name().to_owned(),
                    farrier_planner::search::describe(&run.layout),
                    scored.row.source.chars().take(40).collect(),
                ]
            })
            .collect();
        printer.table(&["Error", "Model", "GPUs", "Precision", "Split", "Source"], &rows)?;
    }
    Ok(())
}

fn row(name: &str, tally: &Tally) -> Vec<String> {
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
    vec![
        name.to_owned(),
        tally.covered.to_string(),
        share(tally.mean_abs_error),
        share(tally.median_abs_error),
        share(tally.p90_abs_error),
        tally.bias.map_or_else(|| "-".to_owned(), |bias| format!("{:+.1} %", 100.0 * bias)),
        share(tally.inside_p10_p90),
    ]
}
