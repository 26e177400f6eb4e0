//! Layers and in-flight micro-batches of a pipeline stage.

use crate::layer_assignment::LayerAssignment;
use crate::model::TransformerConfig;
use crate::parallelism::Schedule;
use crate::run::TrainingRun;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PipelineStage {
    pub(super) dense_blocks: u32,
    pub(super) expert_blocks: u32,
    /// Whether the stage holds the embedding.
    pub(super) first: bool,
    /// Whether the stage holds the output projection and the loss.
    pub(super) last: bool,
    /// Number of micro-batches whose activations are stored at once, for all layers of the stage.
    pub(super) in_flight: f64,
}

impl PipelineStage {
    pub(super) fn new(run: &TrainingRun, number: u32) -> Self {
        let pp = run.parallelism.pp.max(1);
        let mut stage = Self::single(run, number);
        if run.parallelism.schedule == Schedule::DualPipe && pp > 1 {
            // With DualPipe, each GPU holds a stage and its mirror stage.
            let mirror = Self::single(run, pp - 1 - number);
            stage.dense_blocks += mirror.dense_blocks;
            stage.expert_blocks += mirror.expert_blocks;
            stage.first |= mirror.first;
            stage.last |= mirror.last;
            // The activations of PP + 1 micro-batches are stored, each for half of the GPU's layers
            // (arXiv:2412.19437, Table 2).
            stage.in_flight = f64::from((pp + 1).min(run.micro_batches())) / 2.0;
        }
        stage
    }

    fn single(run: &TrainingRun, number: u32) -> Self {
        let (pp, vp) = (run.parallelism.pp.max(1), run.parallelism.vp.max(1));
        let (mut dense_blocks, mut expert_blocks) = (0, 0);
        let assignment = LayerAssignment::new(run.model.layers, pp * vp);
        for virtual_stage in 0..vp {
            let (begin, end) = assignment.layer_range(virtual_stage * pp + number);
            let experts = experts_before(&run.model, end) - experts_before(&run.model, begin);
            expert_blocks += experts;
            dense_blocks += end - begin - experts;
        }
        let last = number == pp - 1;
        if last && run.model.experts.is_some() {
            expert_blocks += run.model.mtp_layers;
        } else if last {
            dense_blocks += run.model.mtp_layers;
        }
        let in_flight = in_flight(run, number);
        Self { dense_blocks, expert_blocks, first: number == 0, last, in_flight }
    }

    pub(super) fn blocks(&self) -> f64 {
        f64::from(self.dense_blocks) + f64::from(self.expert_blocks)
    }
}

/// `MoE` layers among the first `blocks` layers.
fn experts_before(model: &TransformerConfig, blocks: u32) -> u32 {
    model
        .experts
        .map_or(0, |experts| blocks.saturating_sub(experts.dense_layers) / experts.every.max(1))
}

/// Number of micro-batches whose activations are stored at once, for all layers of the stage. The
/// number is a fraction if activations are stored for some layers only.
fn in_flight(run: &TrainingRun, number: u32) -> f64 {
    let (pp, vp) = (f64::from(run.parallelism.pp.max(1)), f64::from(run.parallelism.vp.max(1)));
    let stages_left = pp - f64::from(number);
    let all = f64::from(run.micro_batches());
    match run.parallelism.schedule {
        Schedule::OneForwardOneBackward if vp > 1.0 => {
            // Number of virtual stages that Megatron runs forward before its first backward pass,
            // plus the one in progress (`get_pp_rank_microbatches`). On the first stage the result
            // is p (1 + (p - 1) / (p v)), as in arXiv:2205.05198.
            let chunks = 2.0 * (stages_left - 1.0) + (vp - 1.0) * pp + 1.0;
            chunks.min(all * vp) / vp
        }
        Schedule::OneForwardOneBackward => stages_left.min(all),
        // The inputs of the delayed weight gradients stay in memory (arXiv:2401.10241).
        Schedule::ZeroBubble | Schedule::DualPipe => pp.min(all),
    }
}
