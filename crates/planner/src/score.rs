//! How far estimates are from published runs.
//!
//! A run of the table that ships is estimated by a fit that had no part of its group, so that no row
//! is flattered by its own or a twin's presence.

mod goal;
mod memory_score;
pub mod page;
mod residual;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::estimate::{Planner, TENTH};
use crate::fit::{self, Trial};
use crate::local::Likeness;
use crate::model::builtin;
use crate::published::{Published, RowError, Uncovered};

/// The whole answer about a table of runs.
#[derive(Debug, Clone, Serialize)]
pub struct Score {
    /// The form of this document.
    pub v: u32,
    /// Over the rows that state their whole configuration.
    pub overall: Tally,
    /// Over those that leave something open, which was assumed.
    pub incomplete: Tally,
    /// The complete ones by what they are.
    pub by: BTreeMap<&'static str, BTreeMap<String, Tally>>,
    /// Rows that are not estimated, by reason.
    pub uncovered: BTreeMap<String, usize>,
    /// Rows that the coefficients were fitted to.
    pub learned: usize,
    /// Rows that were estimated by a fit without their group: those that were fitted to, and those of
    /// the table that ships which have a caution.
    pub held_out: usize,
    /// The rows, worst first.
    #[serde(skip)]
    pub rows: Vec<Scored>,
}

/// Errors of some rows, as shares of the measured step time.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tally {
    /// Rows of the kind.
    pub rows: usize,
    /// Of those, how many state their whole configuration.
    pub complete: usize,
    /// Of those that are counted here, how many were estimated.
    pub covered: usize,
    /// Mean of the errors' sizes.
    pub mean_abs_error: Option<f64>,
    /// Half are smaller.
    pub median_abs_error: Option<f64>,
    /// Nine in ten are smaller.
    pub p90_abs_error: Option<f64>,
    /// Mean of the errors with their signs: above zero, steps are expected to take too long.
    pub bias: Option<f64>,
    /// Share of rows between the P10 and P90 of their own estimates.
    pub inside_p10_p90: Option<f64>,
}

/// An estimated row.
#[derive(Debug, Clone)]
pub struct Scored {
    /// The row.
    pub row: Published,
    /// Estimated over measured step time, less one.
    pub error: f64,
    /// Whether it lies between the estimate's P10 and P90.
    pub inside: bool,
}

/// The form of the document.
const VERSION: u32 = 1;

/// Rows of one run whose step times differ by less, as a share, are one row: times are rounded on
/// their way into tables.
const SAME_SPEED: f64 = 0.005;

impl Scored {
    /// Nothing where the estimate is no number.
    fn of(row: Published, trial: Trial) -> Result<Self, Uncovered> {
        let error = trial.corrected.exp() - 1.0;
        if !(error.is_finite() && trial.deviation.is_finite()) {
            return Err(Uncovered {
                source: row.source,
                model: row.run.model.name,
                complete: row.assumed.is_empty(),
                why: Box::new(RowError::Estimate),
            });
        }
        let inside = trial.corrected.abs() <= TENTH * trial.deviation;
        Ok(Self { row, error, inside })
    }
}

/// Scores a table as [`crate::published::read`] gives it.
pub fn score(planner: &Planner, table: Vec<Result<Published, Uncovered>>) -> Score {
    let total = table.len();
    let mut refused = Vec::new();
    let rows = kept(table.into_iter(), &mut refused);
    let known: Vec<Known> = rows.iter().map(|row| Known::of(planner, row)).collect();
    let count = |of: &[Known]| known.iter().filter(|known| of.contains(known)).count();
    let learned = count(&[Known::Learned]);
    let held_out = count(&[Known::Learned, Known::Cautioned]);
    let trials = trials(planner, &rows, &known);
    let of = |(row, trial)| Scored::of(row, trial);
    let mut scored = kept(rows.into_iter().zip(trials).map(of), &mut refused);
    scored.sort_by(|left, right| right.error.abs().total_cmp(&left.error.abs()));

    let (complete, open): (Vec<&Scored>, Vec<&Scored>) =
        scored.iter().partition(|scored| scored.row.assumed.is_empty());
    let refused_complete = refused.iter().filter(|row| row.complete).count();
    let mut overall = Tally::of(&complete);
    overall.rows = total;
    overall.complete = complete.len() + refused_complete;
    let mut incomplete = Tally::of(&open);
    incomplete.rows = total - overall.complete;
    let mut uncovered = BTreeMap::new();
    for row in &refused {
        *uncovered.entry(format!("{}: {}", row.model, row.why)).or_insert(0) += 1;
    }
    let by = groups(&complete);
    let v = VERSION;
    Score { v, overall, incomplete, by, uncovered, learned, held_out, rows: scored }
}

/// Rows of the table that ships by fits that their groups had no part in, others by the one that
/// ships.
fn trials(planner: &Planner, rows: &[Published], known: &[Known]) -> Vec<Trial> {
    let ships = rows.iter().zip(known).filter(|(_, known)| **known != Known::Not);
    let tried: Vec<&Published> = ships.map(|(row, _)| row).collect();
    let likeness = Likeness::default();
    let mut held_out =
        fit::held_out(&planner.published, &tried, &planner.fitted, &likeness).into_iter();
    let of = |(row, known): (&Published, &Known)| match known {
        Known::Learned | Known::Cautioned => held_out.next().expect("one for each that ships"),
        Known::Not => planner.trial(row),
    };
    rows.iter().zip(known).map(of).collect()
}

