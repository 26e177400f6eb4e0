//! Estimate of one run: speed with uncertainty, bottlenecks, and the nearest published run.

use std::sync::LazyLock;

use farrier_facts::FactSet;
use serde::Serialize;

use crate::bound::{self, Bound, BoundShare};
use crate::coefficients::Coefficients;
use crate::fit::PredictionError;
use crate::flops::FlopsPerToken;
use crate::published::{self, PublishedRun};
use crate::run::{TrainingRun, TrainingTask};
use crate::step_time::{self, StepPhase, StepTime};
use crate::uncertainty::{GpHyperparameters, ResidualGp};

/// z-score of P90. The z-score of P10 is its negative.
pub const Z_P90: f64 = 1.2816;

/// The shipped model: fitted coefficients, and the published runs that correct them.
#[derive(Debug)]
pub struct Planner {
    pub coefficients: Coefficients,
    /// Published runs that the coefficients were fitted to.
    pub published: Vec<PublishedRun>,
    /// Published runs marked with a caution. The coefficients are not fitted to them, and the
    /// residual model does not use them.
    pub cautioned: Vec<PublishedRun>,
    residual_gp: ResidualGp,
}

static SHIPPED: LazyLock<Planner> = LazyLock::new(|| {
    let text = include_str!(concat!(env!("OUT_DIR"), "/coefficients.json"));
    let coefficients = serde_json::from_str(text).expect("a test reads the embedded coefficients");
    let rows = published::read(FactSet::embedded(), published::embedded())
        .expect("a test reads the embedded rows");
    Planner::new(coefficients, rows.into_iter().flatten().collect())
});

impl Planner {
    /// The planner with the embedded coefficients and published runs.
    pub fn shipped() -> &'static Self {
        &SHIPPED
    }

    /// Creates a planner. `coefficients` must be fitted to exactly those of the `rows` (published
    /// runs) that have no caution.
    pub fn new(coefficients: Coefficients, rows: Vec<PublishedRun>) -> Self {
        let (published, cautioned): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row.caution.is_none());
        let rows: Vec<&PublishedRun> = published.iter().collect();
        let residual_gp = ResidualGp::fit(&rows, &coefficients, GpHyperparameters::default());
        Self { coefficients, published, cautioned, residual_gp }
    }

    /// Replaces the coefficients and keeps the residual model.
    #[must_use]
    pub fn with_coefficients(&self, coefficients: Coefficients) -> Self {
        Self {
            coefficients,
            published: self.published.clone(),
            cautioned: self.cautioned.clone(),
            residual_gp: self.residual_gp.clone(),
        }
    }

    /// Step time by the model alone, without the residual correction.
    pub fn step_s(&self, run: &TrainingRun) -> f64 {
        step_time::step(run, &self.coefficients).total_s()
    }

    /// Step time with the residual correction.
    pub fn corrected_step_s(&self, run: &TrainingRun) -> f64 {
        self.step_s(run) * self.residual_gp.shift(run).exp()
    }

    /// Full estimate of a run.
    pub fn estimate(&self, run: &TrainingRun) -> Estimate {
        let step = step_time::step(run, &self.coefficients);
        let correction = self.residual_gp.correction(run);
        let step_s = step.total_s() * correction.shift.exp();
        let gpus = f64::from(run.parallelism.gpus());
        let rate = run.tokens_per_step() / step_s / gpus;
        let spread = (Z_P90 * correction.std_dev).exp();
        let flops = FlopsPerToken::new(run);
        let peak = run.gpu.peak_flops(run.precision);
        let bounds = bound::shares(run, &step, &self.coefficients);
        let largest = bounds.iter().max_by(|left, right| left.share.total_cmp(&right.share));
        Estimate {
            tokens_per_s_per_gpu: rate,
            tokens_per_s_per_gpu_p10: rate / spread,
            tokens_per_s_per_gpu_p90: rate * spread,
            step_time_s: step_s,
            mfu_causal: rate * flops.causal / peak,
            mfu_full: rate * flops.full / peak,
            hfu_causal: rate * flops.causal_with_recompute / peak,
            model_tflops_per_gpu: rate * flops.causal / 1e12,
            bound: largest.map_or(Bound::Tensor, |share| share.bound),
            bounds,
            phases: phases(&step, step_s),
            correction: correction.shift.exp() - 1.0,
            nearest_measured: self.nearest(run),
        }
    }

    /// Error of the estimate of a published run.
    pub fn prediction_error(&self, row: &PublishedRun) -> PredictionError {
        PredictionError::new(row, &self.coefficients, &self.residual_gp)
    }

    fn nearest(&self, run: &TrainingRun) -> Option<NearestRun> {
        // Of equally distant runs, take the most recent.
        let order = |left: &(f64, &PublishedRun), right: &(f64, &PublishedRun)| {
            left.0.total_cmp(&right.0).then_with(|| right.1.date.cmp(&left.1.date))
        };
        let rows = self.residual_gp.distances(run).zip(&self.published);
        let (distance, row) = rows.min_by(order)?;
        let nearest = &row.run;
        Some(NearestRun {
            model: nearest.model.name.clone(),
            gpu: row.gpu.clone(),
            gpus: nearest.parallelism.gpus(),
            precision: nearest.precision.name(),
            task: nearest.task,
            seq_len: nearest.seq_len,
            tokens_per_s_per_gpu: nearest.tokens_per_step()
                / row.step_s
                / f64::from(nearest.parallelism.gpus()),
            date: row.date.clone(),
            source: row.source.clone(),
            distance,
        })
    }
}

