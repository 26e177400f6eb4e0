//! The CSV table: columns, raw rows, and numbers in cells.

use serde::{Deserialize, Deserializer};

use super::{RowError, TableError};

/// The accepted columns, in the order of the shipped table. Columns that are not in [`RawRow`] are
/// for human readers.
pub(super) const COLUMNS: [&str; 39] = [
    "source",
    "date",
    "model",
    "task",
    "params_b",
    "active_params_b",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "experts",
    "topk",
    "gpu",
    "n_gpus",
    "precision",
    "seq_len",
    "global_batch_seqs",
    "micro_batch",
    "TP",
    "PP",
    "VP",
    "DP_or_FSDP",
    "CP",
    "EP",
    "sharding",
    "recompute",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_pct",
    "hfu_pct",
    "step_time_s",
    "peak_mem_gib",
    "notes",
    "recompute_source",
    "fused_experts",
    "caution",
    "program",
];

/// Required columns.
const REQUIRED: [&str; 6] = ["model", "gpu", "n_gpus", "precision", "seq_len", "global_batch_seqs"];
/// One of these is required to state the speed.
const SPEEDS: [&str; 4] = ["step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"];

/// A row of the table. Cells may be empty.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "the columns are described in data/planner/README.md")]
#[expect(non_snake_case, reason = "the columns' own names")]
pub struct RawRow {
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub date: String,
    pub model: String,
    #[serde(default)]
    pub task: String,
    #[serde(default)]
    pub params_b: String,
    #[serde(default)]
    pub layers: String,
    #[serde(default)]
    pub hidden: String,
    #[serde(default)]
    pub heads: String,
    #[serde(default)]
    pub kv_heads: String,
    #[serde(default)]
    pub ffn: String,
    #[serde(default)]
    pub vocab: String,
    #[serde(default)]
    pub experts: String,
    #[serde(default)]
    pub topk: String,
    pub gpu: String,
    #[serde(default)]
    pub n_gpus: String,
    #[serde(default)]
    pub precision: String,
    #[serde(default)]
    pub seq_len: String,
    #[serde(default)]
    pub global_batch_seqs: String,
    #[serde(default)]
    pub micro_batch: String,
    #[serde(default)]
    pub TP: String,
    #[serde(default)]
    pub PP: String,
    #[serde(default)]
    pub VP: String,
    #[serde(default)]
    pub CP: String,
    #[serde(default)]
    pub EP: String,
    #[serde(default)]
    pub sharding: String,
    #[serde(default)]
    pub recompute: String,
    #[serde(default)]
    pub tokens_per_s_per_gpu: String,
    #[serde(default)]
    pub tflops_per_gpu: String,
    #[serde(default)]
    pub mfu_pct: String,
    #[serde(default)]
    pub step_time_s: String,
    #[serde(default)]
    pub peak_mem_gib: String,
    #[serde(default)]
    pub notes: String,
    /// `None` if the table has no such column; the cell may be empty.
    #[serde(default, deserialize_with = "present_cell")]
    pub fused_experts: Option<String>,
    #[serde(default)]
    pub caution: String,
    #[serde(default)]
    pub program: String,
}

/// Distinguishes an empty cell from a missing column.
fn present_cell<'de, D: Deserializer<'de>>(cell: D) -> Result<Option<String>, D::Error> {
    String::deserialize(cell).map(Some)
}

/// Rows of a table. Fails if a required column is missing.
pub(super) fn rows(table: &[u8]) -> Result<Vec<RawRow>, TableError> {
    let mut reader = reader(table);
    let headers = reader.headers()?;
    let has = |column: &str| headers.iter().any(|header| header == column);
    let mut missing: Vec<String> =
        REQUIRED.iter().filter(|column| !has(column)).map(|column| format!("`{column}`")).collect();
    if !SPEEDS.iter().any(|column| has(column)) {
        missing.push(format!("one of `{}`", SPEEDS.join("`, `")));
    }
    if !missing.is_empty() {
        return Err(TableError::MissingColumns { columns: missing });
    }
    let rows = reader.deserialize::<RawRow>().collect::<Result<Vec<_>, _>>()?;
    if rows.is_empty() { Err(TableError::Empty) } else { Ok(rows) }
}

/// Headers of a table that are not an accepted column and therefore ignored.
pub fn unknown_columns(table: &[u8]) -> Result<Vec<String>, TableError> {
    let mut reader = reader(table);
    let unknown = reader.headers()?.iter().filter(|header| !COLUMNS.contains(header));
    Ok(unknown.map(str::to_owned).collect())
}

fn reader(table: &[u8]) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(table)
}

/// A positive number, if the cell is one.
pub(super) fn number(cell: &str) -> Option<f64> {
    cell.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

/// A positive integer, if the cell is one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above zero")]
pub(super) fn count(cell: &str) -> Option<u32> {
    number(cell).filter(|number| number.fract() == 0.0 && *number < 4e9).map(|number| number as u32)
}

/// A positive integer; `None` if the cell is empty or `n/a`; an error otherwise.
pub(super) fn stated_count(cell: &str, column: &str) -> Result<Option<u32>, RowError> {
    if cell.is_empty() || cell.eq_ignore_ascii_case("n/a") {
        return Ok(None);
    }
    count(cell)
        .map(Some)
        .ok_or_else(|| RowError::NotACount { column: column.to_owned(), cell: cell.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_table_has_exactly_the_accepted_columns() {
        let mut reader = reader(super::super::embedded());
        let headers: Vec<&str> = reader.headers().unwrap().iter().collect();
        assert_eq!(headers, COLUMNS);
        assert!(unknown_columns(super::super::embedded()).unwrap().is_empty());
    }

    #[test]
    fn missing_columns_are_reported() {
        let err = rows(b"model,gpu,n_gpus,precison,seq_len\na,H100,8,bf16,1\n").unwrap_err();
        let message = err.to_string();
        assert!(
            message.contains("`precision`, `global_batch_seqs`, one of `step_time_s`"),
            "{message}"
        );
        assert!(message.contains("expected the columns of data/planner"), "{message}");
    }

    #[test]
    fn misspelt_column_is_reported() {
        let table = b"model,gpu,n_gpus,precision,seq_len,global_batch_seqs,step_time_s,Tp\n";
        assert_eq!(unknown_columns(table).unwrap(), ["Tp"]);
        assert!(matches!(rows(table), Err(TableError::Empty)));
    }

    #[test]
    fn empty_cell_differs_from_missing_column() {
        let head = "model,gpu,n_gpus,precision,seq_len,global_batch_seqs,step_time_s";
        let with = format!("{head},fused_experts\na,H100,8,bf16,1,1,1,\n");
        assert_eq!(rows(with.as_bytes()).unwrap()[0].fused_experts.as_deref(), Some(""));
        let without = format!("{head}\na, H100 ,8,bf16,1,1,1\n");
        let row = &rows(without.as_bytes()).unwrap()[0];
        assert_eq!(row.fused_experts, None);
        assert_eq!((row.source.as_str(), row.gpu.as_str()), ("", "H100"));
    }

    #[test]
    fn counts_are_positive_integers() {
        assert_eq!(stated_count("8", "TP"), Ok(Some(8)));
        assert_eq!(stated_count("", "TP"), Ok(None));
        assert_eq!(stated_count("n/a", "VP"), Ok(None));
        for wrong in ["0", "-1", "1.5", "8x", "5e9", "NaN"] {
            assert!(stated_count(wrong, "TP").unwrap_err().to_string().contains(wrong));
        }
    }
}
