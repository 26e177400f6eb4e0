//! Memory of a run, by pipeline stage.
//!
//! ```text
//! stage:       layers and in-flight micro-batches of a stage
//! state:       weights, gradients and optimizer state, by sharding
//! activations: stored activations, by recompute mode
//! ```
//!
//! Parts are added even if their peaks do not coincide, because the caching allocator keeps freed
//! blocks for their own size class, and everything that it reserves must fit into the GPU.

mod activations;
mod stage;
mod state;

use serde::Serialize;

use self::activations::BlockActivations;
use self::stage::PipelineStage;
use self::state::ModelStates;
use crate::gpu::Accelerator;
use crate::run::TrainingRun;

const GIB: f64 = 1_073_741_824.0;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryEstimate {
    pub stages: Vec<StageMemory>,
    /// Index of the stage with the largest P95.
    pub worst_stage: usize,
    /// Median of the worst stage.
    pub p50_gib: f64,
    /// P95 of the worst stage.
    pub p95_gib: f64,
}

/// Memory of a GPU of one pipeline stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageMemory {
    /// Index of the stage, starting at 0.
    pub stage: u32,
    pub blocks: u32,
    /// Micro-batches whose activations are stored at once.
    #[serde(rename = "micro_batches_kept")]
    pub micro_batches_in_flight: f64,
    pub p50: MemoryBreakdown,
    pub p95: MemoryBreakdown,
}

/// Memory of a GPU by use, GiB.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct MemoryBreakdown {
    /// Weights, including quantized copies.
    pub weights_gib: f64,
    pub gradients_gib: f64,
    /// Optimizer state, including 32-bit master weights.
    pub optimizer_gib: f64,
    /// Unsharded weights and gradients of the layers in use (ZeRO-2, ZeRO-3).
    pub unsharded_gib: f64,
    /// Activations stored for the backward pass.
    pub activations_gib: f64,
    /// Transient buffers of the backward pass through one layer.
    pub working_gib: f64,
    /// Logits and loss.
    pub logits_gib: f64,
    /// CUDA context, NCCL and other libraries.
    pub runtime_gib: f64,
    /// Fragmentation of the caching allocator.
    pub margin_gib: f64,
}

impl MemoryBreakdown {
    pub fn total_gib(&self) -> f64 {
        self.allocator_gib() + self.runtime_gib
    }

    /// Memory that the caching allocator reserves: everything but the runtime.
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

/// Assumptions of a memory estimate, at P50 or P95.
#[derive(Debug, Clone, Copy)]
struct Assumptions {
    /// Whether framework-dependent sizes are taken at their maximum.
    p95: bool,
    /// Expert load of the fullest GPU relative to the mean, with expert parallelism.
    imbalance: f64,
    /// Share lost to allocator fragmentation. 1 to 3 % with expandable segments, up to 8 % without
    /// (`PyTorch`'s notes on its allocator; reports of runs).
    margin: f64,
    /// CUDA context with loaded kernels: 0.5 to 0.9 on Ampere to Blackwell.
    context_gib: f64,
    /// The first NCCL communicator: 0.33 to 0.38 (aiconfigurator's measured tables).
    communicator_gib: f64,
    /// Every further communicator, which has fewer channels.
    extra_communicator_gib: f64,
    /// Library workspaces outside the allocator.
    workspace_gib: f64,
}

const P50: Assumptions = Assumptions {
    p95: false,
    imbalance: 1.0,
    margin: 0.03,
    context_gib: 0.6,
    communicator_gib: 0.35,
    extra_communicator_gib: 0.1,
    workspace_gib: 0.1,
};

const P95: Assumptions = Assumptions {
    p95: true,
    imbalance: 1.3,
    margin: 0.08,
    context_gib: 0.9,
    communicator_gib: 0.5,
    extra_communicator_gib: 0.25,
    workspace_gib: 0.5,
};

/// Everything that is the same for all stages of a run.
struct RunMemory<'a> {
    run: &'a TrainingRun,
    assumptions: Assumptions,
    states: ModelStates,
    dense: BlockActivations,
    moe: BlockActivations,
    logits_gib: f64,
    runtime_gib: f64,
}

impl<'a> RunMemory<'a> {
    fn new(run: &'a TrainingRun, assumptions: Assumptions) -> Self {
        Self {
            run,
            assumptions,
            states: ModelStates::new(run),
            dense: BlockActivations::dense(run),
            moe: BlockActivations::moe(run, assumptions.imbalance),
            logits_gib: activations::logits_bytes(run, assumptions.p95) / GIB,
            runtime_gib: runtime_gib(run, assumptions),
        }
    }

