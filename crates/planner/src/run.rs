//! A training run: what, on what, split how.

use serde::{Deserialize, Serialize};

use crate::gpu::{Accelerator, Generation};
use crate::layout::{Layout, Recompute, Sharding};
use crate::model::{Attention, Model};
use crate::precision::Precision;

/// All that an estimate depends on, but for the coefficients.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// What is trained.
    pub model: Model,
    /// On what.
    pub gpu: Accelerator,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// Sequences of a step, over all GPUs.
    pub global_batch: u32,
    /// What products are computed in.
    pub precision: Precision,
    /// Split how.
    pub layout: Layout,
    /// Which weights learn.
    pub task: Task,
    /// By what program.
    pub stack: Stack,
    /// Whether experts are computed by kernels that fuse a whole group (Megatron since mid 2026, on
    /// Blackwell).
    pub fused_experts: bool,
}

impl Run {
    /// Micro-batches that a GPU passes in a step.
    pub fn micro_batches(&self) -> u32 {
        let at_once = self.layout.dp.saturating_mul(self.layout.micro_batch).max(1);
        (self.global_batch / at_once).max(1)
    }

    /// Tokens that a GPU passes in a micro-batch.
    pub fn tokens_at_once(&self) -> f64 {
        f64::from(self.layout.micro_batch) * f64::from(self.seq_len) / f64::from(self.layout.cp)
    }

    /// Tokens of a step, over all GPUs.
    pub fn tokens_per_step(&self) -> f64 {
        f64::from(self.global_batch) * f64::from(self.seq_len)
    }

    /// Whether the program's kernels fuse the experts: Megatron Bridge's do since mid 2026, in MXFP8 on
    /// Blackwell, but not in its recipes of models with latent attention.
    pub fn fuses_experts(&self) -> bool {
        self.model.experts.is_some()
            && self.stack == Stack::Bridge
            && self.precision == Precision::Mxfp8
            && self.gpu.generation == Generation::Blackwell
            && matches!(self.model.attention, Attention::Grouped { .. })
    }

    /// Blocks on the fullest stage.
    pub fn layers_of_stage(&self) -> f64 {
        f64::from(self.model.layers.div_ceil(self.layout.pp))
    }
}

/// Which weights learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// All.
    Full,
    /// Low-rank adapters beside frozen weights.
    Lora,
}

/// The program that trains, as far as its speed differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stack {
    /// Megatron-LM of 2021 to 2022: tensor parallelism without overlap.
    MegatronEarly,
    /// Megatron-LM and `NeMo` of 2023 to 2024.
    Megatron,
    /// Megatron Bridge, since 2025.
    Bridge,
    /// FSDP of eager `PyTorch`.
    Fsdp,
    /// FSDP of eager `PyTorch` with kernels of its own for norms, activations and the loss
    /// (llm-foundry).
    Foundry,
    /// FSDP of compiled `PyTorch` (torchtitan and the like).
    FsdpCompiled,
    /// A tuned fork of Megatron (`MegaScale`, the trainers of large laboratories).
    Tuned,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::MegatronEarly,
        Self::Megatron,
        Self::Bridge,
        Self::Fsdp,
        Self::Foundry,
        Self::FsdpCompiled,
        Self::Tuned,
    ];

    /// Its name, as on the command line.
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

    /// Bytes of a gradient on its way between copies, where nothing else is asked for: the recipes of
    /// Megatron since 2023 have 16 bits, those before and FSDP (`MixedPrecisionPolicy` of torchtitan)
    /// 32.
    pub fn reduce_bytes(self) -> u8 {
        match self {
            Self::Megatron | Self::Bridge | Self::Tuned => 2,
            Self::MegatronEarly | Self::Fsdp | Self::Foundry | Self::FsdpCompiled => 4,
        }
    }

    /// Whether tensor-parallel traffic runs beside products, where nothing else is asked for.
    pub fn overlaps_tensor(self) -> bool {
        matches!(self, Self::Megatron | Self::Bridge | Self::Tuned)
    }

    /// What it can compute again, the least first, as far as one is not the better of another
    /// everywhere: Megatron names modules, torchtitan products. Only the first Megatron kept the
    /// scores of attention.
    pub fn recomputes(self) -> &'static [Recompute] {
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

    /// Whether it has a mode, be it one that another is better than.
    pub fn can_recompute(self, mode: Recompute) -> bool {
        match mode {
            Recompute::None | Recompute::Full => true,
            Recompute::Attention | Recompute::Modules => self.is_megatron(),
            Recompute::Operators => matches!(self, Self::Fsdp | Self::FsdpCompiled),
            Recompute::EverySecond | Recompute::Layers(_) => self != Self::Foundry,
        }
    }

    /// What copies keep once, where nothing else is asked for: FSDP shares weights.
    pub fn usual_sharding(self) -> Sharding {
        if self.is_megatron() { Sharding::Optimizer } else { Sharding::Weights }
    }

    /// Whether it is Megatron or grown from it.
    pub fn is_megatron(self) -> bool {
        !matches!(self, Self::Fsdp | Self::Foundry | Self::FsdpCompiled)
    }
}
