//! Weights, gradients and optimizer state.

use super::stage::PipelineStage;
use crate::gpu::Generation;
use crate::model::{ParameterCounts, adapters_of_block, attention_of_rank};
use crate::parallelism::{Schedule, Sharding};
use crate::precision::Precision;
use crate::run::{Framework, TrainingRun, TrainingTask};

/// `DeepSpeed`'s default of `stage3_max_live_parameters`.
const MAX_LIVE_PARAMETERS: f64 = 1e9;

/// Bytes per weight on one GPU, after sharding.
#[derive(Debug, Clone, Copy)]
struct BytesPerParam {
    weights: f64,
    gradients: f64,
    optimizer: f64,
}

/// Weights of a layer on one GPU.
#[derive(Debug, Clone, Copy)]
struct BlockParams {
    common: f64,
    routed: f64,
    adapters: f64,
}

/// Model states on a GPU of one stage, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StageStates {
    pub(super) weights: f64,
    pub(super) gradients: f64,
    pub(super) optimizer: f64,
    pub(super) unsharded: f64,
}

/// Everything that is the same for all stages.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelStates {
    dense: BlockParams,
    moe: BlockParams,
    embedding: f64,
    output: f64,
    /// Weights of layers.
    common: BytesPerParam,
    /// Expert weights.
    routed: BytesPerParam,
    /// Embedding and output projection.
    ends: BytesPerParam,
    adapters: BytesPerParam,
}

impl ModelStates {
    pub(super) fn new(run: &TrainingRun) -> Self {
        let parameters = ParameterCounts::new(&run.model);
        let tp = f64::from(run.parallelism.tp);
        let attention = attention_of_rank(&run.model, run.parallelism.tp) + parameters.norms;
        let ep = f64::from(run.parallelism.ep);
        let vocabulary = f64::from(run.model.vocab) * f64::from(run.model.hidden);
        // The last stage holds a second copy of a tied embedding, unless it is also the first.
        let output =
            if run.model.tied && run.parallelism.pp > 1 { vocabulary } else { parameters.output };
        let rank = run.parallelism.adapter_rank;
        let (replicas, expert_replicas) =
            (run.parallelism.dp * run.parallelism.cp, run.parallelism.expert_replicas());
        Self {
            dense: BlockParams {
                common: attention + parameters.dense_ffn / tp,
                routed: 0.0,
                adapters: adapters_of_block(&run.model, rank, run.model.ffn) / tp,
            },
            moe: BlockParams {
                common: attention + parameters.shared_ffn / tp + parameters.router,
                routed: parameters.routed / ep,
                adapters: run.model.experts.map_or(0.0, |experts| {
                    adapters_of_block(&run.model, rank, experts.shared_ffn) / tp
                }),
            },
            embedding: parameters.embedding / tp,
            output: output / tp,
            common: bytes(run, replicas, quantized(run)),
            routed: bytes(run, expert_replicas, quantized(run)),
            ends: bytes(run, replicas, QuantizedWeights::NONE),
            adapters: adapter_bytes(run, replicas),
        }
    }

    pub(super) fn for_stage(&self, stage: &PipelineStage, run: &TrainingRun) -> StageStates {
        let (dense, moe) = (f64::from(stage.dense_blocks), f64::from(stage.expert_blocks));
        let common = dense * self.dense.common + moe * self.moe.common;
        let routed = moe * self.moe.routed;
        let ends = f64::from(u8::from(stage.first)) * self.embedding
            + f64::from(u8::from(stage.last)) * self.output;
        let sum = |bytes: fn(&BytesPerParam) -> f64| {
            common * bytes(&self.common) + routed * bytes(&self.routed) + ends * bytes(&self.ends)
        };
        let mut states = StageStates {
            weights: sum(|bytes| bytes.weights),
            gradients: sum(|bytes| bytes.gradients),
            optimizer: sum(|bytes| bytes.optimizer),
            unsharded: self.unsharded(stage, run, ends),
        };
        if run.parallelism.schedule == Schedule::DualPipe && run.parallelism.pp > 1 {
            // The two replicas of a stage shard its optimizer state like data-parallel replicas.
            if run.parallelism.sharding != Sharding::None {
                states.optimizer /= 2.0;
            }
        }
        if run.task == TrainingTask::Lora {
            let adapters = dense * self.dense.adapters + moe * self.moe.adapters;
            states.weights += adapters * self.adapters.weights;
            states.gradients += adapters * self.adapters.gradients;
            states.optimizer += adapters * self.adapters.optimizer;
        }
        states
    }

    /// Unsharded buffers: the weights of the current layer and of the prefetched next layer, the
    /// weights of the embedding and the output projection (which stay gathered), and the largest
    /// gradient before its reduction.
    fn unsharded(&self, stage: &PipelineStage, run: &TrainingRun, ends: f64) -> f64 {
        let block = |block: &BlockParams, blocks: u32| {
            if blocks == 0 { 0.0 } else { block.common + block.routed }
        };
        let largest =
            block(&self.dense, stage.dense_blocks).max(block(&self.moe, stage.expert_blocks));
        // DeepSpeed gathers single tensors, not layers, up to `stage3_max_live_parameters`.
        let largest = if run.framework == Framework::MegatronEarly {
            largest.min(MAX_LIVE_PARAMETERS)
        } else {
            largest
        };
        let is_trained = f64::from(u8::from(run.task == TrainingTask::Full));
        let end = if stage.last { self.output.max(self.embedding) } else { self.embedding };
        let end = if stage.first || stage.last { end } else { 0.0 };
        // The 16-bit gradient, and its copy in the reduction precision.
        let gradient =
            is_trained * (2.0 + f64::from(run.parallelism.reduce_bytes)) * largest.max(end);
        match run.parallelism.sharding {
            _ if !run.parallelism.shards_gradients() => 0.0,
            Sharding::None | Sharding::Optimizer | Sharding::Gradients => gradient,
            Sharding::Weights => 2.0 * (2.0 * largest + ends) + gradient,
        }
    }
}

