//! A training run: what, on what, split how.

use serde::{Deserialize, Serialize};

use crate::gpu::Accelerator;
use crate::layout::Layout;
use crate::model::Model;
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
        let at_once = self.layout.dp.saturating_mul(self.layout.micro_batch);
        (self.global_batch / at_once.max(1)).max(1)
    }

    /// Tokens that a GPU passes in a micro-batch.
    pub fn tokens_at_once(&self) -> f64 {
        f64::from(self.layout.micro_batch) * f64::from(self.seq_len) / f64::from(self.layout.cp)
    }

    /// Tokens of a step, over all GPUs.
    pub fn tokens_per_step(&self) -> f64 {
        f64::from(self.global_batch) * f64::from(self.seq_len)
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
    /// FSDP of eager `PyTorch` (llm-foundry and the like).
    Fsdp,
    /// FSDP of compiled `PyTorch` (torchtitan and the like).
    FsdpCompiled,
    /// A tuned fork of Megatron (`MegaScale`, the trainers of large laboratories).
    Tuned,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::MegatronEarly,
        Self::Megatron,
        Self::Bridge,
        Self::Fsdp,
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
            Self::FsdpCompiled => "fsdp-compiled",
            Self::Tuned => "tuned",
        }
    }

    /// Whether it is Megatron or grown from it.
    pub fn is_megatron(self) -> bool {
        !matches!(self, Self::Fsdp | Self::FsdpCompiled)
    }
}
