//! The answer about one run: speed with its doubt, what bounds it, and what it is like.

use std::sync::LazyLock;

use farrier_facts::FactSet;
use serde::Serialize;

use crate::bound::{self, Bound, Share};
use crate::coefficients::Coefficients;
use crate::fit::Trial;
use crate::flops::FlopsPerToken;
use crate::local::{Likeness, Neighbours};
use crate::published::{self, Published};
use crate::run::{Run, Task};
use crate::time::{self, Phase, StepTime};

/// From the middle to the tenth and to the ninetieth of a hundred, in standard deviations.
pub const TENTH: f64 = 1.2816;

/// The model as it ships: coefficients, and the published runs that correct it.
#[derive(Debug)]
pub struct Planner {
    /// The fitted numbers.
    pub fitted: Coefficients,
    /// The runs that they were fitted to.
    pub published: Vec<Published>,
    /// The published runs that have a caution: not fitted to, and no neighbours.
    pub cautioned: Vec<Published>,
    neighbours: Neighbours,
}

static SHIPPED: LazyLock<Planner> = LazyLock::new(|| {
    let text = include_str!(concat!(env!("OUT_DIR"), "/coefficients.json"));
    let fitted = serde_json::from_str(text).expect("a test reads the embedded coefficients");
    let rows = published::read(FactSet::embedded(), published::embedded())
        .expect("a test reads the embedded rows");
    Planner::of(fitted, rows.into_iter().flatten().collect())
});

impl Planner {
    /// The one that ships.
    pub fn shipped() -> &'static Self {
        &SHIPPED
    }

    /// From coefficients and published runs: those without a caution are what they were fitted to.
    pub fn of(fitted: Coefficients, rows: Vec<Published>) -> Self {
        let (published, cautioned): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row.caution.is_none());
        let rows: Vec<&Published> = published.iter().collect();
        let neighbours = Neighbours::of(&rows, &fitted, Likeness::default());
        Self { fitted, published, cautioned, neighbours }
    }

    /// This one with other coefficients, corrected by the same neighbours.
    #[must_use]
    pub fn with(&self, fitted: Coefficients) -> Self {
        Self {
            fitted,
            published: self.published.clone(),
            cautioned: self.cautioned.clone(),
            neighbours: self.neighbours.clone(),
        }
    }

    /// How long a step of a run takes, without what its neighbours say: for searches.
    pub fn step_s(&self, run: &Run) -> f64 {
        time::step(run, &self.fitted).total_s()
    }

    /// Likewise, with what its neighbours say.
    pub fn corrected_step_s(&self, run: &Run) -> f64 {
        self.step_s(run) * self.neighbours.shift(run).exp()
    }

    /// The whole answer about a run.
    pub fn estimate(&self, run: &Run) -> Estimate {
        let step = time::step(run, &self.fitted);
        let correction = self.neighbours.correction(run);
        let step_s = step.total_s() * correction.shift.exp();
        let gpus = f64::from(run.layout.gpus());
        let rate = run.tokens_per_step() / step_s / gpus;
        let spread = (TENTH * correction.deviation).exp();
        let flops = FlopsPerToken::of(run);
        let peak = run.gpu.peak_flops(run.precision);
        let bounds = bound::shares(run, &step, &self.fitted);
        let most = bounds.iter().max_by(|left, right| left.share.total_cmp(&right.share));
        Estimate {
            tokens_per_s_per_gpu: rate,
            tokens_per_s_per_gpu_p10: rate / spread,
            tokens_per_s_per_gpu_p90: rate * spread,
            step_time_s: step_s,
            mfu_causal: rate * flops.causal / peak,
            mfu_full: rate * flops.full / peak,
            hfu_causal: rate * flops.causal_with_recompute / peak,
            model_tflops_per_gpu: rate * flops.causal / 1e12,
            bound: most.map_or(Bound::Tensor, |share| share.bound),
            bounds,
            phases: phases(&step, step_s),
            correction: correction.shift.exp() - 1.0,
            nearest_measured: self.nearest(run),
        }
    }

    /// How far the estimate of a published run is off.
    pub fn trial(&self, row: &Published) -> Trial {
        Trial::of(row, &self.fitted, &self.neighbours)
    }

    fn nearest(&self, run: &Run) -> Option<Nearest> {
        // Of runs that are as far, the last that was published.
        let order = |left: &(f64, &Published), right: &(f64, &Published)| {
            left.0.total_cmp(&right.0).then_with(|| right.1.date.cmp(&left.1.date))
        };
        let rows = self.neighbours.distances(run).zip(&self.published);
        let (distance, row) = rows.min_by(order)?;
        let like = &row.run;
        Some(Nearest {
            model: like.model.name.clone(),
            gpu: row.gpu.clone(),
            gpus: like.layout.gpus(),
            precision: like.precision.name(),
            task: like.task,
            seq_len: like.seq_len,
            tokens_per_s_per_gpu: like.tokens_per_step()
                / row.step_s
                / f64::from(like.layout.gpus()),
            date: row.date.clone(),
            source: row.source.clone(),
            distance,
        })
    }
}

