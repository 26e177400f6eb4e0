//! `farrier plan score`

use std::path::PathBuf;

use anyhow::Context;
use farrier_planner::Planner;
use farrier_planner::published;
use farrier_planner::score::{ErrorStats, Score, ScoredRow, score};

use super::format::percent;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::printer::Printer;

/// The table to score.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Table of runs with the columns of `data/planner/published_training.csv` [default: the
    /// shipped one]
    file: Option<PathBuf>,
    /// Number of rows to list, worst first [default: all rows of a table with at most 30]
    #[arg(long, value_name = "N")]
    worst: Option<usize>,
    /// Include every row with its estimate in the JSON output
    #[arg(long)]
    rows: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Tables with at most this many rows are listed completely by default.
const LIST_ALL_MAX: usize = 30;

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let (name, bytes) = match &args.file {
        Some(path) => {
            let bytes = std::fs::read(path)
                .with_context(|| format!("failed to read `{}`", path.display()))?;
            (path.display().to_string(), bytes)
        }
        None => ("the shipped published runs".to_owned(), published::embedded().to_vec()),
    };
    let table = published::read(&facts, &bytes).with_context(|| format!("`{name}`"))?;
    let unknown = published::unknown_columns(&bytes).with_context(|| format!("`{name}`"))?;
    let score = score(Planner::shipped(), table);
    match args.output {
        Output::Json => {
            let mut document = serde_json::to_value(&score)?;
            document["unknown_columns"] = unknown.into();
            if args.rows {
                document["rows"] = score.rows.iter().map(row_json).collect();
            }
            printer.json(&document)?;
        }
        Output::Table => {
            print(&name, &score, &unknown, printer)?;
            let default = if score.overall.rows <= LIST_ALL_MAX { LIST_ALL_MAX } else { 0 };
            list(&score, args.worst.unwrap_or(default), printer)?;
        }
    }
    Ok(Outcome::finding_if(score.rows.is_empty()))
}

fn row_json(scored: &ScoredRow) -> serde_json::Value {
    let run = &scored.row.run;
    serde_json::json!({
        "source": scored.row.source,
        "date": scored.row.date,
        "model": run.model.name,
        "gpu": scored.row.gpu,
        "gpus": run.parallelism.gpus(),
        "precision": run.precision.name(),
        "stack": run.framework.name(),
        "seq_len": run.seq_len,
        "global_batch": run.global_batch,
        "layout": run.parallelism,
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
            "Ignored unknown columns: `{}`. Expected the columns of data/planner/published_training.csv.",
            unknown.join("`, `")
        ))?;
    }
    if score.held_out > 0 {
        printer.line(&held_out(score))?;
    }
    printer.line("")?;
    let mut rows =
        vec![row("complete", overall), row("incomplete, with assumptions", &score.incomplete)];
    for (kind, tallies) in &score.by {
        for (key, stats) in tallies {
            let key: String = key.chars().take(60).collect();
            rows.push(row(&format!("{kind} {key}"), stats));
        }
    }
    printer.table(
        &["Step time", "Rows", "Mean error", "Median", "P90", "Bias", "In P10-P90"],
        &rows,
    )?;
    if !score.uncovered.is_empty() {
        printer.line("")?;
        printer.line("Rejected:")?;
        for (reason, count) in &score.uncovered {
            printer.line(&format!("  {count:3} {reason}"))?;
        }
    }
    Ok(())
}

/// Describes how the shipped rows were estimated.
fn held_out(score: &Score) -> String {
    let cautioned = score.held_out - score.fitted_rows;
    let notes = if cautioned > 0 {
        format!("; {cautioned} others were not, because the table has a caution for them")
    } else {
        String::new()
    };
    format!(
        "{} of the rows were used in the fit{notes}; each is estimated by a fit without its group.",
        score.fitted_rows
    )
}

/// Rows with measured and estimated step time, worst first.
fn list(score: &Score, max: usize, printer: &mut Printer) -> anyhow::Result<()> {
    if max == 0 || score.rows.is_empty() {
        return Ok(());
    }
    let seconds = |step_s: f64| format!("{step_s:.3} s");
    let cells = |scored: &ScoredRow| {
        let run = &scored.row.run;
        vec![
            seconds(scored.row.step_s),
            seconds(scored.row.step_s * (1.0 + scored.error)),
            format!("{:+.1} %", 100.0 * scored.error),
            if scored.inside { "yes" } else { "no" }.to_owned(),
            run.model.name.clone(),
            format!("{} × {}", run.parallelism.gpus(), scored.row.gpu),
            run.precision.name().to_owned(),
            run.framework.name().to_owned(),
            farrier_planner::search::describe(&run.parallelism),
            scored.row.source.chars().take(40).collect(),
        ]
    };
    let rows: Vec<Vec<String>> = score.rows.iter().take(max).map(cells).collect();
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
            "Framework",
            "Parallelism",
            "Source",
        ],
        &rows,
    )?;
    Ok(())
}

fn row(name: &str, stats: &ErrorStats) -> Vec<String> {
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
    vec![
        name.to_owned(),
        stats.covered.to_string(),
        share(stats.mean_abs_error),
        share(stats.median_abs_error),
        share(stats.p90_abs_error),
        stats.bias.map_or_else(|| "-".to_owned(), |bias| format!("{:+.1} %", 100.0 * bias)),
        share(stats.inside_p10_p90),
    ]
}
