//! Kinds of a GPU's work, and who keeps account of them.

use serde::Serialize;

use super::{Phase, StepTime};

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Projections of attention.
    AttentionProducts,
    /// Products of feed-forward parts that every token passes.
    FeedForwardProducts,
    /// Products of experts that tokens are routed to.
    ExpertProducts,
    /// The core of attention.
    AttentionCore,
    /// Norms, activations, sums, scaling, and moving tokens to experts.
    Pointwise,
    /// The output projection and the loss.
    Logits,
    /// The optimizer.
    Optimizer,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AttentionProducts,
        Self::FeedForwardProducts,
        Self::ExpertProducts,
        Self::AttentionCore,
        Self::Pointwise,
        Self::Logits,
        Self::Optimizer,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttentionProducts => "products of attention",
            Self::FeedForwardProducts => "products of feed-forward",
            Self::ExpertProducts => "products of experts",
            Self::AttentionCore => "core of attention",
            Self::Pointwise => "pointwise",
            Self::Logits => "output projection and loss",
            Self::Optimizer => "optimizer",
        }
    }

    /// Whether it is computed in 16 bits whatever the run's precision.
    pub fn is_half(self) -> bool {
        matches!(self, Self::AttentionCore | Self::Logits)
    }
}

/// Work of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work {
    /// Operations.
    pub(crate) flops: f64,
    /// What must pass the memory at least; where the time is that of memory, what is reckoned to.
    pub(crate) bytes: f64,
    /// What it takes.
    pub(crate) seconds: f64,
}

impl Work {
    /// What takes as long as its bytes take at a rate.
    pub(super) fn of_memory(bytes: f64, bytes_per_s: f64, flops: f64) -> Self {
        Self { flops, bytes, seconds: bytes / bytes_per_s }
    }

    /// Two together.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            bytes: self.bytes + other.bytes,
            seconds: self.seconds + other.seconds,
        }
    }

    /// So many of it.
    #[must_use]
    pub(crate) fn times(self, factor: f64) -> Self {
        Self {
            flops: self.flops * factor,
            bytes: self.bytes * factor,
            seconds: self.seconds * factor,
        }
    }
}

/// Where work is written down.
pub(crate) trait Ledger {
    /// Work of a kind, in the phase of a step that it is part of.
    fn enter(&mut self, phase: Phase, kind: Kind, work: Work);
}

impl Ledger for StepTime {
    fn enter(&mut self, phase: Phase, _: Kind, work: Work) {
        self.add(phase, work.seconds);
    }
}

/// Work by its kinds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ByKind([Work; 7]);

impl ByKind {
    /// Of one kind.
    pub(crate) fn of(&self, kind: Kind) -> Work {
        self.0[kind as usize]
    }

    /// Adds another so many times.
    pub(crate) fn add_all(&mut self, other: &Self, times: f64) {
        for (sum, work) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.plus(work.times(times));
        }
    }
}

impl Ledger for ByKind {
    fn enter(&mut self, _: Phase, kind: Kind, work: Work) {
        self.0[kind as usize] = self.0[kind as usize].plus(work);
    }
}
