//! What a stage of the pipeline holds.

use crate::layout::Schedule;
use crate::model::Model;
use crate::pieces::Pieces;
use crate::run::Run;

/// A stage of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stage {
    /// Blocks with a dense feed-forward part.
    pub(super) dense_blocks: u32,
    /// Blocks with experts.
    pub(super) expert_blocks: u32,
    /// Whether it holds the embedding.
    pub(super) first: bool,
    /// Whether it holds the output projection and the loss.
    pub(super) last: bool,
    /// Micro-batches, of all its blocks, whose activations it keeps at once.
    pub(super) in_flight: f64,
}

impl Stage {
    /// A stage by its number.
    pub(super) fn of(run: &Run, number: u32) -> Self {
        let pp = run.layout.pp.max(1);
        let mut stage = Self::one(run, number);
        if run.layout.schedule == Schedule::DualPipe && pp > 1 {
            // Two streams from both ends: each GPU holds a stage and its mirror.
            let mirror = Self::one(run, pp - 1 - number);
            stage.dense_blocks += mirror.dense_blocks;
            stage.expert_blocks += mirror.expert_blocks;
            stage.first |= mirror.first;
            stage.last |= mirror.last;
            // Together one stage more than the pipeline has, of half of what the GPU holds
            // (arXiv:2412.19437, Table 2).
            stage.in_flight = f64::from((pp + 1).min(run.micro_batches())) / 2.0;
        }
        stage
    }

    fn one(run: &Run, number: u32) -> Self {
        let (pp, vp) = (run.layout.pp.max(1), run.layout.vp.max(1));
        let (mut dense_blocks, mut expert_blocks) = (0, 0);
        let pieces = Pieces::of(run.model.layers, pp * vp);
        for piece in 0..vp {
            let (begin, end) = pieces.blocks(piece * pp + number);
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

/// Blocks with experts among the first so many.
fn experts_before(model: &Model, blocks: u32) -> u32 {
    model
        .experts
        .map_or(0, |experts| blocks.saturating_sub(experts.dense_layers) / experts.every.max(1))
}

/// Micro-batches, of all blocks of a stage, whose activations it keeps at once.
fn in_flight(run: &Run, number: u32) -> f64 {
    let (pp, vp) = (f64::from(run.layout.pp.max(1)), f64::from(run.layout.vp.max(1)));
    let after = pp - f64::from(number);
    let all = f64::from(run.micro_batches());
    match run.layout.schedule {
        Schedule::OneForwardOneBackward if vp > 1.0 => {
            // Pieces that Megatron passes before its first way back, and the one then under way
            // (`get_pp_rank_microbatches`; on the first stage p (1 + (p - 1) / (p v)), arXiv:2205.05198).
            let pieces = 2.0 * (after - 1.0) + (vp - 1.0) * pp + 1.0;
            pieces.min(all * vp) / vp
        }
        Schedule::OneForwardOneBackward => after.min(all),
        // What the gradients of weights are still to be made from stays (arXiv:2401.10241).
        Schedule::ZeroBubble | Schedule::DualPipe => pp.min(all),
    }
}
