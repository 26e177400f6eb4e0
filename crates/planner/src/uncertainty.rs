//! Uncertainty of an estimate: a Gaussian process over the residuals of the fitted model.
//!
//! Similar runs have similar residuals, so published runs near a planned run correct the estimate
//! of that run and narrow its P10-P90 range. Far from every published run the correction fades to
//! zero and the range widens to that of the model alone.

use crate::coefficients::Coefficients;
use crate::fit;
use crate::fit::linear_algebra::{Cholesky, dot};
use crate::gpu::Generation;
use crate::model::ParameterCounts;
use crate::published::PublishedRun;
use crate::run::{TrainingRun, TrainingTask};

/// Hyperparameters of the Gaussian process, chosen by cross-validation. Standard deviations are of
/// the logarithm of step time.
#[derive(Debug, Clone)]
pub struct GpHyperparameters {
    /// Prior standard deviation of the model's residual for dense models.
    pub prior_std: f64,
    /// Prior for `MoE` models, whose kernels change from release to release.
    pub prior_std_moe: f64,
    /// Prior for `MoE` models before Blackwell, of which few runs are published.
    pub prior_std_moe_pre_blackwell: f64,
    /// Standard deviation between two measurements of the same run.
    pub noise_std: f64,
    /// Additional noise of a row that does not state its whole configuration.
    pub incomplete_noise_std: f64,
    /// Inflation of the posterior standard deviation, so that eight in ten held-out rows lie inside
    /// P10-P90.
    pub std_inflation: f64,
    /// Scales the length scales of all continuous features.
    pub length_scale: f64,
    /// Added to the squared distance if a category differs: GPU, generation, precision, framework,
    /// recompute, task.
    pub category_penalties: [f64; 6],
}

impl Default for GpHyperparameters {
    fn default() -> Self {
        Self {
            prior_std: 0.08,
            prior_std_moe: 0.20,
            prior_std_moe_pre_blackwell: 0.25,
            noise_std: 0.03,
            incomplete_noise_std: 0.01,
            std_inflation: 1.4,
            length_scale: 1.4,
            category_penalties: [0.08, 1.5, 0.2, 1.5, 0.02, 0.15],
        }
    }
}

/// Index of the generation in [`FeatureVector::categories`].
const GENERATION: usize = 1;
/// Index of fused experts in [`FeatureVector::continuous`].
const FUSED: usize = 8;

/// The features of a run. Continuous ones are divided by the length scale over which residuals
/// change.
#[derive(Debug, Clone)]
struct FeatureVector {
    continuous: [f64; 9],
    categories: [u32; 6],
    is_moe: bool,
}

impl FeatureVector {
    fn new(run: &TrainingRun) -> Self {
        let parameters = ParameterCounts::new(&run.model);
        let parallelism = &run.parallelism;
        let log = |count: u32| f64::from(count.max(1)).ln();
        let is_moe = run.model.experts.is_some();
        let continuous = [
            parameters.active.ln() / 1.2,
            f64::from(run.model.hidden).ln() / 1.0,
            run.tokens_per_micro_batch().ln() / 1.5,
            log(run.seq_len) / 1.5,
            log(parallelism.gpus()) / 2.5,
            log(parallelism.tp) / 1.5,
            log(parallelism.pp) / 2.0,
            log(parallelism.ep) / 2.0 + if is_moe { 3.0 } else { 0.0 },
            if run.fused_experts { 2.0 } else { 0.0 },
        ];
        let gpu_hash = run
            .gpu
            .id
            .bytes()
            .fold(0, |hash: u32, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let categories = [
            gpu_hash ^ u32::from(run.gpu.power_share < 1.0),
            run.gpu.generation as u32,
            run.precision as u32,
            run.framework as u32,
            u32::from(parallelism.recompute.recomputed_gemm_share(run.layers_per_stage()) > 0.0),
            u32::from(run.task == TrainingTask::Lora),
        ];
        Self { continuous, categories, is_moe }
    }
}

impl GpHyperparameters {
    fn squared_distance(&self, left: &FeatureVector, right: &FeatureVector) -> f64 {
        let continuous: f64 = left
            .continuous
            .iter()
            .zip(&right.continuous)
            .map(|(left, right)| (left - right).powi(2))
            .sum();
        let categories: f64 = left
            .categories
            .iter()
            .zip(&right.categories)
            .zip(self.category_penalties)
            .filter(|((left, right), _)| left != right)
            .map(|(_, penalty)| penalty)
            .sum();
        continuous / self.length_scale.powi(2) + categories
    }

