//! The parallelism config of a run: DP, TP, PP, CP, EP, sharding and recompute.

use serde::{Deserialize, Serialize};

/// Parallelism degrees and memory-saving settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParallelConfig {
    /// Data-parallel replicas.
    pub dp: u32,
    /// Tensor-parallel degree.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Virtual stages per pipeline stage (interleaving).
    pub vp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Expert-parallel degree. Expert-parallel groups are formed from the DP × CP × TP ranks.
    pub ep: u32,
    pub sharding: Sharding,
    /// Ranks per sharding group; replicas beyond it hold full copies (HSDP). 0: all replicas.
    pub shard_group: u32,
    /// Sequences per micro-batch.
    pub micro_batch: u32,
    pub recompute: Recompute,
    /// Whether activations outside tensor-parallel regions are split along the sequence.
    pub sequence_parallel: bool,
    /// Whether tensor-parallel communication overlaps with the GEMMs that depend on it.
    pub tensor_overlap: bool,
    pub schedule: Schedule,
    /// Bytes per gradient element in data-parallel reductions.
    pub reduce_bytes: u8,
    /// Bytes per element of each of Adam's two moments.
    pub moment_bytes: u8,
    /// LoRA rank; used only for [`crate::run::TrainingTask::Lora`].
    pub adapter_rank: u32,
}

/// LoRA rank in the recipes of `NeMo` and Megatron Bridge.
pub const ADAPTER_RANK: u32 = 32;

impl ParallelConfig {
    /// Data parallelism only, with the distributed optimizer (ZeRO-1).
    pub fn data_parallel(dp: u32, micro_batch: u32) -> Self {
        Self {
            dp,
            tp: 1,
            pp: 1,
            vp: 1,
            cp: 1,
            ep: 1,
            sharding: Sharding::Optimizer,
            shard_group: 0,
            micro_batch,
            recompute: Recompute::None,
            sequence_parallel: true,
            tensor_overlap: true,
            schedule: Schedule::OneForwardOneBackward,
            reduce_bytes: 4,
            moment_bytes: 4,
            adapter_rank: ADAPTER_RANK,
        }
    }

    /// World size.
    pub fn gpus(&self) -> u32 {
        self.dp * self.tp * self.pp * self.cp
    }

    /// Ranks per sharding group, given the number of replicas of a weight.
    pub fn shard_group_size(&self, replicas: u32) -> u32 {
        if self.shard_group == 0 { replicas } else { self.shard_group.min(replicas) }.max(1)
    }

    /// Whether gradients are sharded, and therefore reduce-scattered in every micro-batch. ZeRO-2
    /// with a pipeline accumulates full gradients and reduces them once per step.
    pub fn shards_gradients(&self) -> bool {
        match self.sharding {
            Sharding::None | Sharding::Optimizer => false,
            Sharding::Gradients => self.pp == 1,
            Sharding::Weights => true,
        }
    }

    /// Data-parallel replicas of each expert.
    pub fn expert_replicas(&self) -> u32 {
        (self.gpus() / (self.pp * self.ep)).max(1)
    }
}

/// What data-parallel replicas shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Nothing: plain data parallelism.
    None,
    /// Optimizer state: ZeRO-1, Megatron's distributed optimizer.
    Optimizer,
    /// Optimizer state and gradients: ZeRO-2.
    Gradients,
    /// Optimizer state, gradients and weights: ZeRO-3, FSDP.
    Weights,
}

impl Sharding {
    /// In the order of ZeRO stages.
    pub const ALL: [Self; 4] = [Self::None, Self::Optimizer, Self::Gradients, Self::Weights];

    /// ZeRO stage, 0 to 3.
    pub fn zero_stage(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Optimizer => 1,
            Self::Gradients => 2,
            Self::Weights => 3,
        }
    }
}

/// Activation recompute (checkpointing): what the backward pass recomputes instead of storing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    None,
    /// The attention core, beyond what flash attention recomputes anyway.
    Attention,
    /// Cheap modules: norms, activation functions, latent projections.
    Modules,
    /// About half of the GEMMs (torchtitan's selective `op` mode).
    Operators,
    /// Every second layer.
    EverySecond,
    /// This many layers of each pipeline stage.
    Layers(u32),
    /// Every layer.
    Full,
}

impl Recompute {
    /// Name on the command line.
    pub fn name(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Attention => "attention".to_owned(),
            Self::Modules => "modules".to_owned(),
            Self::Operators => "operators".to_owned(),
            Self::EverySecond => "every-second".to_owned(),
            Self::Layers(count) => format!("layers:{count}"),
            Self::Full => "full".to_owned(),
        }
    }

    /// Share of a layer's GEMMs that is recomputed.
    pub fn recomputed_gemm_share(self, layers_per_stage: f64) -> f64 {
        match self {
            Self::None | Self::Attention | Self::Modules => 0.0,
            Self::Operators | Self::EverySecond => 0.5,
            Self::Layers(count) => (f64::from(count) / layers_per_stage).min(1.0),
            Self::Full => 1.0,
        }
    }

    /// Share of the attention core that is recomputed.
    pub fn recomputed_attention_share(self, layers_per_stage: f64) -> f64 {
        match self {
            Self::None | Self::Modules | Self::Operators => 0.0,
            Self::Attention => 1.0,
            other => other.recomputed_gemm_share(layers_per_stage),
        }
    }

    /// Share of the memory-bound pointwise operations that is recomputed.
    pub fn recomputed_pointwise_share(self, layers_per_stage: f64) -> f64 {
        match self {
            Self::None | Self::Attention => 0.0,
            Self::Modules => 0.5,
            Self::Operators => 1.0,
            other => other.recomputed_gemm_share(layers_per_stage),
        }
    }
}

/// Pipeline schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// 1F1B; interleaved if there is more than one virtual stage per pipeline stage.
    OneForwardOneBackward,
    /// ZB-H1: weight gradients fill the bubble.
    ZeroBubble,
    /// `DualPipe`: micro-batches enter from both ends of the pipeline.
    DualPipe,
}

impl Schedule {
    pub const ALL: [Self; 3] = [Self::OneForwardOneBackward, Self::ZeroBubble, Self::DualPipe];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneForwardOneBackward => "1f1b",
            Self::ZeroBubble => "zero-bubble",
            Self::DualPipe => "dual-pipe",
        }
    }
}
