//! The table as it stands: columns, cells, and numbers in them.

use serde::{Deserialize, Deserializer};

use super::{RowError, TableError};

/// The columns that a table may have, in the order of the one that ships. Those that are not in
/// [`Cells`] are for people.
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

/// The columns without which no row can be estimated.
const NEEDED: [&str; 6] = ["model", "gpu", "n_gpus", "precision", "seq_len", "global_batch_seqs"];
/// One of these says how fast a run was.
const SPEEDS: [&str; 4] = ["step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"];

/// A row as it stands in the table. Cells may be empty.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "the columns are described in data/planner/README.md")]
#[expect(non_snake_case, reason = "the columns' own names")]
pub struct Cells {
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
    /// Nothing where the table has no such column; a cell of it may be empty.
    #[serde(default, deserialize_with = "of_the_column")]
    pub fused_experts: Option<String>,
    #[serde(default)]
    pub caution: String,
    #[serde(default)]
    pub program: String,
}

/// An empty cell of a column that is there is not the same as no column.
fn of_the_column<'de, D: Deserializer<'de>>(cell: D) -> Result<Option<String>, D::Error> {
    String::deserialize(cell).map(Some)
}

/// The rows of a table that has the columns which every row needs.
pub(super) fn rows(table: &[u8]) -> Result<Vec<Cells>, TableError> {
    let mut reader = reader(table);
    let headers = reader.headers()?;
    let has = |column: &str| headers.iter().any(|header| header == column);
    let mut lacking: Vec<String> =
        NEEDED.iter().filter(|column| !has(column)).map(|column| format!("`{column}`")).collect();
    if !SPEEDS.iter().any(|column| has(column)) {
        lacking.push(format!("one of `{}`", SPEEDS.join("`, `")));
    }
    if !lacking.is_empty() {
        return Err(TableError::Lacks { lacking });
    }
    let rows = reader.deserialize::<Cells>().collect::<Result<Vec<_>, _>>()?;
    if rows.is_empty() { Err(TableError::Empty) } else { Ok(rows) }
}

/// The headers of a table that are not read, since no column is called so.
pub fn unknown_columns(table: &[u8]) -> Result<Vec<String>, TableError> {
    let mut reader = reader(table);
    let unknown = reader.headers()?.iter().filter(|header| !COLUMNS.contains(header));
    Ok(unknown.map(str::to_owned).collect())
}

fn reader(table: &[u8]) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(table)
}

/// A number above zero, if the cell is one.
pub(super) fn number(cell: &str) -> Option<f64> {
    cell.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

/// Likewise a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above zero")]
pub(super) fn count(cell: &str) -> Option<u32> {
    number(cell).filter(|number| number.fract() == 0.0 && *number < 4e9).map(|number| number as u32)
}

/// A whole number, or nothing where the cell does not state one; what is neither is refused.
pub(super) fn stated_count(cell: &str, what: &str) -> Result<Option<u32>, RowError> {
    if cell.is_empty() || cell.eq_ignore_ascii_case("n/a") {
        return Ok(None);
    }
    count(cell)
        .map(Some)
        .ok_or_else(|| RowError::NoCount { column: what.to_owned(), cell: cell.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_that_ships_has_all_columns_and_no_other() {
        let mut reader = reader(super::super::embedded());
        let headers: Vec<&str> = reader.headers().unwrap().iter().collect();
        assert_eq!(headers, COLUMNS);
        assert!(unknown_columns(super::super::embedded()).unwrap().is_empty());
    }

    #[test]
    fn a_table_without_what_every_row_needs_is_refused() {
        let said = rows(b"model,gpu,n_gpus,precison,seq_len\na,H100,8,bf16,1\n").unwrap_err();
        let said = said.to_string();
        assert!(said.contains("`precision`, `global_batch_seqs`, one of `step_time_s`"), "{said}");
        assert!(said.contains("its columns are those of data/planner"), "{said}");
    }

    #[test]
    fn a_misspelt_header_is_named() {
        let table = b"model,gpu,n_gpus,precision,seq_len,global_batch_seqs,step_time_s,Tp\n";
        assert_eq!(unknown_columns(table).unwrap(), ["Tp"]);
        assert!(matches!(rows(table), Err(TableError::Empty)));
    }

    #[test]
    fn an_empty_cell_is_not_a_lacking_column() {
        let head = "model,gpu,n_gpus,precision,seq_len,global_batch_seqs,step_time_s";
        let with = format!("{head},fused_experts\na,H100,8,bf16,1,1,1,\n");
        assert_eq!(rows(with.as_bytes()).unwrap()[0].fused_experts.as_deref(), Some(""));
        let without = format!("{head}\na, H100 ,8,bf16,1,1,1\n");
        let cells = &rows(without.as_bytes()).unwrap()[0];
        assert_eq!(cells.fused_experts, None);
        assert_eq!((cells.source.as_str(), cells.gpu.as_str()), ("", "H100"));
    }

    #[test]
    fn counts_are_whole_and_above_zero() {
        assert_eq!(stated_count("8", "TP"), Ok(Some(8)));
        assert_eq!(stated_count("", "TP"), Ok(None));
        assert_eq!(stated_count("n/a", "VP"), Ok(None));
        for wrong in ["0", "-1", "1.5", "8x", "5e9", "NaN"] {
            assert!(stated_count(wrong, "TP").unwrap_err().to_string().contains(wrong));
        }
    }
}
