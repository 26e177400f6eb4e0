//! Why a row cannot be estimated.

use super::framework::{CHEAP_MODULES, SHARDINGS};
use crate::check::ImpossibleRun;
use crate::gpu::GpuError;
use crate::run::Framework;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RowError {
    /// Expected a positive integer.
    #[error("{column} `{cell}` is not a positive integer")]
    NotACount { column: String, cell: String },
    /// Expected a positive number.
    #[error("`{column}` is `{cell}`, not a positive number")]
    NotANumber { column: &'static str, cell: String },
    /// A required cell is empty.
    #[error("missing {0}")]
    Missing(&'static str),
    #[error("unknown precision `{0}`")]
    Precision(String),
    #[error(
        "unknown framework `{0}`; possible: `{known}`",
        known = Framework::ALL.map(Framework::name).join("`, `")
    )]
    Framework(String),
    #[error("unknown sharding `{0}`; possible: `{known}`", known = SHARDINGS.join("`, `"))]
    Sharding(String),
    #[error(
        "unknown recompute mode `{0}`; possible: `none`, `full`, `layers:N`, `selective`, `selective-op`, \
         `selective-layer`, `selective+SP`, `attention`, `modules`, `selective:` with any of `{known}` joined by `+`",
        known = CHEAP_MODULES.join("`, `")
    )]
    Recompute(String),
    /// Expected `yes` or `no`.
    #[error("fused experts `{0}`; possible: `yes`, `no`")]
    FusedExperts(String),
    /// The GPUs do not form a whole number of data-parallel replicas.
    #[error("{gpus} GPUs are not divisible by TP × PP × CP")]
    Indivisible { gpus: u32 },
    /// The model name is unknown and the row does not state its shape.
    #[error("unknown model `{model}`, and {missing}")]
    UnknownModel { model: String, missing: ShapeError },
    /// The row's shape is incomplete and contradicts the model that it names.
    #[error(
        "the row's shape is not that of `{model}` ({layers} layers, width {hidden}, vocabulary {vocab}), and {missing}"
    )]
    ShapeMismatch {
        model: String,
        /// Layers of the built-in model.
        layers: u32,
        hidden: u32,
        vocab: u32,
        missing: ShapeError,
    },
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A share of the power limit needs the SKU's default.
    #[error("the facts have no default power of `{0}`")]
    Power(String),
    #[error(transparent)]
    Impossible(#[from] ImpossibleRun),
    /// Step time and throughput contradict each other.
    #[error("`step_time_s` is {time_s} s, but `tokens_per_s_per_gpu` means {rate_s:.3} s per step")]
    Contradiction { time_s: f64, rate_s: f64 },
    /// The row states no speed.
    #[error("missing step time, tokens per second or FLOPs")]
    NoSpeed,
    /// The stated speed is infinite or zero.
    #[error("the speed is out of range")]
    SpeedOutOfRange,
    #[error("the estimate is not finite")]
    EstimateNotFinite,
}

/// What a row lacks to define its model's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Layers, width or heads.
    #[error("the row lacks its shape")]
    Shape,
    #[error("the row has more heads ({heads}) than its width ({hidden})")]
    Heads { heads: u32, hidden: u32 },
    #[error("the row lacks the number of KV heads")]
    KvHeads,
    #[error("the row lacks the vocabulary size")]
    Vocabulary,
}