/// Bytes per weight of Adam's two moments.
fn moments_bytes(run: &TrainingRun) -> f64 {
    2.0 * f64::from(run.parallelism.moment_bytes)
}

/// Bytes per trained weight, summed over all GPUs. Megatron: 16-bit weight, gradient, 32-bit master
/// weight and moments (`theoretical_memory_usage.py`). FSDP: 32-bit weight, 32-bit gradient and
/// moments.
pub(super) fn trainable_bytes(run: &TrainingRun) -> f64 {
    let rest = if run.framework.is_megatron() {
        6.0 + f64::from(run.parallelism.reduce_bytes)
    } else {
        8.0
    };
    rest + moments_bytes(run)
}

/// Bytes per adapter weight: 16-bit weight, gradient, 32-bit master weight and moments.
fn adapter_bytes(run: &TrainingRun, replicas: u32) -> BytesPerParam {
    let parallelism = &run.parallelism;
    let shards = f64::from(parallelism.shard_group_size(replicas));
    let over = |least: Sharding| if parallelism.sharding >= least { shards } else { 1.0 };
    BytesPerParam {
        weights: 2.0 / over(Sharding::Weights),
        gradients: f64::from(parallelism.reduce_bytes)
            / if parallelism.shards_gradients() { shards } else { 1.0 },
        optimizer: (4.0 + moments_bytes(run)) / over(Sharding::Optimizer),
    }
}

/// Quantized copies of a weight.
#[derive(Debug, Clone, Copy)]
struct QuantizedWeights {
    /// Bytes per weight, over all quantized copies.
    bytes: f64,
    /// Whether the quantized copies replace the 16-bit weight.
    replaces_16bit: bool,
}

impl QuantizedWeights {
    const NONE: Self = Self { bytes: 0.0, replaces_16bit: false };
}

fn quantized(run: &TrainingRun) -> QuantizedWeights {
    if !run.framework.is_megatron() || run.task == TrainingTask::Lora {
        return QuantizedWeights::NONE;
    }
    // The backward pass needs the transposed weight. Tensor cores older than Blackwell need a
    // second copy for it, and so do all formats with block scales (Transformer Engine).
    let copies = match (run.precision, run.gpu.generation) {
        (Precision::Fp8, Generation::Blackwell) => 1.0,
        _ => 2.0,
    };
    let bytes = match run.precision {
        Precision::Fp16 | Precision::Bf16 => return QuantizedWeights::NONE,
        Precision::Mxfp8 => 33.0 / 32.0,
        other => other.operand_bytes(),
    };
    // Megatron Bridge stores FP8 and MXFP8 weights without a 16-bit copy (`fp8_param_gather` in its
    // recipes).
    let replaces_16bit = run.framework == Framework::Bridge
        && matches!(run.precision, Precision::Fp8 | Precision::Mxfp8);
    QuantizedWeights { bytes: bytes * copies, replaces_16bit }
}

/// Bytes per weight with this many data-parallel replicas.
fn bytes(run: &TrainingRun, replicas: u32, quantized: QuantizedWeights) -> BytesPerParam {
    let parallelism = &run.parallelism;
    let shards = f64::from(parallelism.shard_group_size(replicas));
    let over = |least: Sharding| if parallelism.sharding >= least { shards } else { 1.0 };
    let gradient_shards = if parallelism.shards_gradients() { shards } else { 1.0 };
    if run.task == TrainingTask::Lora {
        return BytesPerParam {
            weights: 2.0 / over(Sharding::Weights),
            gradients: 0.0,
            optimizer: 0.0,
        };
    }
    if run.framework.is_megatron() {
        let bytes_16bit = if quantized.replaces_16bit { 0.0 } else { 2.0 };
        return BytesPerParam {
            weights: (bytes_16bit + quantized.bytes) / over(Sharding::Weights),
            gradients: f64::from(parallelism.reduce_bytes) / gradient_shards,
            // 32-bit master weights and the two moments.
            optimizer: (4.0 + moments_bytes(run)) / over(Sharding::Optimizer),
        };
    }
    // FSDP keeps 32-bit weights; ZeRO-2 also keeps the gathered 16-bit ones.
    let weights = match parallelism.sharding {
        Sharding::None | Sharding::Optimizer => 4.0,
        Sharding::Gradients => 4.0 / shards + 2.0,
        Sharding::Weights => 4.0 / shards,
    };
    BytesPerParam {
        weights,
        gradients: 4.0 / gradient_shards,
        optimizer: moments_bytes(run) / over(Sharding::Optimizer),
    }
}
