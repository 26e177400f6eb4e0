//! Fitting of the coefficients: regularized least squares over the logarithm of step time, and
//! leave-group-out cross-validation.

pub mod collectives;
pub mod gemm;
pub mod least_squares;
pub mod linear_algebra;

use std::collections::BTreeSet;
use std::thread;

use crate::coefficients::Coefficients;
use crate::published::PublishedRun;
use crate::step_time;
use crate::uncertainty::{GpHyperparameters, ResidualGp};

/// A row is a published run. The model's error for rows that state their whole configuration has
/// this standard deviation.
const ROW_SPREAD: f64 = 0.035;
/// The same for rows that do not state their whole configuration, and for rows that train a `MoE`
/// model, because the kernels of `MoE` models change from release to release.
const INCOMPLETE_ROW_SPREAD: f64 = 0.10;

/// Residuals beyond this many standard deviations get less weight, because something that the model
/// does not cover causes them.
const ROBUST_LIMIT: f64 = 2.0;

/// Logarithm of estimated over measured step time.
pub fn error(row: &PublishedRun, coefficients: &Coefficients) -> f64 {
    (step_time::step(&row.run, coefficients).total_s() / row.step_s).ln()
}

pub fn fit(rows: &[&PublishedRun]) -> Coefficients {
    fit_from(rows, &Coefficients::priors())
}

/// Fits with `start` as the initial guess.
fn fit_from(rows: &[&PublishedRun], start: &Coefficients) -> Coefficients {
    from_z_scores(&least_squares::minimize(to_z_scores(start), |z_scores| {
        residuals(rows, z_scores)
    }))
}

/// z-score of each coefficient under its log-normal prior.
fn to_z_scores(coefficients: &Coefficients) -> Vec<f64> {
    let specs = Coefficients::SPECS.iter().zip(coefficients.values());
    specs.map(|(spec, value)| (value / spec.prior).ln() / spec.spread).collect()
}

fn from_z_scores(z_scores: &[f64]) -> Coefficients {
    let values: Vec<f64> = Coefficients::SPECS
        .iter()
        .zip(z_scores)
        .map(|(spec, z_score)| spec.prior * (z_score * spec.spread).exp())
        .collect();
    Coefficients::from_values(&values)
}

/// Residuals of the rows, and the z-scores of the coefficients as regularization.
fn residuals(rows: &[&PublishedRun], z_scores: &[f64]) -> Vec<f64> {
    let coefficients = from_z_scores(z_scores);
    let row_residuals = rows.iter().map(|row| {
        least_squares::robust(error(row, &coefficients) / row_spread(row), ROBUST_LIMIT)
    });
    row_residuals.chain(z_scores.iter().copied()).collect()
}

fn row_spread(row: &PublishedRun) -> f64 {
    if !row.assumed.is_empty() || row.run.model.experts.is_some() {
        INCOMPLETE_ROW_SPREAD
    } else {
        ROW_SPREAD
    }
}

/// Name of a row's group for cross-validation. The rows of a group are near-duplicates: they have
/// the same model shape (under any name), GPU, precision and cluster size (to the nearest power of
/// two).
pub fn group(row: &PublishedRun) -> String {
    let model = &row.run.model;
    format!(
        "{}|{}|{}|{}|{}|{}",
        model.layers,
        model.hidden,
        model.experts.map_or(0, |experts| experts.count),
        row.run.gpu.id,
        row.run.precision.name(),
        f64::from(row.run.parallelism.gpus()).log2().round()
    )
}

/// Error of an estimate on a published run, in the logarithm of step time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictionError {
    /// Error of the fitted coefficients alone.
    pub uncorrected: f64,
    /// Error with the residual model's correction.
    pub corrected: f64,
    /// Predicted standard deviation of `corrected`.
    pub std_dev: f64,
}

