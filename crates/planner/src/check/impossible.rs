//! Why a run is impossible, and what would be possible.

/// Why a run is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImpossibleRun {
    /// Nothing of something.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// Of what.
        what: &'static str,
    },
    /// More than makes sense.
    #[error("{what} is {value}; possible: up to {most}")]
    Absurd {
        /// Of what.
        what: &'static str,
        /// As asked for.
        value: u64,
        /// What is taken.
        most: u64,
    },
    /// The split takes another number of GPUs than there are.
    #[error(
        "DP {dp} × TP {tp} × PP {pp} × CP {cp} takes {takes} GPUs, there are {gpus}; {}",
        copies_for(*gpus, *tp, *pp, *cp)
    )]
    Gpus {
        /// Copies.
        dp: u32,
        /// Tensor parallelism.
        tp: u32,
        /// Stages.
        pp: u32,
        /// Context parallelism.
        cp: u32,
        /// What the split takes.
        takes: u64,
        /// What there is.
        gpus: u32,
    },
    /// A whole that is not split evenly.
    #[error("{what} {value} does not divide {of} {whole}; possible: {}", list(.possible))]
    Uneven {
        /// What splits.
        what: &'static str,
        /// As asked for.
        value: u32,
        /// What is split.
        of: &'static str,
        /// How much there is of it.
        whole: u64,
        /// What splits it evenly.
        possible: Vec<u32>,
    },
    /// Heads of keys and values that fit no split.
    #[error(
        "TP {tp} neither divides {kv_heads} heads of keys and values nor is a multiple of them; \
         possible: {}",
        list(.possible)
    )]
    KeyValueHeads {
        /// Tensor parallelism.
        tp: u32,
        /// Heads of keys and values.
        kv_heads: u32,
        /// What does.
        possible: Vec<u32>,
    },
    /// More pieces than blocks.
    #[error("{}", pieces(*pp, *vp, *layers))]
    Pieces {
        /// Stages.
        pp: u32,
        /// Pieces of a stage.
        vp: u32,
        /// Blocks.
        layers: u32,
    },
    /// Pieces of a stage without stages.
    #[error("VP {vp} needs a pipeline; possible: VP 1, or PP of at least 2")]
    PiecesWithoutStages {
        /// Pieces of a stage.
        vp: u32,
    },
    /// Expert parallelism without experts.
    #[error("EP {ep} needs experts and `{model}` has none; possible: EP 1")]
    NoExperts {
        /// Expert parallelism.
        ep: u32,
        /// The model.
        model: String,
    },
    /// A batch that is not shared evenly.
    #[error(
        "a batch of {batch} sequences is not a multiple of DP {dp} × micro-batch {micro_batch}; \
         possible: {}",
        multiples(u64::from(*batch), u64::from(*dp) * u64::from(*micro_batch))
    )]
    Batch {
        /// Sequences of a step.
        batch: u32,
        /// Copies.
        dp: u32,
        /// Sequences at once.
        micro_batch: u32,
    },
    /// A sequence that is not shared evenly.
    #[error(
        "a sequence of {seq_len} tokens is not a multiple of {unit} ({why}); possible: {}",
        multiples(u64::from(*seq_len), *unit)
    )]
    Sequence {
        /// Tokens.
        seq_len: u32,
        /// What it must be a multiple of.
        unit: u64,
        /// Why.
        why: &'static str,
    },
    /// Micro-batches that do not fill the rounds of an interleaved pipeline.
    #[error(
        "{micro_batches} micro-batches are not a multiple of PP {pp}, which VP above 1 needs; \
         possible: {} micro-batches, or VP 1",
        multiples(u64::from(*micro_batches), u64::from(*pp))
    )]
    Interleaved {
        /// Micro-batches of a step.
        micro_batches: u32,
        /// Stages.
        pp: u32,
    },
    /// Two streams need pairs of stages and enough micro-batches.
    #[error(
        "DualPipe with PP {pp} and {micro_batches} micro-batches; possible: an even PP, and an even \
         number of at least {} micro-batches",
        2 * u64::from(*pp)
    )]
    DualPipe {
        /// Stages.
        pp: u32,
        /// Micro-batches of a step.
        micro_batches: u32,
    },
    /// A format that the GPU's tensor cores do not have.
    #[error("`{precision}` needs {needs} or newer, `{gpu}` is {generation}; possible: {}", names(.possible))]
    Precision {
        /// As asked for.
        precision: &'static str,
        /// The oldest that has it.
        needs: &'static str,
        /// The part.
        gpu: String,
        /// Its generation.
        generation: &'static str,
        /// What it has.
        possible: Vec<&'static str>,
    },
    /// A schedule of one piece a stage, with several or without stages.
    #[error(
        "`{schedule}` with PP {pp} and VP {vp}; possible: PP of at least 2 and VP 1, or `1f1b`"
    )]
    Schedule {
        /// As asked for.
        schedule: &'static str,
        /// Stages.
        pp: u32,
        /// Pieces of a stage.
        vp: u32,
    },
    /// More blocks are to be computed again than a stage holds.
    #[error(
        "{again} blocks cannot be computed again where a stage holds {held}; possible: layers:0 to layers:{held}, or full"
    )]
    Again {
        /// As asked for.
        again: u32,
        /// Blocks of the fullest stage.
        held: u32,
    },
    /// A mode of recomputation that the program does not have.
    #[error("`{program}` cannot recompute `{mode}`; possible: {}", .possible.join(", "))]
    Program {
        /// The program.
        program: &'static str,
        /// As asked for.
        mode: String,
        /// What it can, or a program that can.
        possible: Vec<String>,
    },
    /// Gradients of another width than the network carries.
    #[error("gradients of {bytes} bytes; possible: 2, 4")]
    ReduceBytes {
        /// As asked for.
        bytes: u8,
    },
    /// Moments of another width than optimizers keep.
    #[error("moments of {bytes} bytes; possible: 1, 2, 4")]
    MomentBytes {
        /// As asked for.
        bytes: u8,
    },
}