/// The rows that are no refusals; those are put with the others of their kind.
fn kept<T>(
    rows: impl Iterator<Item = Result<T, Uncovered>>,
    refused: &mut Vec<Uncovered>,
) -> Vec<T> {
    rows.filter_map(|row| row.map_err(|why| refused.push(why)).ok()).collect()
}

/// What a row is to the table that ships.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Fitted to.
    Learned,
    /// In it, but with a caution: its group was fitted to, if it was not.
    Cautioned,
    /// Not of it.
    Not,
}

impl Known {
    fn of(planner: &Planner, row: &Published) -> Self {
        let nearest = |rows: &[Published]| {
            let same = rows.iter().filter(|other| is_same(row, other));
            same.map(|other| apart(row, other)).min_by(f64::total_cmp)
        };
        match (nearest(&planner.published), nearest(&planner.cautioned)) {
            (Some(learned), Some(cautioned)) if cautioned < learned => Self::Cautioned,
            (Some(_), _) => Self::Learned,
            (None, Some(_)) => Self::Cautioned,
            (None, None) => Self::Not,
        }
    }
}

/// Whether two rows tell of one run: the same place, shape and speed, whatever the model is called.
fn is_same(left: &Published, right: &Published) -> bool {
    left.run.layout == right.run.layout
        && left.run.seq_len == right.run.seq_len
        && left.run.global_batch == right.run.global_batch
        && apart(left, right) < SAME_SPEED
        && fit::group(left) == fit::group(right)
}

/// What the step times of two rows differ by, as a share.
fn apart(left: &Published, right: &Published) -> f64 {
    (left.step_s / right.step_s - 1.0).abs()
}

/// What rows are grouped by: its name, and how a row is called by it.
type Key = (&'static str, fn(&Published) -> String);

fn groups(complete: &[&Scored]) -> BTreeMap<&'static str, BTreeMap<String, Tally>> {
    let keys: [Key; 5] = [
        ("gpu", |row| row.gpu.clone()),
        ("family", |row| {
            builtin::named(&row.run.model.name)
                .map_or_else(|| "other".to_owned(), |record| record.family.clone())
        }),
        ("precision", |row| row.run.precision.name().to_owned()),
        ("source", |row| row.source.clone()),
        ("kind", |row| {
            let kind = if row.run.model.experts.is_some() { "mixture" } else { "dense" };
            format!("{kind}, {}", row.run.gpu.generation.name())
        }),
    ];
    keys.into_iter()
        .map(|(name, key)| {
            let mut rows: BTreeMap<String, Vec<&Scored>> = BTreeMap::new();
            for scored in complete {
                rows.entry(key(&scored.row)).or_default().push(scored);
            }
            (name, rows.into_iter().map(|(key, rows)| (key, Tally::of(&rows))).collect())
        })
        .collect()
}

impl Tally {
    /// Of rows that were estimated.
    #[expect(clippy::cast_precision_loss, reason = "tables have fewer rows than 2^52")]
    fn of(rows: &[&Scored]) -> Self {
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

/// A quantile of sorted values, between neighbours where it falls between them.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place within the values"
)]
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] * (1.0 - part) + sorted[above] * part
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

    /// A floor, below which a change has broken something; the goals are on the scoreboard.
    #[test]
    fn the_shipped_rows_are_held_out_and_dense_ones_within_six_per_cent() {
        let score = shipped();
        assert_eq!((score.learned, score.held_out, score.rows.len()), (349, 358, 358));
        let dense = |key: &str| score.by["kind"][key].mean_abs_error.unwrap();
        assert!(dense("dense, ampere") < 0.05, "{}", dense("dense, ampere"));
        assert!(dense("dense, hopper") < 0.06, "{}", dense("dense, hopper"));
        assert!(score.overall.covered * 100 >= score.overall.complete * 95);
        assert!(score.overall.inside_p10_p90.unwrap() > 0.75);
    }

    fn shipped_row(cautioned: bool) -> Published {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let is = |row: &Published| row.caution.is_some() == cautioned;
        table.into_iter().flatten().find(is).unwrap()
    }

    #[test]
    fn a_row_is_of_the_table_that_ships_by_what_it_says_and_not_by_a_caution() {
        let planner = Planner::shipped();
        let known = |row: &Published| Known::of(planner, row);
        let mut row = shipped_row(false);
        assert_eq!(known(&row), Known::Learned);
        assert_eq!(known(&shipped_row(true)), Known::Cautioned);
        row.run.model.name = "by another name".to_owned();
        row.step_s *= 1.004;
        assert_eq!(known(&row), Known::Learned, "typed anew, and rounded");
        row.step_s *= 1.5;
        row.caution = Some("my own".to_owned());
        assert_eq!(known(&row), Known::Not);
        let score = score(planner, vec![Ok(row)]);
        assert_eq!((score.learned, score.held_out), (0, 0));
    }

    #[test]
    fn a_row_whose_estimate_is_no_number_voids_no_score() {
        let mut odd = shipped_row(false);
        odd.step_s = f64::NAN;
        let mut row = shipped_row(false);
        row.step_s *= 1.5;
        let score = score(Planner::shipped(), vec![Ok(odd), Ok(row)]);
        assert_eq!((score.overall.complete, score.overall.covered), (2, 1));
        assert!(score.overall.mean_abs_error.unwrap().is_finite());
        assert!(score.uncovered.keys().next().unwrap().ends_with("its estimate is no number"));
    }

    #[test]
    fn the_document_says_its_form() {
        let score = score(Planner::shipped(), Vec::new());
        assert_eq!(serde_json::to_value(&score).unwrap()["v"], 1);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert!((quantile(&[1.0, 2.0, 3.0], 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&[0.0, 10.0], 0.9) - 9.0).abs() < 1e-12);
    }
}
