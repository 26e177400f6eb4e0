//! Accuracy of estimates against published runs.
//!
//! The estimate of a shipped run comes from a leave-group-out fit, which uses neither the run nor
//! its near-duplicates. Otherwise these runs would make the error look smaller than it is.

mod goal;
mod memory_score;
mod residual;
pub mod scoreboard;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::estimate::{Planner, Z_P90};
use crate::fit::{self, PredictionError};
use crate::model::builtin;
use crate::published::{PublishedRun, RejectedRow, RowError};
use crate::uncertainty::GpHyperparameters;

/// Accuracy over a table of runs.
#[derive(Debug, Clone, Serialize)]
pub struct Score {
    /// Version of this JSON document.
    pub v: u32,
    /// Rows that state their whole configuration.
    pub overall: ErrorStats,
    /// Rows that required assumptions.
    pub incomplete: ErrorStats,
    /// Complete rows by GPU, model family, precision, source and kind.
    pub by: BTreeMap<&'static str, BTreeMap<String, ErrorStats>>,
    /// Rejected rows, by reason.
    pub uncovered: BTreeMap<String, usize>,
    /// Rows that the coefficients were fitted to.
    #[serde(rename = "learned")]
    pub fitted_rows: usize,
    /// Rows estimated by a leave-group-out fit: the fitted rows, and shipped rows with a caution.
    pub held_out: usize,
    /// Worst first.
    #[serde(skip)]
    pub rows: Vec<ScoredRow>,
}

/// Error statistics of a set of rows, relative to the measured step time.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ErrorStats {
    pub rows: usize,
    /// Rows that state their whole configuration.
    pub complete: usize,
    /// Rows that were estimated.
    pub covered: usize,
    pub mean_abs_error: Option<f64>,
    pub median_abs_error: Option<f64>,
    pub p90_abs_error: Option<f64>,
    /// Mean signed error: above zero, step times are overestimated.
    pub bias: Option<f64>,
    /// Share of rows inside the P10-P90 range of their own estimate.
    pub inside_p10_p90: Option<f64>,
}

#[derive(Debug, Clone)]
pub struct ScoredRow {
    pub row: PublishedRun,
    /// Estimated over measured step time, minus one.
    pub error: f64,
    /// Whether the measured step time lies inside the estimate's P10-P90 range.
    pub inside: bool,
}

const VERSION: u32 = 1;

/// Rows of one run whose step times differ by less than this share count as one row, because tables
/// round.
const SAME_SPEED: f64 = 0.005;

impl ScoredRow {
    /// Rejects rows whose estimate is not finite.
    fn new(row: PublishedRun, prediction: PredictionError) -> Result<Self, RejectedRow> {
        let error = prediction.corrected.exp() - 1.0;
        if !(error.is_finite() && prediction.std_dev.is_finite()) {
            return Err(RejectedRow {
                source: row.source,
                model: row.run.model.name,
                complete: row.assumed.is_empty(),
                error: Box::new(RowError::EstimateNotFinite),
            });
        }
        let inside = prediction.corrected.abs() <= Z_P90 * prediction.std_dev;
        Ok(Self { row, error, inside })
    }
}

/// Scores a table read by [`crate::published::read`].
pub fn score(planner: &Planner, table: Vec<Result<PublishedRun, RejectedRow>>) -> Score {
    let total = table.len();
    let mut rejected = Vec::new();
    let rows = split_rejected(table.into_iter(), &mut rejected);
    let origins: Vec<RowOrigin> = rows.iter().map(|row| RowOrigin::new(planner, row)).collect();
    let count =
        |kinds: &[RowOrigin]| origins.iter().filter(|origin| kinds.contains(origin)).count();
    let fitted_rows = count(&[RowOrigin::Fitted]);
    let held_out = count(&[RowOrigin::Fitted, RowOrigin::Cautioned]);
    let prediction_errors = prediction_errors(planner, &rows, &origins);
    let scored =
        rows.into_iter().zip(prediction_errors).map(|(row, error)| ScoredRow::new(row, error));
    let mut scored = split_rejected(scored, &mut rejected);
    scored.sort_by(|left, right| right.error.abs().total_cmp(&left.error.abs()));

    let (complete, assumed): (Vec<&ScoredRow>, Vec<&ScoredRow>) =
        scored.iter().partition(|scored| scored.row.assumed.is_empty());
    let rejected_complete = rejected.iter().filter(|row| row.complete).count();
    let mut overall = ErrorStats::new(&complete);
    overall.rows = total;
    overall.complete = complete.len() + rejected_complete;
    let mut incomplete = ErrorStats::new(&assumed);
    incomplete.rows = total - overall.complete;
    let mut uncovered = BTreeMap::new();
    for row in &rejected {
        *uncovered.entry(format!("{}: {}", row.model, row.error)).or_insert(0) += 1;
    }
    let by = groups(&complete);
    let v = VERSION;
    Score { v, overall, incomplete, by, uncovered, fitted_rows, held_out, rows: scored }
}

