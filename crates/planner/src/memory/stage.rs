//! What a stage of the pipeline holds.

use crate::layout::Schedule;
use crate::model::Model;
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
        for piece in 0..vp {
            let pieces = Pieces::of(run.model.layers, pp * vp);
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

/// Blocks in pieces, as evenly as can be. Where they do not divide the last piece holds one less,
/// then the first, then those before the last: the ends have the embedding and the loss.
struct Pieces {
    count: u32,
    most: u32,
    fewer: u32,
}

impl Pieces {
    fn of(blocks: u32, count: u32) -> Self {
        let most = blocks.div_ceil(count);
        Self { count, most, fewer: most * count - blocks }
    }

    /// The first block of a piece, and the first of the next.
    fn blocks(&self, piece: u32) -> (u32, u32) {
        (self.begin(piece), self.begin(piece + 1))
    }

    fn begin(&self, piece: u32) -> u32 {
        let at_first = u32::from(self.fewer >= 2 && piece > 0);
        let at_end = self.fewer - u32::from(self.fewer >= 2);
        let at_end = piece.saturating_sub(self.count - at_end);
        piece * self.most - at_first - at_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(blocks: u32, count: u32) -> Vec<u32> {
        let pieces = Pieces::of(blocks, count);
        let size = |piece| {
            let (begin, end) = pieces.blocks(piece);
            end - begin
        };
        (0..count).map(size).collect()
    }

    #[test]
    fn the_ends_hold_fewer_blocks() {
        assert_eq!(sizes(8, 4), [2, 2, 2, 2]);
        assert_eq!(sizes(7, 4), [2, 2, 2, 1]);
        // Llama 3.1 405B takes one block from each end.
        let llama = sizes(126, 16);
        assert_eq!((llama[0], llama[15]), (7, 7));
        assert!(llama[1..15].iter().all(|blocks| *blocks == 8));
        assert_eq!(sizes(61, 16), [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3]);
    }

    #[test]
    fn every_block_is_in_one_piece() {
        for blocks in 1..130 {
            for count in 1..=blocks + 2 {
                assert_eq!(sizes(blocks, count).iter().sum::<u32>(), blocks, "{blocks} {count}");
            }
        }
    }
}
