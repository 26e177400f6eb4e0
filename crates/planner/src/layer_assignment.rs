//! Assignment of transformer layers to pipeline stages and virtual stages.

use crate::run::TrainingRun;

/// Layers per virtual stage, as even as possible.
///
/// If the layers do not divide evenly, the first and the last virtual stage get fewer layers,
/// because they also hold the embedding and the loss. One missing layer is taken from the last
/// virtual stage, a second missing layer from the first (Megatron's
/// `--account-for-loss-in-pipeline-split` and `--account-for-embedding-in-pipeline-split`). If more
/// are missing, all are taken from the end: from the last virtual stage until it has one layer,
/// then from the one before it, and so on (Megatron Bridge's layouts for `DeepSeek` V3).
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerAssignment {
    virtual_stages: u32,
    /// Layers of a full virtual stage.
    pub(crate) layers_max: u32,
    /// Layers missing from the first virtual stage.
    pub(crate) first_missing: u32,
    /// Layers missing from the end of the pipeline.
    pub(crate) last_missing: u32,
}

impl LayerAssignment {
    pub(crate) fn new(layers: u32, virtual_stages: u32) -> Self {
        let layers_max = layers.div_ceil(virtual_stages);
        let missing = layers_max * virtual_stages - layers;
        let first_missing = u32::from(missing == 2 && virtual_stages > 1);
        Self { virtual_stages, layers_max, first_missing, last_missing: missing - first_missing }
    }

    /// First layer of a virtual stage, and first layer of the next one.
    pub(crate) fn layer_range(&self, virtual_stage: u32) -> (u32, u32) {
        (self.begin(virtual_stage), self.begin(virtual_stage + 1))
    }

    /// Number of layers of each virtual stage.
    pub(crate) fn layer_counts(&self) -> impl Iterator<Item = u32> {
        (0..self.virtual_stages).map(|virtual_stage| {
            let (begin, end) = self.layer_range(virtual_stage);
            end - begin
        })
    }

    fn begin(&self, virtual_stage: u32) -> u32 {
        let first_missing = if virtual_stage > 0 { self.first_missing } else { 0 };
        // Counted from the end, `reduced` virtual stages are down to one layer, and the one before
        // them lacks `rest`.
        let per_stage = (self.layers_max - 1).max(1);
        let (reduced, rest) = (self.last_missing / per_stage, self.last_missing % per_stage);
        let remaining = self.virtual_stages - virtual_stage;
        let last_missing = match reduced.checked_sub(remaining) {
            Some(more) => more * per_stage + rest,
            None => 0,
        };
        virtual_stage * self.layers_max - first_missing - last_missing
    }
}

/// Layers of the fullest pipeline stage other than the last, and layers of the last.
pub(crate) fn fullest_and_last(run: &TrainingRun) -> (u32, u32) {
    let (pp, vp) = (run.parallelism.pp.max(1), run.parallelism.vp.max(1));
    let assignment = LayerAssignment::new(run.model.layers, pp * vp);
    let layers = |stage: u32| -> u32 {
        let layers = |index: u32| {
            let (begin, end) = assignment.layer_range(index * pp + stage);
            end - begin
        };
        (0..vp).map(layers).sum()
    };
    // Only the first virtual stage and the last ones can hold fewer layers.
    let second = 1.min(pp - 1);
    (layers(0).max(layers(second)), layers(pp - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer_counts(layers: u32, virtual_stages: u32) -> Vec<u32> {
        LayerAssignment::new(layers, virtual_stages).layer_counts().collect()
    }

    #[test]
    fn ends_get_fewer_layers() {
        assert_eq!(layer_counts(8, 4), [2, 2, 2, 2]);
        assert_eq!(layer_counts(7, 4), [2, 2, 2, 1]);
        // Llama 3.1 405B takes one layer from each end.
        let llama = layer_counts(126, 16);
        assert_eq!((llama[0], llama[15]), (7, 7));
        assert!(llama[1..15].iter().all(|layers| *layers == 8));
        // DeepSeek V3 takes layers from the last stage only, which has the MTP layer and two
        // losses.
        assert_eq!(layer_counts(61, 8), [8, 8, 8, 8, 8, 8, 8, 5]);
        assert_eq!(layer_counts(61, 16)[14..], [4, 1]);
        // No virtual stage is left empty.
        assert_eq!(layer_counts(9, 6), [2, 2, 2, 1, 1, 1]);
        // Except for 126 layers in 16 × 8 virtual stages, whose ends hold embedding and loss.
        let counts = layer_counts(126, 128);
        assert_eq!((counts[0], counts[1], counts[127]), (0, 1, 0));
    }

    #[test]
    fn every_layer_is_assigned_once() {
        for layers in 1..130 {
            for count in 1..=layers + 2 {
                assert_eq!(
                    layer_counts(layers, count).iter().sum::<u32>(),
                    layers,
                    "{layers} {count}"
                );
            }
        }
    }
}