    fn prior_std(&self, features: &FeatureVector) -> f64 {
        match (features.is_moe, features.categories[GENERATION] == Generation::Blackwell as u32) {
            (false, _) => self.prior_std,
            (true, true) => self.prior_std_moe,
            (true, false) => self.prior_std_moe_pre_blackwell,
        }
    }

    /// Covariance of the residuals of two runs: a squared-exponential kernel.
    fn covariance(&self, left: &FeatureVector, right: &FeatureVector) -> f64 {
        self.prior_std(left).min(self.prior_std(right)).powi(2)
            * (-0.5 * self.squared_distance(left, right)).exp()
    }
}

/// Gaussian process over the model's residuals on published runs.
#[derive(Debug, Clone)]
pub struct ResidualGp {
    hyperparameters: GpHyperparameters,
    rows: Vec<FeatureVector>,
    weights: Vec<f64>,
    cholesky: Cholesky,
}

/// Posterior of a run's residual, in the logarithm of step time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// Posterior mean, to be added to the logarithm of step time.
    pub shift: f64,
    /// Posterior standard deviation.
    pub std_dev: f64,
}

impl ResidualGp {
    /// Fits the process to the residuals of `rows` under `coefficients`.
    pub fn fit(
        rows: &[&PublishedRun],
        coefficients: &Coefficients,
        hyperparameters: GpHyperparameters,
    ) -> Self {
        let features: Vec<FeatureVector> =
            rows.iter().map(|row| FeatureVector::new(&row.run)).collect();
        let noise_variance = |row: &PublishedRun| {
            let incomplete =
                if row.assumed.is_empty() { 0.0 } else { hyperparameters.incomplete_noise_std };
            hyperparameters.noise_std.powi(2) + incomplete.powi(2)
        };
        let covariance: Vec<Vec<f64>> = features
            .iter()
            .enumerate()
            .map(|(index, left)| {
                let mut row: Vec<f64> =
                    features.iter().map(|right| hyperparameters.covariance(left, right)).collect();
                row[index] += noise_variance(rows[index]);
                row
            })
            .collect();
        let cholesky =
            Cholesky::factor(covariance).expect("a covariance with noise is positive definite");
        // A residual beyond 3 σ comes from a software state that the model does not cover: clamp it
        // so that it does not spread to other runs.
        let residuals: Vec<f64> = rows
            .iter()
            .zip(&features)
            .map(|(row, features)| {
                let limit = 3.0 * hyperparameters.prior_std(features);
                -fit::error(row, coefficients).clamp(-limit, limit)
            })
            .collect();
        let weights = cholesky.solve(&residuals);
        Self { hyperparameters, rows: features, weights, cholesky }
    }

    /// Posterior mean of a run's residual. Cheaper than [`Self::correction`], for searches.
    pub fn shift(&self, run: &TrainingRun) -> f64 {
        let features = FeatureVector::new(run);
        let covariances =
            self.rows.iter().map(|row| self.hyperparameters.covariance(&features, row));
        covariances.zip(&self.weights).map(|(covariance, weight)| covariance * weight).sum()
    }

    /// Posterior of a run's residual.
    pub fn correction(&self, run: &TrainingRun) -> Correction {
        let features = FeatureVector::new(run);
        let covariances: Vec<f64> =
            self.rows.iter().map(|row| self.hyperparameters.covariance(&features, row)).collect();
        let shift = dot(&covariances, &self.weights);
        let whitened = self.cholesky.forward_substitute(&covariances);
        let explained = dot(&whitened, &whitened);
        let prior_std = self.hyperparameters.prior_std(&features);
        let variance =
            (prior_std.powi(2) - explained).max(0.0) + self.hyperparameters.noise_std.powi(2);
        Correction { shift, std_dev: variance.sqrt() * self.hyperparameters.std_inflation }
    }

    /// Distance of each row from a run, in the order of the rows passed to [`Self::fit`].
    pub fn distances(&self, run: &TrainingRun) -> impl Iterator<Item = f64> {
        let features = FeatureVector::new(run);
        // A run on another GPU or in another precision is less comparable than the correlation of
        // residuals suggests, so it gets an additional penalty. Few sources state whether experts
        // run in fused kernels, so that feature is ignored.
        self.rows.iter().map(move |row| {
            let mut features = features.clone();
            features.continuous[FUSED] = row.continuous[FUSED];
            let differs =
                |category: usize| features.categories[category] != row.categories[category];
            let mismatches =
                [0, GENERATION, 2].into_iter().filter(|category| differs(*category)).count();
            (self.hyperparameters.squared_distance(&features, row)
                + [0.0, 1.5, 3.0, 4.5][mismatches])
                .sqrt()
        })
    }
}
