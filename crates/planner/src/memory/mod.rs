//! How much memory a run takes on each stage of its pipeline.
//!
//! ```text
//! stage:       which blocks and how many micro-batches a stage holds
//! state:       weights, gradients and the optimizer, by what the copies share
//! activations: what is kept of a micro-batch, by what is computed again
//! ```
//!
//! Parts are added even where they are not needed at the same moment: what is freed is kept by the
//! allocator for its own size, and what it reserves is what a GPU must have.

mod activations;
mod stage;
mod state;

use serde::Serialize;

use self::activations::BlockActivations;
use self::stage::Stage;
use self::state::States;
use crate::gpu::Accelerator;
use crate::run::Run;

/// Bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

/// The memory of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Each stage of the pipeline.
    pub stages: Vec<StageMemory>,
    /// The stage that needs most.
    pub worst_stage: usize,
    /// What that stage needs in half of such runs, GiB.
    pub p50_gib: f64,
    /// What that stage needs at most in 95 of 100 such runs, GiB.
    pub p95_gib: f64,
}

/// The memory of a GPU of one stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageMemory {
    /// Its number, from 0.
    pub stage: u32,
    /// Blocks that it holds.
    pub blocks: u32,
    /// Micro-batches whose activations it keeps at once.
    pub micro_batches_kept: f64,
    /// In half of such runs.
    pub p50: Parts,
    /// At most, in 95 of 100 such runs.
    pub p95: Parts,
}

/// The memory of a GPU by what is in it, GiB.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Parts {
    /// Weights, and their copies in the precision of products.
    pub weights_gib: f64,
    /// Gradients.
    pub gradients_gib: f64,
    /// The optimizer's state, with its own copy of the weights where it has one.
    pub optimizer_gib: f64,
    /// Weights and gradients of blocks that are whole while they are used, where copies share them.
    pub unsharded_gib: f64,
    /// What is kept for the way back.
    pub activations_gib: f64,
    /// What the way back through one block needs beside that.
    pub working_gib: f64,
    /// The output projection's result and the loss.
    pub logits_gib: f64,
    /// The driver's context, the communication library and its like.
    pub runtime_gib: f64,
    /// What the allocator holds and cannot use.
    pub margin_gib: f64,
}

impl Parts {
    /// All of it.
    pub fn total_gib(&self) -> f64 {
        self.allocator_gib() + self.runtime_gib
    }

    /// What the allocator reserves: all but the runtime.
    pub fn allocator_gib(&self) -> f64 {
        self.tensors() + self.margin_gib
    }

    fn tensors(&self) -> f64 {
        self.weights_gib
            + self.gradients_gib
            + self.optimizer_gib
            + self.unsharded_gib
            + self.activations_gib
            + self.working_gib
            + self.logits_gib
    }
}

/// How careful an estimate is.
#[derive(Debug, Clone, Copy)]
struct Care {
    /// Whether what programs differ in is taken at its most.
    at_most: bool,
    /// Tokens of the fullest GPU beside the mean, where experts are on several.
    imbalance: f64,
    /// Share that the allocator holds and cannot use. With expandable segments 1 to 3 %, without up
    /// to 8 % (`PyTorch`'s notes on its allocator; reports of runs).
    margin: f64,
    /// The driver's context with its kernels, GiB: 0.5 to 0.9 on Ampere to Blackwell.
    context_gib: f64,
    /// A communicator of NCCL, GiB: 0.33 to 0.38 for the first (aiconfigurator's measured tables).
    communicator_gib: f64,
    /// Every further one, whose channels are fewer.
    further_gib: f64,
    /// Libraries' workspaces outside the allocator, GiB.
    workspace_gib: f64,
}

const HALF: Care = Care {
    at_most: false,
    imbalance: 1.0,
    margin: 0.03,
    context_gib: 0.6,
    communicator_gib: 0.35,
    further_gib: 0.1,
    workspace_gib: 0.1,
};

const CAREFUL: Care = Care {
    at_most: true,
    imbalance: 1.3,
    margin: 0.08,
    context_gib: 0.9,
    communicator_gib: 0.5,
    further_gib: 0.25,
    workspace_gib: 0.5,
};

/// What does not differ between the stages of a run.
struct Common<'a> {
    run: &'a Run,
    care: Care,
    states: States,
    dense: BlockActivations,
    mixture: BlockActivations,
    logits_gib: f64,
    runtime_gib: f64,
}

