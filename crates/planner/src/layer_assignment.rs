//! How blocks are dealt to the stages of a pipeline.

use crate::run::Run;

/// Blocks in pieces, as many in each as can be.
///
/// Where they do not divide, the ends hold fewer, for they have the embedding and the loss: where one
/// is missing the last, where two are the first too (Megatron's `--account-for-loss-in-pipeline-split`
/// and its like for the embedding); where more are, they are missing from the last, but for one block
/// of it, and then from those before it (Megatron Bridge's layouts of `DeepSeek` V3).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pieces {
    count: u32,
    /// Blocks of a piece that lacks none.
    pub(crate) most: u32,
    /// Blocks that the first lacks.
    pub(crate) at_first: u32,
    /// Blocks that the last lacks, and those before it where one block is left of it.
    pub(crate) at_end: u32,
}

impl Pieces {
    /// So many blocks in so many pieces.
    pub(crate) fn of(blocks: u32, count: u32) -> Self {
        let most = blocks.div_ceil(count);
        let missing = most * count - blocks;
        let at_first = u32::from(missing == 2 && count > 1);
        Self { count, most, at_first, at_end: missing - at_first }
    }

    /// The first block of a piece, and the first of the next.
    pub(crate) fn blocks(&self, piece: u32) -> (u32, u32) {
        (self.begin(piece), self.begin(piece + 1))
    }

    /// Blocks of each piece.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u32> {
        (0..self.count).map(|piece| {
            let (begin, end) = self.blocks(piece);
            end - begin
        })
    }

    fn begin(&self, piece: u32) -> u32 {
        let at_first = if piece > 0 { self.at_first } else { 0 };
        // Of the pieces counted from the last, so many are down to one block, and the next lacks the
        // rest.
        let each = (self.most - 1).max(1);
        let (down, rest) = (self.at_end / each, self.at_end % each);
        let behind = self.count - piece;
        let at_end = match down.checked_sub(behind) {
            Some(more) => more * each + rest,
            None => 0,
        };
        piece * self.most - at_first - at_end
    }
}

/// Blocks of the fullest stage of a run's pipeline but the last, and of the last.
pub(crate) fn fullest_and_last(run: &Run) -> (u32, u32) {
    let (pp, vp) = (run.layout.pp.max(1), run.layout.vp.max(1));
    let pieces = Pieces::of(run.model.layers, pp * vp);
    let of_stage = |stage: u32| -> u32 {
        let of_piece = |piece: u32| {
            let (begin, end) = pieces.blocks(piece * pp + stage);
            end - begin
        };
        (0..vp).map(of_piece).sum()
    };
    // Only the first piece and the last ones can hold fewer.
    let second = 1.min(pp - 1);
    (of_stage(0).max(of_stage(second)), of_stage(pp - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(blocks: u32, count: u32) -> Vec<u32> {
        Pieces::of(blocks, count).sizes().collect()
    }

    #[test]
    fn the_ends_hold_fewer_blocks() {
        assert_eq!(sizes(8, 4), [2, 2, 2, 2]);
        assert_eq!(sizes(7, 4), [2, 2, 2, 1]);
        // Llama 3.1 405B takes one block from each end.
        let llama = sizes(126, 16);
        assert_eq!((llama[0], llama[15]), (7, 7));
        assert!(llama[1..15].iter().all(|blocks| *blocks == 8));
        // DeepSeek V3 from the last alone, which has the block of the further token and two losses.
        assert_eq!(sizes(61, 8), [8, 8, 8, 8, 8, 8, 8, 5]);
        assert_eq!(sizes(61, 16)[14..], [4, 1]);
        // None is left without a block.
        assert_eq!(sizes(9, 6), [2, 2, 2, 1, 1, 1]);
        // But for 126 blocks in 16 × 8 pieces, whose ends have the embedding and the loss.
        let pieces = sizes(126, 128);
        assert_eq!((pieces[0], pieces[1], pieces[127]), (0, 1, 0));
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
