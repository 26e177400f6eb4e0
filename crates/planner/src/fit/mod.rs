//! How the coefficients are found: least squares over the logarithms of step times, held near what
//! was expected, and tried on rows that had no part in it.

pub mod linear;
pub mod products;
pub mod squares;

use std::collections::BTreeMap;

use crate::coefficients::Coefficients;
use crate::local::{Likeness, Neighbours};
use crate::published::Published;
use crate::time;

/// Parts that rows are put into for trying: each is estimated by a fit to the others.
pub const FOLDS: u64 = 10;

/// How far a row that states all may be off (one standard deviation), and one that does not, or whose
/// mixture of experts runs on software that changes from release to release.
const ROW_SPREAD: f64 = 0.035;
const OPEN_ROW_SPREAD: f64 = 0.10;

/// Where a row's error begins to count less: beyond so many deviations it is something that the
/// model does not know of.
const ROBUST: f64 = 2.0;

/// The logarithm of estimated over measured step time.
pub fn error(row: &Published, fitted: &Coefficients) -> f64 {
    (time::step(&row.run, fitted).total_s() / row.step_s).ln()
}

/// Fits the coefficients to rows.
pub fn fit(rows: &[&Published]) -> Coefficients {
    let start = vec![0.0; Coefficients::ENTRIES.len()];
    coefficients(&squares::least(start, |at| residuals(rows, at)))
}

/// The coefficients at a place: each is what was expected, times e to the place in its spread.
fn coefficients(at: &[f64]) -> Coefficients {
    let values: Vec<f64> = Coefficients::ENTRIES
        .iter()
        .zip(at)
        .map(|(entry, at)| entry.prior * (at * entry.spread).exp())
        .collect();
    Coefficients::from_values(&values)
}

/// Errors of the rows and distances from what was expected, each in its deviations.
fn residuals(rows: &[&Published], at: &[f64]) -> Vec<f64> {
    let fitted = coefficients(at);
    let of_rows =
        rows.iter().map(|row| squares::robust(error(row, &fitted) / row_spread(row), ROBUST));
    of_rows.chain(at.iter().copied()).collect()
}

fn row_spread(row: &Published) -> f64 {
    if !row.assumed.is_empty() || row.run.model.experts.is_some() {
        OPEN_ROW_SPREAD
    } else {
        ROW_SPREAD
    }
}

/// Rows that tell nearly the same: one shape of model (whatever it is called), GPU, precision and
/// size of cluster.
pub fn group(row: &Published) -> String {
    let model = &row.run.model;
    format!(
        "{}|{}|{}|{}|{}|{}",
        model.layers,
        model.hidden,
        model.experts.map_or(0, |experts| experts.count),
        row.run.gpu.id,
        row.run.precision.name(),
        f64::from(row.run.layout.gpus()).log2().round()
    )
}

/// Which part a row is in: rows of one group are in the same, so that none is estimated from its
/// twin.
pub fn fold(row: &Published) -> u64 {
    // FNV-1a: the same everywhere and for ever.
    let hash = group(row).bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) % FOLDS
}

/// What a row that had no part in a fit shows of it.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// The logarithm of estimated over measured step time, by the coefficients alone.
    pub plain: f64,
    /// Likewise, corrected by the runs nearest to it.
    pub corrected: f64,
    /// One standard deviation of that, as the estimate says itself.
    pub deviation: f64,
}

impl Trial {
    /// A row by coefficients and neighbours.
    pub fn of(row: &Published, fitted: &Coefficients, neighbours: &Neighbours) -> Self {
        let plain = error(row, fitted);
        let correction = neighbours.correction(&row.run);
        Self { plain, corrected: plain + correction.shift, deviation: correction.deviation }
    }
}

/// Rows with the fit of each part, made without it.
#[derive(Debug)]
pub struct CrossValidation<'a> {
    rows: &'a [Published],
    by_fold: BTreeMap<u64, (Vec<&'a Published>, Coefficients)>,
}

impl<'a> CrossValidation<'a> {
    /// Fits as many times as there are parts.
    pub fn of(rows: &'a [Published]) -> Self {
        let part = |part: u64| {
            let others: Vec<&Published> =
                rows.iter().filter(|row| fold(row) != part && row.caution.is_none()).collect();
            let fitted = fit(&others);
            (part, (others, fitted))
        };
        Self { rows, by_fold: (0..FOLDS).map(part).collect() }
    }

    /// The neighbours of each part, without it.
    pub fn neighbours(&self, likeness: &Likeness) -> BTreeMap<u64, Neighbours> {
        let of = |(part, (others, fitted)): (&u64, &(Vec<&Published>, Coefficients))| {
            (*part, Neighbours::of(others, fitted, likeness.clone()))
        };
        self.by_fold.iter().map(of).collect()
    }

    /// A row by the fit that its part had no share in.
    pub fn trial(&self, row: &Published, neighbours: &BTreeMap<u64, Neighbours>) -> Trial {
        let part = fold(row);
        Trial::of(row, &self.by_fold[&part].1, &neighbours[&part])
    }

    /// Each row by the fit that its part had no share in.
    pub fn trials(&self, likeness: &Likeness) -> Vec<Trial> {
        let neighbours = self.neighbours(likeness);
        self.rows.iter().map(|row| self.trial(row, &neighbours)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use farrier_facts::FactSet;

    use super::*;
    use crate::published;

    #[test]
    fn a_model_by_another_name_is_in_the_same_part() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<Published> = table.into_iter().flatten().collect();
        let found = |name: &str, gpu: &str, precision: &str, gpus: u32| {
            let is = |row: &&Published| {
                row.run.model.name == name
                    && row.gpu == gpu
                    && row.run.precision.name() == precision
                    && row.run.layout.gpus() == gpus
            };
            fold(rows.iter().find(is).unwrap())
        };
        assert_eq!(
            found("Qwen3_30B_a3B (tokendrop)", "GB200", "mxfp8", 8),
            found("Qwen3_30B_a3B", "GB200", "mxfp8", 8)
        );
        let mut other = rows[0].clone();
        other.run.model.name = "another name".to_owned();
        other.run.model.mtp_layers += 1;
        assert_eq!(group(&other), group(&rows[0]));
        other.run.model.layers += 1;
        assert_ne!(group(&other), group(&rows[0]));
    }

    #[test]
    fn no_part_is_empty_or_most_of_the_table() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<Published> = table.into_iter().flatten().collect();
        let parts: Vec<u64> = rows.iter().map(fold).collect();
        assert_eq!(parts.iter().collect::<BTreeSet<_>>().len() as u64, FOLDS);
        let most = (0..FOLDS).map(|part| parts.iter().filter(|of| **of == part).count()).max();
        assert!(most.unwrap() * 4 < rows.len(), "{most:?} of {}", rows.len());
    }
}
