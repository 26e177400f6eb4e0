//! How far estimates are from published runs.
//!
//! A run that the coefficients were fitted to is estimated by a fit that had no part of its group, so
//! that no row is flattered by its own or a twin's presence.

mod goal;
pub mod page;
mod residual;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::estimate::{Planner, TENTH};
use crate::fit::{self, CrossValidation, Trial};
use crate::local::Likeness;
use crate::model::builtin;
use crate::published::{Published, Uncovered};

/// The whole answer about a table of runs.
#[derive(Debug, Clone, Serialize)]
pub struct Score {
    /// Over the rows that state their whole configuration.
    pub overall: Tally,
    /// Over those that leave something open, which was assumed.
    pub incomplete: Tally,
    /// The complete ones by what they are.
    pub by: BTreeMap<&'static str, BTreeMap<String, Tally>>,
    /// Rows that are not estimated, by reason.
    pub uncovered: BTreeMap<String, usize>,
    /// Rows that were fitted to, and so were estimated by a fit without their group.
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

impl Scored {
    fn of(row: Published, trial: Trial) -> Self {
        let inside = trial.corrected.abs() <= TENTH * trial.deviation;
        Self { row, error: trial.corrected.exp() - 1.0, inside }
    }
}

/// Scores a table as [`crate::published::read`] gives it.
pub fn score(planner: &Planner, table: Vec<Result<Published, Uncovered>>) -> Score {
    let (mut rows, mut refused) = (Vec::new(), Vec::new());
    for row in table {
        match row {
            Ok(row) => rows.push(row),
            Err(why) => refused.push(why),
        }
    }
    let total = rows.len() + refused.len();
    // A row with a caution is of the table that ships: its group was fitted to, if it was not.
    let known = |row: &Published| {
        row.caution.is_some() || planner.published.iter().any(|other| is_same(row, other))
    };
    let held_out = rows.iter().filter(|row| known(row)).count();
    let cross = (held_out > 0).then(|| CrossValidation::of(&planner.published));
    let fits = cross.as_ref().map(|cross| cross.neighbours(&Likeness::default()));
    let mut scored: Vec<Scored> = rows
        .into_iter()
        .map(|row| {
            let trial = match (&cross, &fits) {
                (Some(cross), Some(fits)) if known(&row) => cross.trial(&row, fits),
                _ => planner.trial(&row),
            };
            Scored::of(row, trial)
        })
        .collect();
    scored.sort_by(|left, right| right.error.abs().total_cmp(&left.error.abs()));

    let is_complete = |scored: &&Scored| scored.row.assumed.is_empty();
    let complete: Vec<&Scored> = scored.iter().filter(is_complete).collect();
    let open: Vec<&Scored> = scored.iter().filter(|scored| !is_complete(scored)).collect();
    let refused_complete = refused.iter().filter(|row| row.complete).count();
    let mut overall = Tally::of(&complete);
    overall.rows = total;
    overall.complete = complete.len() + refused_complete;
    let mut incomplete = Tally::of(&open);
    incomplete.rows = total - overall.complete;
    incomplete.complete = 0;
    let mut uncovered = BTreeMap::new();
    for row in &refused {
        *uncovered.entry(format!("{}: {}", row.model, row.why)).or_insert(0) += 1;
    }
    let by = groups(&complete);
    Score { overall, incomplete, by, uncovered, held_out, rows: scored }
}

/// Whether two rows tell of one run: the same place, shape and speed.
fn is_same(left: &Published, right: &Published) -> bool {
    left.run.layout == right.run.layout
        && left.run.seq_len == right.run.seq_len
        && left.run.global_batch == right.run.global_batch
        && fit::fold(left) == fit::fold(right)
        && left.run.model.name == right.run.model.name
        && (left.step_s / right.step_s - 1.0).abs() < 1e-9
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

    #[test]
    fn the_shipped_rows_are_held_out_and_within_the_goals() {
        let score = shipped();
        assert!(score.held_out > 330, "{}", score.held_out);
        let dense = |key: &str| score.by["kind"][key].mean_abs_error.unwrap();
        assert!(dense("dense, ampere") < 0.05, "{}", dense("dense, ampere"));
        assert!(dense("dense, hopper") < 0.06, "{}", dense("dense, hopper"));
        assert!(score.overall.covered * 100 >= score.overall.complete * 95);
        assert!(score.overall.inside_p10_p90.unwrap() > 0.75);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert!((quantile(&[1.0, 2.0, 3.0], 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&[0.0, 10.0], 0.9) - 9.0).abs() < 1e-12);
    }
}
