//! A training run: model, GPU, batch, precision, parallelism and framework.

use serde::{Deserialize, Serialize};

use crate::gpu::{Accelerator, Generation};
use crate::model::{Attention, TransformerConfig};
use crate::parallelism::{ParallelConfig, Recompute, Sharding};
use crate::precision::Precision;

/// All inputs of an estimate except the fitted coefficients.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingRun {
    pub model: TransformerConfig,
    pub gpu: Accelerator,
    /// Tokens per sequence.
    pub seq_len: u32,
    /// Sequences per step, over all GPUs.
    pub global_batch: u32,
    /// Precision of the GEMMs in linear layers.
    pub precision: Precision,
    pub parallelism: ParallelConfig,
    pub task: TrainingTask,
    pub framework: Framework,
    /// Whether experts run in fused grouped-GEMM kernels (Megatron since mid 2026, on Blackwell).
    pub fused_experts: bool,
}

impl TrainingRun {
    /// Micro-batches per step and GPU.
    pub fn micro_batches(&self) -> u32 {
        let per_micro_batch =
            self.parallelism.dp.saturating_mul(self.parallelism.micro_batch).max(1);
        (self.global_batch / per_micro_batch).max(1)
    }

    /// Tokens per micro-batch and GPU.
    pub fn tokens_per_micro_batch(&self) -> f64 {
        f64::from(self.parallelism.micro_batch) * f64::from(self.seq_len)
            / f64::from(self.parallelism.cp)
    }

    /// Tokens per step, over all GPUs.
    pub fn tokens_per_step(&self) -> f64 {
        f64::from(self.global_batch) * f64::from(self.seq_len)
    }

    /// Whether the framework uses fused expert kernels. Megatron Bridge does since mid 2026, for
    /// MXFP8 on Blackwell, except in its recipes for models with latent attention (MLA).
    pub fn fuses_experts(&self) -> bool {
        self.model.experts.is_some()
            && self.framework == Framework::Bridge
            && self.precision == Precision::Mxfp8
            && self.gpu.generation == Generation::Blackwell
            && matches!(self.model.attention, Attention::Grouped { .. })
    }

    /// Layers of the fullest pipeline stage.
    pub fn layers_per_stage(&self) -> f64 {
        f64::from(self.model.layers.div_ceil(self.parallelism.pp))
    }
}

/// Which weights are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainingTask {
    /// All weights.
    Full,
    /// Low-rank adapters next to frozen weights.
    Lora,
}

/// The training framework, as far as frameworks differ in speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Framework {
    /// Megatron-LM of 2021 and 2022: tensor parallelism without communication overlap.
    MegatronEarly,
    /// Megatron-LM and `NeMo` of 2023 and 2024.
    Megatron,
    /// Megatron Bridge, since 2025.
    Bridge,
    /// Eager `PyTorch` FSDP.
    Fsdp,
    /// Eager `PyTorch` FSDP with custom kernels for norms, activations and the loss
    /// (llm-foundry).
    Foundry,
    /// Compiled `PyTorch` FSDP (torchtitan and similar).
    FsdpCompiled,
    /// A tuned fork of Megatron (`MegaScale`, in-house trainers of large labs).
    Tuned,
}

impl Framework {
    pub const ALL: [Self; 7] = [
        Self::MegatronEarly,
        Self::Megatron,
        Self::Bridge,
        Self::Fsdp,
        Self::Foundry,
        Self::FsdpCompiled,
        Self::Tuned,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MegatronEarly => "megatron-early",
            Self::Megatron => "megatron",
            Self::Bridge => "megatron-bridge",
            Self::Fsdp => "fsdp",
            Self::Foundry => "llm-foundry",
            Self::FsdpCompiled => "fsdp-compiled",
            Self::Tuned => "tuned",
        }
    }

    /// Default bytes per gradient element in data-parallel reductions. Megatron recipes since 2023
    /// reduce in 16 bits; earlier Megatron and FSDP (torchtitan's `MixedPrecisionPolicy`) in 32.
    pub fn reduce_bytes(self) -> u8 {
        match self {
            Self::Megatron | Self::Bridge | Self::Tuned => 2,
            Self::MegatronEarly | Self::Fsdp | Self::Foundry | Self::FsdpCompiled => 4,
        }
    }

    /// Whether tensor-parallel communication overlaps with GEMMs by default.
    pub fn overlaps_tp(self) -> bool {
        matches!(self, Self::Megatron | Self::Bridge | Self::Tuned)
    }

    /// Recompute modes worth searching, cheapest first, without modes that another one dominates.
    /// Megatron selects modules, torchtitan selects GEMMs. Only the first Megatron stored the
    /// attention scores, so only it gains from recomputing them.
    pub fn recompute_modes(self) -> &'static [Recompute] {
        match self {
            Self::MegatronEarly => &[
                Recompute::None,
                Recompute::Attention,
                Recompute::Modules,
                Recompute::EverySecond,
                Recompute::Full,
            ],
            Self::Megatron | Self::Bridge | Self::Tuned => {
                &[Recompute::None, Recompute::Modules, Recompute::EverySecond, Recompute::Full]
            }
            Self::Foundry => &[Recompute::None, Recompute::Full],
            Self::Fsdp | Self::FsdpCompiled => {
                &[Recompute::None, Recompute::Operators, Recompute::EverySecond, Recompute::Full]
            }
        }
    }

    /// Whether the framework has a mode, even if another mode dominates it.
    pub fn supports_recompute(self, mode: Recompute) -> bool {
        match mode {
            Recompute::None | Recompute::Full => true,
            Recompute::Attention | Recompute::Modules => self.is_megatron(),
            Recompute::Operators => matches!(self, Self::Fsdp | Self::FsdpCompiled),
            Recompute::EverySecond | Recompute::Layers(_) => self != Self::Foundry,
        }
    }

    /// Default sharding across data-parallel replicas: FSDP shards weights (ZeRO-3).
    pub fn default_sharding(self) -> Sharding {
        if self.is_megatron() { Sharding::Optimizer } else { Sharding::Weights }
    }

    /// Whether this is Megatron or a fork of it.
    pub fn is_megatron(self) -> bool {
        !matches!(self, Self::Fsdp | Self::Foundry | Self::FsdpCompiled)
    }
}
