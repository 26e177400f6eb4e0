//! Why a run is impossible, and which values would be possible.

/// Why a run is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImpossibleRun {
    #[error("{what} is 0; it must be at least 1")]
    Zero { what: &'static str },
    #[error("{what} is {value}; possible: up to {max}")]
    TooLarge { what: &'static str, value: u64, max: u64 },
    /// The parallelism config needs a different number of GPUs.
    #[error(
        "DP {dp} × TP {tp} × PP {pp} × CP {cp} needs {required} GPUs, but there are {gpus}; {}",
        possible_dp(*gpus, *tp, *pp, *cp)
    )]
    Gpus { dp: u32, tp: u32, pp: u32, cp: u32, required: u64, gpus: u32 },
    #[error("{what} {value} does not divide {of} {whole}; possible: {}", list(.possible))]
    NotDivisible {
        what: &'static str,
        value: u32,
        of: &'static str,
        whole: u64,
        possible: Vec<u32>,
    },
    /// TP neither divides the KV heads nor is a multiple of them.
    #[error(
        "TP {tp} neither divides the {kv_heads} KV heads nor is a multiple of them; \
         possible: {}",
        list(.possible)
    )]
    KeyValueHeads { tp: u32, kv_heads: u32, possible: Vec<u32> },
    /// More virtual stages than layers.
    #[error("{}", too_many_virtual_stages(*pp, *vp, *layers))]
    TooManyVirtualStages { pp: u32, vp: u32, layers: u32 },
    #[error("VP {vp} needs a pipeline; possible: VP 1, or PP of at least 2")]
    VirtualStagesWithoutPipeline { vp: u32 },
    #[error("EP {ep} needs experts and `{model}` has none; possible: EP 1")]
    NoExperts { ep: u32, model: String },
    /// The global batch does not divide evenly.
    #[error(
        "a batch of {batch} sequences is not a multiple of DP {dp} × micro-batch {micro_batch}; \
         possible: {}",
        multiples(u64::from(*batch), u64::from(*dp) * u64::from(*micro_batch))
    )]
    Batch { batch: u32, dp: u32, micro_batch: u32 },
    /// The sequence does not divide evenly.
    #[error(
        "a sequence of {seq_len} tokens is not a multiple of {unit} ({reason}); possible: {}",
        multiples(u64::from(*seq_len), *unit)
    )]
    Sequence {
        seq_len: u32,
        /// Required divisor of the sequence length.
        unit: u64,
        reason: &'static str,
    },
    /// Interleaved 1F1B needs a multiple of PP micro-batches.
    #[error(
        "{micro_batches} micro-batches are not a multiple of PP {pp}, as VP above 1 requires; \
         possible: {} micro-batches, or VP 1",
        multiples(u64::from(*micro_batches), u64::from(*pp))
    )]
    Interleaved { micro_batches: u32, pp: u32 },
    /// `DualPipe` needs an even PP and enough micro-batches.
    #[error(
        "DualPipe with PP {pp} and {micro_batches} micro-batches; possible: an even PP, and an even \
         number of at least {} micro-batches",
        2 * u64::from(*pp)
    )]
    DualPipe { pp: u32, micro_batches: u32 },
    /// The GPU's tensor cores lack the precision.
    #[error(
        "`{precision}` needs {min_generation} or newer, `{gpu}` is {generation}; possible: {}",
        names(.possible)
    )]
    Precision {
        precision: &'static str,
        /// Oldest generation that supports the precision.
        min_generation: &'static str,
        gpu: String,
        generation: &'static str,
        possible: Vec<&'static str>,
    },
    /// The schedule needs PP of at least 2 and VP 1.
    #[error(
        "`{schedule}` with PP {pp} and VP {vp}; possible: PP of at least 2 and VP 1, or `1f1b`"
    )]
    Schedule { schedule: &'static str, pp: u32, vp: u32 },
    /// More recomputed layers than a stage holds.
    #[error(
        "cannot recompute {recomputed} layers where a stage holds {layers}; possible: layers:0 to layers:{layers}, or full"
    )]
    RecomputeLayers {
        recomputed: u32,
        /// Layers of the fullest stage.
        layers: u32,
    },
    /// The framework lacks the recompute mode.
    #[error("`{framework}` cannot recompute `{mode}`; possible: {}", .possible.join(", "))]
    UnsupportedRecompute { framework: &'static str, mode: String, possible: Vec<String> },
    /// Unsupported gradient precision.
    #[error("gradients of {bytes} bytes; possible: 2, 4")]
    ReduceBytes { bytes: u8 },
    /// Unsupported precision of the optimizer's moments.
    #[error("moments of {bytes} bytes; possible: 1, 2, 4")]
    MomentBytes { bytes: u8 },
}