impl ImpossibleRun {
    /// Whether another split of the same run might do.
    pub fn is_of_split(&self) -> bool {
        !matches!(self, Self::Absurd { .. } | Self::Zero { .. } | Self::Precision { .. })
    }

    /// The rule that is broken, in a few words: for counting.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Zero { .. } => "a number is 0",
            Self::Absurd { .. } => "a number is absurd",
            Self::Gpus { .. } => "DP × TP × PP × CP is not the number of GPUs",
            Self::Uneven { .. } => "a number does not divide what it splits",
            Self::KeyValueHeads { .. } => "TP does not fit the heads of keys and values",
            Self::Pieces { .. } => "there are more pieces than blocks",
            Self::PiecesWithoutStages { .. } => "VP needs a pipeline",
            Self::NoExperts { .. } => "EP needs experts",
            Self::Batch { .. } => "the global batch does not divide by DP × micro-batch",
            Self::Sequence { .. } => "the sequence does not divide over CP",
            Self::Interleaved { .. } => "interleaved stages need a multiple of PP micro-batches",
            Self::DualPipe { .. } => "two streams need an even pipeline that is filled",
            Self::Precision { .. } => "the GPU does not have the precision",
            Self::Again { .. } => "a stage does not hold the blocks to compute again",
            Self::Schedule { .. } => "the schedule is for stages of one piece",
            Self::Program { .. } => "the program does not have the recomputation",
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

/// The nearest multiples of a unit.
fn multiples(value: u64, unit: u64) -> String {
    let below = value / unit.max(1) * unit;
    if below == 0 { format!("{unit}") } else { format!("{below} or {}", below + unit) }
}

fn pieces(pp: u32, vp: u32, layers: u32) -> String {
    if pp > layers {
        return format!(
            "PP {pp} makes more stages than the {layers} blocks; possible: PP up to {layers}"
        );
    }
    let most = ((layers + 2) / pp.max(1)).max(1);
    format!(
        "PP {pp} × VP {vp} makes more pieces than the {layers} blocks; possible: VP up to {most} at \
         PP {pp}"
    )
}

fn copies_for(gpus: u32, tp: u32, pp: u32, cp: u32) -> String {
    let one = u64::from(tp) * u64::from(pp) * u64::from(cp);
    let gpus = u64::from(gpus);
    if one <= gpus && gpus.is_multiple_of(one) {
        format!("possible: DP {}", gpus / one)
    } else {
        format!("possible: a multiple of {one} GPUs, such as {}", multiples(gpus, one))
    }
}