fn phases(step: &StepTime, step_s: f64) -> Vec<PhaseTime> {
    let scale = step_s / step.total_s();
    StepPhase::ALL
        .into_iter()
        .filter(|phase| step.phase_s(*phase) > 0.0)
        .map(|phase| PhaseTime {
            phase,
            seconds: step.phase_s(phase) * scale,
            share: step.phase_s(phase) / step.total_s(),
            bound: Bound::for_phase(phase, step),
        })
        .collect()
}

/// Expected speed of a run, with its uncertainty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// Median (P50).
    pub tokens_per_s_per_gpu: f64,
    pub tokens_per_s_per_gpu_p10: f64,
    pub tokens_per_s_per_gpu_p90: f64,
    pub step_time_s: f64,
    /// MFU against the peak of the run's precision, with causal attention FLOPs.
    pub mfu_causal: f64,
    /// MFU with full attention FLOPs.
    pub mfu_full: f64,
    /// HFU: like `mfu_causal`, including recomputed FLOPs.
    pub hfu_causal: f64,
    /// Model TFLOP/s per GPU, causal.
    pub model_tflops_per_gpu: f64,
    /// The bound with the largest share of the step.
    pub bound: Bound,
    /// Share of each bound, and the speedup from relaxing it.
    pub bounds: Vec<BoundShare>,
    pub phases: Vec<PhaseTime>,
    /// Relative change of the step time by the residual model.
    pub correction: f64,
    /// The published run that is most similar to the estimated run.
    pub nearest_measured: Option<NearestRun>,
}

/// Time of one phase of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseTime {
    pub phase: StepPhase,
    pub seconds: f64,
    /// Share of the step.
    pub share: f64,
    pub bound: Bound,
}

/// The published run that is nearest to an estimated run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NearestRun {
    pub model: String,
    /// Name of the GPU in the source.
    pub gpu: String,
    pub gpus: u32,
    pub precision: &'static str,
    pub task: TrainingTask,
    /// Tokens per sequence.
    pub seq_len: u32,
    /// Measured throughput.
    pub tokens_per_s_per_gpu: f64,
    pub date: String,
    pub source: String,
    /// Distance in the feature space of the residual model: below 1 is close, above 3 is a
    /// different kind of run.
    pub distance: f64,
}

/// How similar the nearest published run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Similarity {
    /// Distance below 1.
    Close,
    /// Distance below 3.
    Partial,
    /// A different kind of run.
    Different,
}

impl NearestRun {
    pub fn similarity(&self) -> Similarity {
        match self.distance {
            distance if distance < 1.0 => Similarity::Close,
            distance if distance < 3.0 => Similarity::Partial,
            _ => Similarity::Different,
        }
    }
}
