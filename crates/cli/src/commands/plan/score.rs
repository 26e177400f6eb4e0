//! `farrier plan score`

use std::path::PathBuf;

use anyhow::Context;
use farrier_planner::Planner;
use farrier_planner::published;
use farrier_planner::score::{Score, Scored, Tally, score};

use super::figures::percent;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::printer::Printer;

/// Which table.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A table of runs, with the columns of `data/planner/published_training.csv`; the one that ships without it
    file: Option<PathBuf>,
    /// List so many rows, worst first; without it, all rows of a table that has no more than 30
    #[arg(long, value_name = "N")]
    worst: Option<usize>,
    /// In JSON, every row with its estimate
    #[arg(long)]
    rows: bool,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// The rows of a table of one's own are listed; of a long one, only the worst that are asked for.
const LISTED_MOST: usize = 30;

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let (name, bytes) = match &args.file {
        Some(path) => {
            let bytes = std::fs::read(path)
                .with_context(|| format!("failed to read `{}`", path.display()))?;
            (path.display().to_string(), bytes)
        }
        None => ("the published runs that ship".to_owned(), published::embedded().to_vec()),
    };
    let table = published::read(&facts, &bytes).with_context(|| format!("`{name}`"))?;
    let unknown = published::unknown_columns(&bytes).with_context(|| format!("`{name}`"))?;
    let score = score(Planner::shipped(), table);
    match args.output {
        Output::Json => {
            let mut document = serde_json::to_value(&score)?;
            document["unknown_columns"] = unknown.into();
            if args.rows {
                document["rows"] = score.rows.iter().map(line).collect();
            }
            printer.json(&document)?;
        }
        Output::Table => {
            print(&name, &score, &unknown, printer)?;
            let few = if score.overall.rows <= LISTED_MOST { LISTED_MOST } else { 0 };
            list(&score, args.worst.unwrap_or(few), printer)?;
        }
    }
    Ok(Outcome::finding_if(score.rows.is_empty()))
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
        "stack": run.stack.name(),
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

fn print(
    name: &str,
    score: &Score,
    unknown: &[String],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let overall = &score.overall;
    printer.line(&format!(
        "{name}: {} rows, {} state their whole configuration, {} of those are estimated.",
        overall.rows, overall.complete, overall.covered
    ))?;
    if !unknown.is_empty() {
        printer.line(&format!(
            "Not read, since no column is called so: `{}`. Columns are those of data/planner/published_training.csv.",
            unknown.join("`, `")
        ))?;
    }
    if score.held_out > 0 {
        printer.line(&held_out(score))?;
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
    Ok(())
}

/// How the rows of the table that ships were estimated.
fn held_out(score: &Score) -> String {
    let cautioned = score.held_out - score.learned;
    let beside = if cautioned > 0 {
        format!(", {cautioned} more have a caution and were not")
    } else {
        String::new()
    };
    format!(
        "{} of the rows are ones that the model was fitted to{beside}: each is estimated by a fit without its group.",
        score.learned
    )
}

/// Rows, measured beside estimated, the worst first.
fn list(score: &Score, most: usize, printer: &mut Printer) -> anyhow::Result<()> {
    if most == 0 || score.rows.is_empty() {
        return Ok(());
    }
    let seconds = |step_s: f64| format!("{step_s:.3} s");
    let cells = |scored: &Scored| {
        let run = &scored.row.run;
        vec![
            seconds(scored.row.step_s),
            seconds(scored.row.step_s * (1.0 + scored.error)),
            format!("{:+.1} %", 100.0 * scored.error),
            if scored.inside { "yes" } else { "no" }.to_owned(),
            run.model.name.clone(),
            format!("{} × {}", run.layout.gpus(), scored.row.gpu),
            run.precision.name().to_owned(),
            run.stack.name().to_owned(),
            farrier_planner::search::describe(&run.layout),
            scored.row.source.chars().take(40).collect(),
        ]
    };
    let rows: Vec<Vec<String>> = score.rows.iter().take(most).map(cells).collect();
    printer.line("")?;
    printer.table(
        &[
            "Measured",
            "Estimated",
            "Error",
            "In P10-P90",
            "Model",
            "GPUs",
            "Precision",
            "Program",
            "Split",
            "Source",
        ],
        &rows,
    )?;
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