impl PredictionError {
    pub fn new(row: &PublishedRun, coefficients: &Coefficients, residual_gp: &ResidualGp) -> Self {
        let uncorrected = error(row, coefficients);
        let correction = residual_gp.correction(&row.run);
        let corrected = uncorrected + correction.shift;
        Self { uncorrected, corrected, std_dev: correction.std_dev }
    }
}

/// Returns the prediction error of each row in `test`. The coefficients for a row are fitted to the
/// rows in `training` that are not in the row's group. `start` is the initial guess of every fit.
pub fn leave_group_out(
    training: &[PublishedRun],
    test: &[&PublishedRun],
    start: &Coefficients,
    hyperparameters: &GpHyperparameters,
) -> Vec<PredictionError> {
    let test_groups: Vec<String> = test.iter().map(|row| group(row)).collect();
    let groups: Vec<&String> = test_groups.iter().collect::<BTreeSet<_>>().into_iter().collect();
    let training: Vec<(String, &PublishedRun)> =
        training.iter().map(|row| (group(row), row)).collect();
    let without = |name: &String| -> Vec<(usize, PredictionError)> {
        let others: Vec<&PublishedRun> =
            training.iter().filter(|(group, _)| group != name).map(|(_, row)| *row).collect();
        let coefficients = fit_from(&others, start);
        let residual_gp = ResidualGp::fit(&others, &coefficients, hyperparameters.clone());
        let held_out = test_groups.iter().enumerate().filter(|(_, group)| *group == name);
        held_out
            .map(|(row, _)| (row, PredictionError::new(test[row], &coefficients, &residual_gp)))
            .collect()
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let groups_per_worker = groups.len().div_ceil(workers).max(1);
    let mut errors: Vec<(usize, PredictionError)> = thread::scope(|scope| {
        let threads = groups.chunks(groups_per_worker).map(|groups| {
            scope.spawn(move || groups.iter().flat_map(|name| without(name)).collect::<Vec<_>>())
        });
        // Collect first, so that all threads are spawned before the first join.
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|part| part.join().expect("a fit does not panic")).collect()
    });
    errors.sort_by_key(|(row, _)| *row);
    errors.into_iter().map(|(_, error)| error).collect()
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;
    use crate::published;

    #[test]
    fn renamed_model_stays_in_the_same_group() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<PublishedRun> = table.into_iter().flatten().collect();
        let found = |name: &str, gpu: &str, precision: &str, gpus: u32| {
            let is = |row: &&PublishedRun| {
                row.run.model.name == name
                    && row.gpu == gpu
                    && row.run.precision.name() == precision
                    && row.run.parallelism.gpus() == gpus
            };
            group(rows.iter().find(is).unwrap())
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
    fn rows_are_not_estimated_from_their_own_group() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<PublishedRun> = table.into_iter().flatten().collect();
        let row = rows.iter().find(|row| row.run.model.experts.is_some()).unwrap();
        let predict = |training: &[PublishedRun]| {
            leave_group_out(
                training,
                &[row],
                &Coefficients::priors(),
                &GpHyperparameters::default(),
            )[0]
        };
        let mut slow_group = rows.clone();
        for other in slow_group.iter_mut().filter(|other| group(other) == group(row)) {
            other.step_s *= 2.0;
        }
        assert_eq!(predict(&rows), predict(&slow_group));
    }

    #[test]
    fn fit_does_not_depend_on_the_initial_guess() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<PublishedRun> = table.into_iter().flatten().collect();
        let training: Vec<&PublishedRun> =
            rows.iter().filter(|row| group(row) != group(&rows[0])).collect();
        let (cold, warm) =
            (fit(&training), fit_from(&training, &fit(&rows.iter().collect::<Vec<_>>())));
        for row in &rows {
            let difference = (error(row, &cold) - error(row, &warm)).abs();
            assert!(difference < 0.01, "{} on {}: {difference}", row.run.model.name, row.gpu);
        }
    }
}
