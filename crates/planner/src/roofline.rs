//! Roofline: the operations of a GPU against its compute and memory peaks.
//!
//! Times are those of [`crate::step_time`]. Bytes are the minimum traffic of each kernel, or the
//! estimated traffic of memory-bound ones.

use serde::Serialize;

use crate::coefficients::Coefficients;
use crate::run::TrainingRun;
pub use crate::step_time::OpKind;
use crate::step_time::cost::CostByKind;
use crate::step_time::{AchievedRates, block};

/// The peaks of a GPU, and the operations of a run under them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// Peak of the run's precision.
    pub peak_flops_per_s: f64,
    /// 16-bit peak, which limits attention and the output projection.
    pub half_peak_flops_per_s: f64,
    pub hbm_bytes_per_s: f64,
    /// The kinds of operation in the run, in the order of [`OpKind::ALL`].
    pub work: Vec<RooflinePoint>,
}

/// A kind of operation on the roofline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RooflinePoint {
    pub kind: OpKind,
    /// Arithmetic intensity.
    pub flops_per_byte: f64,
    /// Achieved FLOP/s.
    pub flops_per_s: f64,
    /// Share of the GPU's busy time.
    pub time_share: f64,
}

impl Roofline {
    pub fn new(run: &TrainingRun, coefficients: &Coefficients) -> Self {
        let all = step(run, coefficients);
        let all_s: f64 = OpKind::ALL.into_iter().map(|kind| all.get(kind).seconds).sum();
        let sums = OpKind::ALL
            .into_iter()
            .map(|kind| (kind, all.get(kind)))
            .filter(|(_, sum)| sum.seconds > 0.0);
        let work = sums.map(|(kind, sum)| RooflinePoint {
            kind,
            flops_per_byte: sum.flops / sum.bytes,
            flops_per_s: sum.flops / sum.seconds,
            time_share: sum.seconds / all_s,
        });
        Self {
            peak_flops_per_s: run.gpu.peak_flops(run.precision),
            half_peak_flops_per_s: run.gpu.flops_16bit,
            hbm_bytes_per_s: run.gpu.hbm_bytes_per_s,
            work: work.collect(),
        }
    }

    /// Attainable FLOP/s at an operation's arithmetic intensity.
    pub fn roof_flops_per_s(&self, point: &RooflinePoint) -> f64 {
        let peak =
            if point.kind.is_16bit() { self.half_peak_flops_per_s } else { self.peak_flops_per_s };
        peak.min(point.flops_per_byte * self.hbm_bytes_per_s)
    }
}

/// Costs of a step on a GPU of the mean pipeline stage.
fn step(run: &TrainingRun, coefficients: &Coefficients) -> CostByKind {
    let rates = AchievedRates::new(run, coefficients);
    let model = &run.model;
    let per_stage = f64::from(run.micro_batches()) / f64::from(run.parallelism.pp);
    let (mut dense, mut moe, mut ends) =
        (CostByKind::default(), CostByKind::default(), CostByKind::default());
    block::dense_work(run, &rates, coefficients, &mut dense);
    block::embedding_and_loss(run, &rates, coefficients, &mut ends);
    let mtp = f64::from(model.mtp_layers);
    let mut all = CostByKind::default();
    if let Some(experts) = model.experts {
        block::moe_work(run, &rates, coefficients, experts, &mut moe);
        all.add_scaled(&moe, (f64::from(model.expert_layers()) + mtp) * per_stage);
        all.add_scaled(&dense, f64::from(model.dense_layers()) * per_stage);
    } else {
        all.add_scaled(&dense, (f64::from(model.dense_layers()) + mtp) * per_stage);
    }
    all.add_scaled(&ends, per_stage);
    block::optimizer(run, &rates, coefficients, &mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Planner;
    use crate::published::{self, PublishedRun};
    use crate::run::TrainingTask;
    use crate::step_time::{self, StepPhase};
    use farrier_facts::FactSet;

    fn rows() -> Vec<PublishedRun> {
        published::read(FactSet::embedded(), published::embedded())
            .unwrap()
            .into_iter()
            .flatten()
            .collect()
    }

    /// With a single pipeline stage, the phases of the step and the roofline have equal times.
    #[test]
    fn times_equal_those_of_the_step() {
        let coefficients = &Planner::shipped().coefficients;
        let mut row_count = 0;
        for row in rows().into_iter().filter(|row| row.run.parallelism.pp == 1) {
            row_count += 1;
            let run = &row.run;
            let all = step(run, coefficients);
            let seconds = |kind| all.get(kind).seconds;
            let roofline_s = [
                seconds(OpKind::AttentionGemm)
                    + seconds(OpKind::FeedForwardGemm)
                    + seconds(OpKind::ExpertGemm),
                seconds(OpKind::AttentionCore),
                seconds(OpKind::Pointwise),
                seconds(OpKind::Optimizer),
            ];
            let ends = seconds(OpKind::Logits);
            let time = step_time::step(run, coefficients);
            let step_s =
                [StepPhase::Gemm, StepPhase::Attention, StepPhase::Pointwise, StepPhase::Optimizer]
                    .map(|phase| time.phase_s(phase));
            // The framework factor scales all phases of the step. Determine it from one phase.
            let factor = step_s[1] / roofline_s[1];
            let is_close = |left: f64, right: f64| (left - right).abs() <= 1e-9 * right.abs();
            let both = roofline_s[0] + roofline_s[2] + ends;
            assert!(is_close(both * factor, step_s[0] + step_s[2]), "{} {run:?}", both * factor);
            assert!(is_close(roofline_s[3] * factor, step_s[3]), "{run:?}");
        }
        assert!(row_count > 30, "{row_count}");
    }

    #[test]
    fn points_lie_under_the_roof_at_plausible_intensities() {
        let coefficients = &Planner::shipped().coefficients;
        for row in rows() {
            let roofline = Roofline::new(&row.run, coefficients);
            let share: f64 = roofline.work.iter().map(|work| work.time_share).sum();
            assert!((share - 1.0).abs() < 1e-9);
            for work in &roofline.work {
                let reached = work.flops_per_s / roofline.roof_flops_per_s(work);
                assert!(reached > 0.0 && reached <= 1.0, "{work:?} {reached} {:?}", row.run);
            }
            let point = |kind| roofline.work.iter().find(|work| work.kind == kind);
            let pointwise = point(OpKind::Pointwise).unwrap();
            assert!(pointwise.flops_per_byte < 5.0, "{pointwise:?}");
            let gemms = point(OpKind::AttentionGemm).unwrap();
            assert!(gemms.flops_per_byte > 50.0, "{gemms:?} {:?}", row.run);
        }
    }

    #[test]
    fn only_moe_models_have_experts_and_only_full_training_an_optimizer() {
        let coefficients = &Planner::shipped().coefficients;
        for row in rows() {
            let kinds: Vec<OpKind> =
                Roofline::new(&row.run, coefficients).work.iter().map(|work| work.kind).collect();
            let experts = row.run.model.experts.is_some();
            assert_eq!(kinds.contains(&OpKind::ExpertGemm), experts);
            assert_eq!(kinds.contains(&OpKind::Optimizer), row.run.task == TrainingTask::Full);
        }
    }
}