/// Leave-group-out errors for shipped rows, errors of the shipped fit for external rows.
fn prediction_errors(
    planner: &Planner,
    rows: &[PublishedRun],
    origins: &[RowOrigin],
) -> Vec<PredictionError> {
    let shipped = rows.iter().zip(origins).filter(|(_, origin)| **origin != RowOrigin::External);
    let test: Vec<&PublishedRun> = shipped.map(|(row, _)| row).collect();
    let hyperparameters = GpHyperparameters::default();
    let mut held_out =
        fit::leave_group_out(&planner.published, &test, &planner.coefficients, &hyperparameters)
            .into_iter();
    let error = |(row, origin): (&PublishedRun, &RowOrigin)| match origin {
        RowOrigin::Fitted | RowOrigin::Cautioned => held_out.next().expect("one per shipped row"),
        RowOrigin::External => planner.prediction_error(row),
    };
    rows.iter().zip(origins).map(error).collect()
}

/// Returns the accepted rows and moves the others to `rejected`.
fn split_rejected<T>(
    rows: impl Iterator<Item = Result<T, RejectedRow>>,
    rejected: &mut Vec<RejectedRow>,
) -> Vec<T> {
    rows.filter_map(|row| row.map_err(|row| rejected.push(row)).ok()).collect()
}

/// Relation of a row to the shipped table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOrigin {
    /// A shipped row that the coefficients are fitted to.
    Fitted,
    /// A shipped row with a caution. The coefficients are not fitted to it, but they may be fitted
    /// to other rows of its group.
    Cautioned,
    External,
}

impl RowOrigin {
    fn new(planner: &Planner, row: &PublishedRun) -> Self {
        let nearest = |rows: &[PublishedRun]| {
            let same = rows.iter().filter(|other| is_same(row, other));
            same.map(|other| relative_difference(row, other)).min_by(f64::total_cmp)
        };
        match (nearest(&planner.published), nearest(&planner.cautioned)) {
            (Some(fitted), Some(cautioned)) if cautioned < fitted => Self::Cautioned,
            (Some(_), _) => Self::Fitted,
            (None, Some(_)) => Self::Cautioned,
            (None, None) => Self::External,
        }
    }
}

/// Whether two rows report the same run: same config, shape and speed, under any model name.
fn is_same(left: &PublishedRun, right: &PublishedRun) -> bool {
    left.run.parallelism == right.run.parallelism
        && left.run.seq_len == right.run.seq_len
        && left.run.global_batch == right.run.global_batch
        && relative_difference(left, right) < SAME_SPEED
        && fit::group(left) == fit::group(right)
}

/// Relative difference of the step times.
fn relative_difference(left: &PublishedRun, right: &PublishedRun) -> f64 {
    (left.step_s / right.step_s - 1.0).abs()
}

/// A grouping: its name, and the group of a row.
type GroupKey = (&'static str, fn(&PublishedRun) -> String);

fn groups(complete: &[&ScoredRow]) -> BTreeMap<&'static str, BTreeMap<String, ErrorStats>> {
    let keys: [GroupKey; 5] = [
        ("gpu", |row| row.gpu.clone()),
        ("family", |row| {
            builtin::by_name(&row.run.model.name)
                .map_or_else(|| "other".to_owned(), |record| record.family.clone())
        }),
        ("precision", |row| row.run.precision.name().to_owned()),
        ("source", |row| row.source.clone()),
        ("kind", |row| {
            let kind = if row.run.model.experts.is_some() { "MoE" } else { "dense" };
            format!("{kind}, {}", row.run.gpu.generation.name())
        }),
    ];
    keys.into_iter()
        .map(|(name, key)| {
            let mut rows: BTreeMap<String, Vec<&ScoredRow>> = BTreeMap::new();
            for scored in complete {
                rows.entry(key(&scored.row)).or_default().push(scored);
            }
            (name, rows.into_iter().map(|(key, rows)| (key, ErrorStats::new(&rows))).collect())
        })
        .collect()
}