impl ImpossibleRun {
    /// Whether a different parallelism config might make the run possible.
    pub fn depends_on_parallelism(&self) -> bool {
        !matches!(self, Self::TooLarge { .. } | Self::Zero { .. } | Self::Precision { .. })
    }

    /// The violated rule, without the run's numbers, for counting.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Zero { .. } => "a number is 0",
            Self::TooLarge { .. } => "a number exceeds its limit",
            Self::Gpus { .. } => "DP × TP × PP × CP is not the number of GPUs",
            Self::NotDivisible { .. } => "a parallelism degree does not divide its dimension",
            Self::KeyValueHeads { .. } => "TP does not fit the KV heads",
            Self::TooManyVirtualStages { .. } => "there are more virtual stages than layers",
            Self::VirtualStagesWithoutPipeline { .. } => "VP needs a pipeline",
            Self::NoExperts { .. } => "EP needs experts",
            Self::Batch { .. } => "the global batch does not divide by DP × micro-batch",
            Self::Sequence { .. } => "the sequence does not divide over CP",
            Self::Interleaved { .. } => "interleaved 1F1B needs a multiple of PP micro-batches",
            Self::DualPipe { .. } => "DualPipe needs an even PP and enough micro-batches",
            Self::Precision { .. } => "the GPU does not support the precision",
            Self::RecomputeLayers { .. } => "a stage holds fewer layers than are recomputed",
            Self::Schedule { .. } => "the schedule needs one virtual stage per stage",
            Self::UnsupportedRecompute { .. } => "the framework lacks the recompute mode",
            Self::ReduceBytes { .. } => "gradients have 2 or 4 bytes",
            Self::MomentBytes { .. } => "moments have 1, 2 or 4 bytes",
        }
    }
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn names(names: &[&str]) -> String {
    format!("`{}`", names.join("`, `"))
}

/// The nearest multiples of `unit`.
fn multiples(value: u64, unit: u64) -> String {
    let below = value / unit.max(1) * unit;
    if below == 0 { format!("{unit}") } else { format!("{below} or {}", below + unit) }
}

fn too_many_virtual_stages(pp: u32, vp: u32, layers: u32) -> String {
    if pp > layers {
        return format!(
            "PP {pp} is more stages than the {layers} layers; possible: PP up to {layers}"
        );
    }
    let max = ((layers + 2) / pp.max(1)).max(1);
    format!(
        "PP {pp} × VP {vp} is more virtual stages than the {layers} layers; possible: VP up to \
         {max} with PP {pp}"
    )
}

fn possible_dp(gpus: u32, tp: u32, pp: u32, cp: u32) -> String {
    let per_replica = u64::from(tp) * u64::from(pp) * u64::from(cp);
    let gpus = u64::from(gpus);
    if per_replica <= gpus && gpus.is_multiple_of(per_replica) {
        format!("possible: DP {}", gpus / per_replica)
    } else {
        format!(
            "possible: a multiple of {per_replica} GPUs, such as {}",
            multiples(gpus, per_replica)
        )
    }
}