    fn breakdown(&self, stage: &PipelineStage) -> MemoryBreakdown {
        let states = self.states.for_stage(stage, self.run);
        let (stored, working) = activations::stage_bytes(self.run, stage, &self.dense, &self.moe);
        let mut breakdown = MemoryBreakdown {
            weights_gib: states.weights / GIB,
            gradients_gib: states.gradients / GIB,
            optimizer_gib: states.optimizer / GIB,
            unsharded_gib: states.unsharded / GIB,
            activations_gib: stored / GIB,
            working_gib: working / GIB,
            logits_gib: if stage.last { self.logits_gib } else { 0.0 },
            runtime_gib: self.runtime_gib,
            margin_gib: 0.0,
        };
        breakdown.margin_gib = breakdown.tensors() * self.assumptions.margin;
        breakdown
    }
}

fn runtime_gib(run: &TrainingRun, assumptions: Assumptions) -> f64 {
    let parallelism = &run.parallelism;
    let groups = [
        parallelism.dp * parallelism.cp,
        parallelism.tp,
        parallelism.pp,
        parallelism.cp,
        parallelism.ep,
    ]
    .into_iter()
    .filter(|size| *size > 1)
    .count();
    #[expect(clippy::cast_precision_loss, reason = "at most five")]
    let communicators = match groups {
        0 => 0.0,
        groups => {
            assumptions.communicator_gib + assumptions.extra_communicator_gib * (groups - 1) as f64
        }
    };
    assumptions.context_gib + communicators + assumptions.workspace_gib
}

/// GPU memory usable by a process, GiB. The nominal GB are close to the actual GiB (NVML reports
/// 143,771 MiB for a 141 GB H200 and 81,559 MiB for an 80 GB H100).
pub fn usable_gib(gpu: &Accelerator) -> f64 {
    gpu.hbm_bytes / 1e9 * 0.9945
}

/// Bytes of weights, gradients and optimizer state per trained weight, summed over all GPUs.
pub fn state_bytes_per_weight(run: &TrainingRun) -> f64 {
    state::trainable_bytes(run)
}

/// Bytes of weights, gradients and optimizer state per adapter weight, summed over all GPUs.
pub(crate) fn state_bytes_per_adapter(run: &TrainingRun) -> f64 {
    6.0 + f64::from(run.parallelism.reduce_bytes) + 2.0 * f64::from(run.parallelism.moment_bytes)
}

/// Memory of a run, by stage and use.
pub fn estimate(run: &TrainingRun) -> MemoryEstimate {
    let (p50, p95) = (RunMemory::new(run, P50), RunMemory::new(run, P95));
    let stage_memory = |number| {
        let stage = PipelineStage::new(run, number);
        StageMemory {
            stage: number,
            blocks: stage.dense_blocks + stage.expert_blocks,
            micro_batches_in_flight: stage.in_flight,
            p50: p50.breakdown(&stage),
            p95: p95.breakdown(&stage),
        }
    };
    let stages: Vec<StageMemory> = (0..run.parallelism.pp.max(1)).map(stage_memory).collect();
    let totals = |stage: &StageMemory| (stage.p50.total_gib(), stage.p95.total_gib());
    let mut peak_gib = (0, (0.0, 0.0));
    for (number, stage) in stages.iter().enumerate() {
        let (p50, p95) = totals(stage);
        if p95 > peak_gib.1.1 {
            peak_gib = (number, (p50, p95));
        }
    }
    let (worst_stage, (p50_gib, p95_gib)) = peak_gib;
    MemoryEstimate { stages, worst_stage, p50_gib, p95_gib }
}

/// P50 and P95 of the worst stage, GiB. The same as [`estimate`] without allocation, for searches.
pub fn peak_gib(run: &TrainingRun) -> (f64, f64) {
    let (p50, p95) = (RunMemory::new(run, P50), RunMemory::new(run, P95));
    let mut worst = (0.0, 0.0);
    for number in 0..run.parallelism.pp.max(1) {
        let stage = PipelineStage::new(run, number);
        let p95_gib = p95.breakdown(&stage).total_gib();
        if p95_gib > worst.1 {
            worst = (p50.breakdown(&stage).total_gib(), p95_gib);
        }
    }
    worst
}

#[cfg(test)]
mod tests;