impl ErrorStats {
    #[expect(clippy::cast_precision_loss, reason = "tables have fewer rows than 2^52")]
    fn new(rows: &[&ScoredRow]) -> Self {
        let count = rows.len();
        let complete = rows.iter().filter(|scored| scored.row.assumed.is_empty()).count();
        let counts = Self { rows: count, complete, covered: count, ..Self::default() };
        if rows.is_empty() {
            return counts;
        }
        let mut sizes: Vec<f64> = rows.iter().map(|scored| scored.error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count as f64;
        let inside = rows.iter().filter(|scored| scored.inside).count();
        Self {
            mean_abs_error: Some(mean(&mut sizes.iter().copied())),
            median_abs_error: Some(quantile(&sizes, 0.5)),
            p90_abs_error: Some(quantile(&sizes, 0.9)),
            bias: Some(mean(&mut rows.iter().map(|scored| scored.error))),
            inside_p10_p90: Some(inside as f64 / count as f64),
            ..counts
        }
    }
}

/// Quantile of sorted values, linearly interpolated.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index within the values"
)]
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (below, fraction) = (position.floor() as usize, position.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] * (1.0 - fraction) + sorted[above] * fraction
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;
    use farrier_facts::FactSet;

    fn shipped() -> Score {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        score(Planner::shipped(), table)
    }

    /// A regression threshold; the goals are on the scoreboard.
    #[test]
    fn shipped_rows_are_held_out_and_dense_errors_stay_below_six_per_cent() {
        let score = shipped();
        assert_eq!((score.fitted_rows, score.held_out, score.rows.len()), (349, 358, 358));
        let dense = |key: &str| score.by["kind"][key].mean_abs_error.unwrap();
        assert!(dense("dense, ampere") < 0.05, "{}", dense("dense, ampere"));
        assert!(dense("dense, hopper") < 0.06, "{}", dense("dense, hopper"));
        assert!(score.overall.covered * 100 >= score.overall.complete * 95);
        assert!(score.overall.inside_p10_p90.unwrap() > 0.75);
    }

    fn shipped_row(cautioned: bool) -> PublishedRun {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let matches = |row: &PublishedRun| row.caution.is_some() == cautioned;
        table.into_iter().flatten().find(matches).unwrap()
    }

    #[test]
    fn rows_are_recognized_by_content_and_not_by_caution() {
        let planner = Planner::shipped();
        let origin = |row: &PublishedRun| RowOrigin::new(planner, row);
        let mut row = shipped_row(false);
        assert_eq!(origin(&row), RowOrigin::Fitted);
        assert_eq!(origin(&shipped_row(true)), RowOrigin::Cautioned);
        row.run.model.name = "another name".to_owned();
        row.step_s *= 1.004;
        assert_eq!(origin(&row), RowOrigin::Fitted, "a retyped and rounded row is recognised");
        row.step_s *= 1.5;
        row.caution = Some("my own".to_owned());
        assert_eq!(origin(&row), RowOrigin::External);
        let score = score(planner, vec![Ok(row)]);
        assert_eq!((score.fitted_rows, score.held_out), (0, 0));
    }

    #[test]
    fn row_with_non_finite_estimate_is_rejected() {
        let mut invalid = shipped_row(false);
        invalid.step_s = f64::NAN;
        let mut row = shipped_row(false);
        row.step_s *= 1.5;
        let score = score(Planner::shipped(), vec![Ok(invalid), Ok(row)]);
        assert_eq!((score.overall.complete, score.overall.covered), (2, 1));
        assert!(score.overall.mean_abs_error.unwrap().is_finite());
        assert!(score.uncovered.keys().next().unwrap().ends_with("the estimate is not finite"));
    }

    #[test]
    fn json_has_a_version() {
        let score = score(Planner::shipped(), Vec::new());
        assert_eq!(serde_json::to_value(&score).unwrap()["v"], 1);
    }

    #[test]
    fn quantiles_are_interpolated() {
        assert!((quantile(&[1.0, 2.0, 3.0], 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&[0.0, 10.0], 0.9) - 9.0).abs() < 1e-12);
    }
}
