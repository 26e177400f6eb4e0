//! Why a row cannot be estimated.

use super::program::{CHEAP, SHARDINGS};
use crate::check::ImpossibleRun;
use crate::gpu::GpuError;
use crate::run::Stack;

/// Why a row of a table cannot be estimated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RowError {
    /// A cell should hold a whole number above zero.
    #[error("{column} `{cell}` is no whole number above zero")]
    NoCount {
        /// What the cell is of.
        column: String,
        /// What it holds.
        cell: String,
    },
    /// A cell should hold a number above zero.
    #[error("`{column}` is `{cell}`, no number above zero")]
    NoNumber {
        /// The column.
        column: &'static str,
        /// What the cell holds.
        cell: String,
    },
    /// A cell that every run needs is empty.
    #[error("no {0}")]
    Lacks(&'static str),
    /// No precision of this name.
    #[error("precision `{0}` is not known")]
    Precision(String),
    /// No program of this name.
    #[error(
        "program `{0}` is not known; possible: `{known}`",
        known = Stack::ALL.map(Stack::name).join("`, `")
    )]
    Program(String),
    /// No sharding of this name.
    #[error("sharding `{0}` is not known; possible: `{known}`", known = SHARDINGS.join("`, `"))]
    Sharding(String),
    /// No recomputation of this name.
    #[error(
        "recomputation `{0}` is not known; possible: `none`, `full`, `layers:N`, `selective`, `selective-op`, \
         `selective-layer`, `selective+SP`, `attention`, `modules`, `selective:` with any of `{known}` joined by `+`",
        known = CHEAP.join("`, `")
    )]
    Recompute(String),
    /// The column says yes or no.
    #[error("fused experts `{0}`; possible: `yes`, `no`")]
    FusedExperts(String),
    /// The GPUs are no whole number of data-parallel replicas.
    #[error("{gpus} GPUs do not divide by TP × PP × CP")]
    Indivisible {
        /// How many there are.
        gpus: u32,
    },
    /// The row's own numbers make no model, and no model has its name.
    #[error("model `{model}` is not known and {lacks}")]
    UnknownModel {
        /// What was trained.
        model: String,
        /// What the row lacks.
        lacks: ShapeError,
    },
    /// The row's own numbers make no model, and are not those of the model that it names.
    #[error(
        "the row's shape is not that of `{model}` ({layers} blocks, {hidden} wide, {vocab} words), and {lacks}"
    )]
    OtherShape {
        /// What was trained.
        model: String,
        /// Layers of the model of that name.
        layers: u32,
        /// Its width.
        hidden: u32,
        /// Its vocabulary.
        vocab: u32,
        /// What the row lacks.
        lacks: ShapeError,
    },
    /// The GPU is not known.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A share of the power needs the whole.
    #[error("nothing is known of the power of `{0}`")]
    Power(String),
    /// The run cannot be.
    #[error(transparent)]
    Impossible(#[from] ImpossibleRun),
    /// Two cells contradict each other.
    #[error("`step_time_s` says {time_s} s and `tokens_per_s_per_gpu` {rate_s:.3} s a step")]
    Contradiction {
        /// A step by its time.
        time_s: f64,
        /// A step by its rate.
        rate_s: f64,
    },
    /// The row does not say how fast it was.
    #[error("no step time, tokens a second or FLOPs")]
    NoSpeed,
    /// A speed that is infinite or zero.
    #[error("its speed is beyond all numbers")]
    Speed,
    /// An estimate that is infinite or no number.
    #[error("its estimate is no number")]
    Estimate,
}

/// What a row lacks of the shape of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Layers, width or heads.
    #[error("the row lacks its shape")]
    Shape,
    /// A head has no width.
    #[error("the row has more heads ({heads}) than it is wide ({hidden})")]
    Heads {
        /// How many heads.
        heads: u32,
        /// The width.
        hidden: u32,
    },
    /// Heads of keys and values.
    #[error("the row lacks heads of keys and values")]
    KvHeads,
    /// The vocabulary.
    #[error("the row lacks a vocabulary")]
    Vocabulary,
}
