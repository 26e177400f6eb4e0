//! How a run is laid out over GPUs.

use serde::{Deserialize, Serialize};

/// A split of the work, and what each GPU keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Copies of the model that see different data.
    pub dp: u32,
    /// GPUs that share each product.
    pub tp: u32,
    /// Stages of the pipeline.
    pub pp: u32,
    /// Pieces of the model that each stage holds.
    pub vp: u32,
    /// GPUs that share a sequence.
    pub cp: u32,
    /// GPUs that share the experts of a block, out of those that hold copies or parts of a sequence.
    pub ep: u32,
    /// What is kept once among the copies.
    pub sharding: Sharding,
    /// GPUs that share what is kept once; the copies beyond hold it again. 0: all.
    pub shard_group: u32,
    /// Sequences that a GPU takes at once.
    pub micro_batch: u32,
    /// What is computed again on the way back.
    pub recompute: Recompute,
    /// Whether what TP does not split is split along the sequence.
    pub sequence_parallel: bool,
    /// Whether tensor-parallel traffic runs beside the products that it feeds.
    pub tensor_overlap: bool,
    /// The order of forward and backward passes in the pipeline.
    pub schedule: Schedule,
    /// Bytes of a gradient on its way between copies.
    pub reduce_bytes: u8,
    /// Bytes of each of the optimizer's two moments.
    pub moment_bytes: u8,
    /// Width of adapters, where only those learn.
    pub adapter_rank: u32,
}

/// The width of adapters in recipes of `NeMo` and Megatron Bridge.
pub const ADAPTER_RANK: u32 = 32;

impl Layout {
    /// One GPU, or copies of one.
    pub fn copies(dp: u32, micro_batch: u32) -> Self {
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

    /// GPUs that it takes.
    pub fn gpus(&self) -> u32 {
        self.dp * self.tp * self.pp * self.cp
    }

    /// Of so many copies, those that share what is kept once.
    pub fn holders(&self, copies: u32) -> u32 {
        if self.shard_group == 0 { copies } else { self.shard_group.min(copies) }.max(1)
    }

    /// Whether each holds only its share of the gradients, for which they are reduced in each
    /// micro-batch. In a pipeline with whole weights they are added up whole and reduced once.
    pub fn shares_gradients(&self) -> bool {
        match self.sharding {
            Sharding::None | Sharding::Optimizer => false,
            Sharding::Gradients => self.pp == 1,
            Sharding::Weights => true,
        }
    }

    /// Copies of each expert.
    pub fn expert_copies(&self) -> u32 {
        (self.gpus() / (self.pp * self.ep)).max(1)
    }
}

/// What the copies of a model keep only once among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Nothing (plain data parallelism).
    None,
    /// The optimizer's state (`ZeRO` 1, the distributed optimizer).
    Optimizer,
    /// And gradients (`ZeRO` 2).
    Gradients,
    /// And weights (`ZeRO` 3, FSDP).
    Weights,
}

impl Sharding {
    /// All of them, by `ZeRO`'s number.
    pub const ALL: [Self; 4] = [Self::None, Self::Optimizer, Self::Gradients, Self::Weights];

    /// `ZeRO`'s number for it.
    pub fn stage(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Optimizer => 1,
            Self::Gradients => 2,
            Self::Weights => 3,
        }
    }
}

/// What is computed again on the way back, instead of kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Nothing.
    None,
    /// The core of attention, once more beside what its kernel does again anyway.
    Attention,
    /// Cheap modules: norms, activations, latent projections.
    Modules,
    /// About half of the products (torchtitan's selective mode).
    Operators,
    /// Every second block.
    EverySecond,
    /// So many blocks of each stage.
    Layers(u32),
    /// Every block.
    Full,
}

impl Recompute {
    /// Its name, as on the command line.
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

    /// Share of a block's products that are done again.
    pub fn products_again(self, layers_of_stage: f64) -> f64 {
        match self {
            Self::None | Self::Attention | Self::Modules => 0.0,
            Self::Operators | Self::EverySecond => 0.5,
            Self::Layers(count) => (f64::from(count) / layers_of_stage).min(1.0),
            Self::Full => 1.0,
        }
    }

    /// Share of the core of attention that is done again.
    pub fn attention_again(self, layers_of_stage: f64) -> f64 {
        match self {
            Self::None | Self::Modules | Self::Operators => 0.0,
            Self::Attention => 1.0,
            other => other.products_again(layers_of_stage),
        }
    }

    /// Share of what is bound by memory that is done again.
    pub fn pointwise_again(self, layers_of_stage: f64) -> f64 {
        match self {
            Self::None | Self::Attention => 0.0,
            Self::Modules => 0.5,
            Self::Operators => 1.0,
            other => other.products_again(layers_of_stage),
        }
    }
}

/// The order of forward and backward passes in a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// One forward, one backward; interleaved where a stage holds several pieces.
    OneForwardOneBackward,
    /// The gradients of weights fill the gaps (zero bubble, ZB-H1).
    ZeroBubble,
    /// Two streams from both ends (`DualPipe`).
    DualPipe,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::OneForwardOneBackward, Self::ZeroBubble, Self::DualPipe];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneForwardOneBackward => "1f1b",
            Self::ZeroBubble => "zero-bubble",
            Self::DualPipe => "dual-pipe",
        }
    }
}