fn phases(step: &StepTime, step_s: f64) -> Vec<PhaseTime> {
    let scale = step_s / step.total_s();
    Phase::ALL
        .into_iter()
        .filter(|phase| step.of(*phase) > 0.0)
        .map(|phase| PhaseTime {
            phase,
            seconds: step.of(phase) * scale,
            share: step.of(phase) / step.total_s(),
            bound: Bound::of(phase, step),
        })
        .collect()
}

/// What is expected of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// Tokens a second for each GPU, the middle of what is expected.
    pub tokens_per_s_per_gpu: f64,
    /// One in ten is slower than this.
    pub tokens_per_s_per_gpu_p10: f64,
    /// One in ten is faster than this.
    pub tokens_per_s_per_gpu_p90: f64,
    /// Seconds a step.
    pub step_time_s: f64,
    /// Model FLOPs over the peak of the run's precision, attention counted as a causal mask leaves it.
    pub mfu_causal: f64,
    /// Likewise, attention counted in full.
    pub mfu_full: f64,
    /// Like `mfu_causal`, with what is computed again.
    pub hfu_causal: f64,
    /// Model TFLOP/s of each GPU, causal.
    pub model_tflops_per_gpu: f64,
    /// What takes most of the step.
    pub bound: Bound,
    /// What each bound takes, and what more of it would bring.
    pub bounds: Vec<Share>,
    /// What the step is spent on.
    pub phases: Vec<PhaseTime>,
    /// What published runs alike added to the step time, as a share.
    pub correction: f64,
    /// The published run that is most like this one.
    pub nearest_measured: Option<Nearest>,
}

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseTime {
    /// What it is.
    pub phase: Phase,
    /// Its time.
    pub seconds: f64,
    /// Its share of the step.
    pub share: f64,
    /// What it is bound by.
    pub bound: Bound,
}

/// A published run that is like another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Nearest {
    /// What was trained.
    pub model: String,
    /// On what, as its source says.
    pub gpu: String,
    /// On how many.
    pub gpus: u32,
    /// What products were computed in.
    pub precision: &'static str,
    /// Which weights learned.
    pub task: Task,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// What was measured.
    pub tokens_per_s_per_gpu: f64,
    /// When.
    pub date: String,
    /// Where it is published.
    pub source: String,
    /// How far it is: below 1 is close, above 3 is another kind of run.
    pub distance: f64,
}

/// How much a published run says of a planned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alike {
    /// It is close.
    Close,
    /// It is like it in part.
    InPart,
    /// It is another kind of run.
    Not,
}

impl Nearest {
    /// How much it says of the run that it is nearest to.
    pub fn alike(&self) -> Alike {
        match self.distance {
            distance if distance < 1.0 => Alike::Close,
            distance if distance < 3.0 => Alike::InPart,
            _ => Alike::Not,
        }
    }
}
