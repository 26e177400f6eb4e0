//! Runs that others published: rows of a table, and what each says of itself.

mod cells;
mod error;
mod part;
mod program;
mod row;
mod shape;

pub use cells::{Cells, unknown_columns};
pub use error::{RowError, ShapeError};

use farrier_facts::FactSet;

use crate::run::Run;

/// A row that says enough to be estimated.
#[derive(Debug, Clone)]
pub struct Published {
    /// Where it is from.
    pub source: String,
    /// When, as the source says.
    pub date: String,
    /// What the source calls the GPU.
    pub gpu: String,
    /// The run.
    pub run: Run,
    /// What it took, seconds a step.
    pub step_s: f64,
    /// The most memory that a GPU had in use, if published, GiB.
    pub peak_gib: Option<f64>,
    /// Why it is not to be learned from, if it is not.
    pub caution: Option<String>,
    /// What the row leaves open, and was assumed: empty for one that states all.
    pub assumed: Vec<&'static str>,
}

/// A row that cannot be estimated, and why.
#[derive(Debug, Clone)]
pub struct Uncovered {
    /// Where it is from.
    pub source: String,
    /// What was trained.
    pub model: String,
    /// Whether it states its whole configuration all the same.
    pub complete: bool,
    /// Why it cannot be estimated.
    pub why: Box<RowError>,
}

/// Why a table cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Not such a table.
    #[error(
        "the table cannot be read; its columns are those of data/planner/published_training.csv"
    )]
    Unreadable(#[from] csv::Error),
    /// No row could say enough.
    #[error(
        "the table lacks {}; its columns are those of data/planner/published_training.csv",
        .lacking.join(", ")
    )]
    Lacks {
        /// The columns that it lacks, in backticks.
        lacking: Vec<String>,
    },
    /// No rows.
    #[error("the table has no rows")]
    Empty,
}

/// The rows of a table: a run, or why not. Columns that it reads nothing from are told by
/// [`unknown_columns`].
pub fn read(
    facts: &FactSet,
    table: &[u8],
) -> Result<Vec<Result<Published, Uncovered>>, TableError> {
    Ok(cells::rows(table)?.iter().map(|cells| row::published(facts, cells)).collect())
}

/// The rows that Farrier ships with, from which its coefficients are fitted.
pub fn embedded() -> &'static [u8] {
    include_bytes!("../../../../data/planner/published_training.csv")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A row that states all, with other cells.
    pub(super) fn cells(given: &[(&str, &str)]) -> Cells {
        let mut row = BTreeMap::from([
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
        row.extend(given.iter().copied());
        let table = format!(
            "{}\n\"{}\"\n",
            row.keys().copied().collect::<Vec<_>>().join(","),
            row.values().copied().collect::<Vec<_>>().join("\",\"")
        );
        cells::rows(table.as_bytes()).unwrap().swap_remove(0)
    }

    pub(super) fn read_one(cells: &Cells) -> Result<Published, Uncovered> {
        row::published(FactSet::embedded(), cells)
    }

    #[test]
    fn the_rows_that_ship_are_covered_unless_they_lack_something() {
        let rows = read(FactSet::embedded(), embedded()).unwrap();
        let refused: Vec<&Uncovered> = rows.iter().filter_map(|row| row.as_ref().err()).collect();
        assert_eq!((rows.len(), refused.len()), (385, 27), "{refused:#?}");
        assert!(refused.iter().all(|row| !row.complete), "{refused:#?}");
    }
}