impl<'a> Common<'a> {
    fn of(run: &'a Run, care: Care) -> Self {
        Self {
            run,
            care,
            states: States::of(run),
            dense: BlockActivations::dense(run),
            mixture: BlockActivations::mixture(run, care.imbalance),
            logits_gib: activations::logits_bytes(run, care.at_most) / GIB,
            runtime_gib: runtime_gib(run, care),
        }
    }

    fn parts(&self, stage: &Stage) -> Parts {
        let held = self.states.of_stage(stage, self.run);
        let (kept, working) = activations::of_stage(self.run, stage, &self.dense, &self.mixture);
        let mut parts = Parts {
            weights_gib: held.weights / GIB,
            gradients_gib: held.gradients / GIB,
            optimizer_gib: held.optimizer / GIB,
            unsharded_gib: held.unsharded / GIB,
            activations_gib: kept / GIB,
            working_gib: working / GIB,
            logits_gib: if stage.last { self.logits_gib } else { 0.0 },
            runtime_gib: self.runtime_gib,
            margin_gib: 0.0,
        };
        parts.margin_gib = parts.tensors() * self.care.margin;
        parts
    }
}

fn runtime_gib(run: &Run, care: Care) -> f64 {
    let layout = &run.layout;
    let groups = [layout.dp * layout.cp, layout.tp, layout.pp, layout.cp, layout.ep]
        .into_iter()
        .filter(|size| *size > 1)
        .count();
    #[expect(clippy::cast_precision_loss, reason = "at most five")]
    let communicators = match groups {
        0 => 0.0,
        groups => care.communicator_gib + care.further_gib * (groups - 1) as f64,
    };
    care.context_gib + communicators + care.workspace_gib
}

/// What a program can have of a GPU, GiB: parts are sold by a number of GB that is close to their
/// GiB (an H200 of 141 GB has 143,771 MiB, an H100 of 80 GB has 81,559 MiB, by NVML).
pub fn usable_gib(gpu: &Accelerator) -> f64 {
    gpu.hbm_bytes / 1e9 * 0.9945
}

/// Bytes of weights, gradients and the optimizer for each weight that learns, wherever they are.
pub fn state_bytes_per_weight(run: &Run) -> f64 {
    state::learning_bytes(run)
}

/// Likewise for each weight of an adapter.
pub(crate) fn state_bytes_per_adapter(run: &Run) -> f64 {
    6.0 + f64::from(run.layout.reduce_bytes) + 2.0 * f64::from(run.layout.moment_bytes)
}

/// The memory of a run, by stage and part.
pub fn of(run: &Run) -> Memory {
    let (half, careful) = (Common::of(run, HALF), Common::of(run, CAREFUL));
    let of_stage = |number| {
        let stage = Stage::of(run, number);
        StageMemory {
            stage: number,
            blocks: stage.dense_blocks + stage.expert_blocks,
            micro_batches_kept: stage.in_flight,
            p50: half.parts(&stage),
            p95: careful.parts(&stage),
        }
    };
    let stages: Vec<StageMemory> = (0..run.layout.pp.max(1)).map(of_stage).collect();
    let totals = |stage: &StageMemory| (stage.p50.total_gib(), stage.p95.total_gib());
    let mut worst = (0, (0.0, 0.0));
    for (number, stage) in stages.iter().enumerate() {
        let (p50, p95) = totals(stage);
        if p95 > worst.1.1 {
            worst = (number, (p50, p95));
        }
    }
    let (worst_stage, (p50_gib, p95_gib)) = worst;
    Memory { stages, worst_stage, p50_gib, p95_gib }
}

/// What the fullest stage needs, in half of such runs and at most in 95 of 100, GiB: as [`of`], for
/// a search, without allocation.
pub fn worst(run: &Run) -> (f64, f64) {
    let (half, careful) = (Common::of(run, HALF), Common::of(run, CAREFUL));
    let mut worst = (0.0, 0.0);
    for number in 0..run.layout.pp.max(1) {
        let stage = Stage::of(run, number);
        let p95 = careful.parts(&stage).total_gib();
        if p95 > worst.1 {
            worst = (half.parts(&stage).total_gib(), p95);
        }
    }
    worst
}

#[cfg(test)]
mod tests;
