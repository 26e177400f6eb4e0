//! Published training runs: a CSV table, one run per row.

mod error;
mod framework;
mod gpu;
mod row;
mod shape;
mod table;

pub use error::{RowError, ShapeError};
pub use table::{RawRow, unknown_columns};

use farrier_facts::FactSet;

use crate::run::TrainingRun;

/// A row with enough information for an estimate.
#[derive(Debug, Clone)]
pub struct PublishedRun {
    pub source: String,
    pub date: String,
    /// Name of the GPU in the source.
    pub gpu: String,
    pub run: TrainingRun,
    /// Measured step time.
    pub step_s: f64,
    /// Published peak memory of a GPU.
    pub peak_gib: Option<f64>,
    /// Why the row is excluded from the fit. `None` for a row that is part of it.
    pub caution: Option<String>,
    /// Assumptions about unstated settings; empty for a complete row.
    pub assumed: Vec<&'static str>,
}

/// A row that cannot be estimated.
#[derive(Debug, Clone)]
pub struct RejectedRow {
    pub source: String,
    pub model: String,
    /// Whether the row states its whole configuration, although it cannot be estimated.
    pub complete: bool,
    pub error: Box<RowError>,
}

/// Why a table cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(
        "failed to read the table; expected the columns of data/planner/published_training.csv"
    )]
    Unreadable(#[from] csv::Error),
    /// A column that every row needs is missing.
    #[error(
        "the table lacks {}; expected the columns of data/planner/published_training.csv",
        .columns.join(", ")
    )]
    MissingColumns {
        /// Column names, in backticks.
        columns: Vec<String>,
    },
    #[error("the table has no rows")]
    Empty,
}

/// Reads a table: each row is a run or an error. [`unknown_columns`] lists the columns that are
/// ignored.
pub fn read(
    facts: &FactSet,
    table: &[u8],
) -> Result<Vec<Result<PublishedRun, RejectedRow>>, TableError> {
    Ok(table::rows(table)?.iter().map(|row| row::parse(facts, row)).collect())
}

/// The shipped table, which the coefficients are fitted to.
pub fn embedded() -> &'static [u8] {
    include_bytes!("../../../../data/planner/published_training.csv")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A complete row with some cells replaced.
    pub(super) fn raw_row(overrides: &[(&str, &str)]) -> RawRow {
        let mut cells = BTreeMap::from([
            ("source", "mine"),
            ("date", "2026-01"),
            ("model", "llama3-8b"),
            ("gpu", "H100-SXM-80GB"),
            ("n_gpus", "8"),
            ("precision", "bf16"),
            ("seq_len", "8192"),
            ("global_batch_seqs", "128"),
            ("micro_batch", "1"),
            ("TP", "1"),
            ("PP", "1"),
            ("recompute", "none"),
            ("step_time_s", "14"),
        ]);
        cells.extend(overrides.iter().copied());
        let table = format!(
            "{}\n\"{}\"\n",
            cells.keys().copied().collect::<Vec<_>>().join(","),
            cells.values().copied().collect::<Vec<_>>().join("\",\"")
        );
        table::rows(table.as_bytes()).unwrap().swap_remove(0)
    }

    pub(super) fn parse(row: &RawRow) -> Result<PublishedRun, RejectedRow> {
        row::parse(FactSet::embedded(), row)
    }

    #[test]
    fn complete_shipped_rows_are_accepted() {
        let rows = read(FactSet::embedded(), embedded()).unwrap();
        let rejected: Vec<&RejectedRow> =
            rows.iter().filter_map(|row| row.as_ref().err()).collect();
        assert_eq!((rows.len(), rejected.len()), (385, 27), "{rejected:#?}");
        assert!(rejected.iter().all(|row| !row.complete), "{rejected:#?}");
    }
}
