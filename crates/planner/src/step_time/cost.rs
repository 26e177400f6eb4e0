//! Cost of a GPU's operations, by kind.

use serde::Serialize;

use super::{StepPhase, StepTime};

/// Kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpKind {
    /// Projections of attention.
    #[serde(rename = "attention-products")]
    AttentionGemm,
    /// GEMMs of dense and shared feed-forward blocks.
    #[serde(rename = "feed-forward-products")]
    FeedForwardGemm,
    /// Grouped GEMMs of routed experts.
    #[serde(rename = "expert-products")]
    ExpertGemm,
    AttentionCore,
    /// Norms, activation functions, residual sums, quantization, token permutation.
    Pointwise,
    /// Output projection and loss.
    Logits,
    Optimizer,
}

impl OpKind {
    pub const ALL: [Self; 7] = [
        Self::AttentionGemm,
        Self::FeedForwardGemm,
        Self::ExpertGemm,
        Self::AttentionCore,
        Self::Pointwise,
        Self::Logits,
        Self::Optimizer,
    ];

    /// Display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttentionGemm => "attention GEMMs",
            Self::FeedForwardGemm => "feed-forward GEMMs",
            Self::ExpertGemm => "expert GEMMs",
            Self::AttentionCore => "attention core",
            Self::Pointwise => "pointwise",
            Self::Logits => "output projection and loss",
            Self::Optimizer => "optimizer",
        }
    }

    /// Whether the operation runs in 16 bits, whatever the run's precision is.
    pub fn is_16bit(self) -> bool {
        matches!(self, Self::AttentionCore | Self::Logits)
    }
}

/// Cost of an operation on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct OpCost {
    pub(crate) flops: f64,
    /// Memory traffic: an estimate for memory-bound operations, and the minimum for others.
    pub(crate) bytes: f64,
    pub(crate) seconds: f64,
}

impl OpCost {
    /// The cost of an operation whose time depends only on its memory traffic.
    pub(super) fn memory_bound(bytes: f64, bytes_per_s: f64, flops: f64) -> Self {
        Self { flops, bytes, seconds: bytes / bytes_per_s }
    }

    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            bytes: self.bytes + other.bytes,
            seconds: self.seconds + other.seconds,
        }
    }

    #[must_use]
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            flops: self.flops * factor,
            bytes: self.bytes * factor,
            seconds: self.seconds * factor,
        }
    }
}

/// Receives the costs of a step's operations.
pub(crate) trait CostSink {
    fn record(&mut self, phase: StepPhase, kind: OpKind, work: OpCost);
}

impl CostSink for StepTime {
    fn record(&mut self, phase: StepPhase, _: OpKind, work: OpCost) {
        self.add(phase, work.seconds);
    }
}

/// Costs accumulated by kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CostByKind([OpCost; 7]);

impl CostByKind {
    pub(crate) fn get(&self, kind: OpKind) -> OpCost {
        self.0[kind as usize]
    }

    pub(crate) fn add_scaled(&mut self, other: &Self, times: f64) {
        for (sum, work) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.plus(work.times(times));
        }
    }
}

impl CostSink for CostByKind {
    fn record(&mut self, _: StepPhase, kind: OpKind, work: OpCost) {
        self.0[kind as usize] = self.0[kind as usize].plus(work);
    }
}
