//! Weights, gradients and the optimizer's state.

use super::stage::Stage;
use crate::gpu::Generation;
use crate::layout::{Schedule, Sharding};
use crate::model::{Parameters, adapters_of_block, attention_of_rank};
use crate::precision::Precision;
use crate::run::{Run, Stack, Task};

/// Weights that `DeepSpeed` holds whole at once, by default.
const MOST_LIVE: f64 = 1e9;

/// Bytes that a GPU holds for a weight of its share of the model.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    weights: f64,
    gradients: f64,
    optimizer: f64,
}

/// What a GPU holds of a block, in weights.
#[derive(Debug, Clone, Copy)]
struct Block {
    common: f64,
    routed: f64,
    adapters: f64,
}

/// What a GPU of a stage holds, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    pub(super) weights: f64,
    pub(super) gradients: f64,
    pub(super) optimizer: f64,
    pub(super) unsharded: f64,
}

/// What does not differ between stages.
#[derive(Debug, Clone, Copy)]
pub(super) struct States {
    dense: Block,
    mixture: Block,
    embedding: f64,
    output: f64,
    /// Of the weights of blocks.
    common: Bytes,
    /// Of experts.
    routed: Bytes,
    /// Of the two ends.
    ends: Bytes,
    /// Of adapters.
    adapters: Bytes,
}

impl States {
    pub(super) fn of(run: &Run) -> Self {
        let parameters = Parameters::of(&run.model);
        let tp = f64::from(run.layout.tp);
        let attention = attention_of_rank(&run.model, run.layout.tp) + parameters.norms;
        let spread = f64::from(run.layout.ep);
        let vocabulary = f64::from(run.model.vocab) * f64::from(run.model.hidden);
        // A tied embedding is held again by a last stage that is not the first.
        let output =
            if run.model.tied && run.layout.pp > 1 { vocabulary } else { parameters.output };
        let rank = run.layout.adapter_rank;
        let (copies, expert_copies) = (run.layout.dp * run.layout.cp, run.layout.expert_copies());
        Self {
            dense: Block {
                common: attention + parameters.dense_ffn / tp,
                routed: 0.0,
                adapters: adapters_of_block(&run.model, rank, run.model.ffn) / tp,
            },
            mixture: Block {
                common: attention + parameters.shared_ffn / tp + parameters.router,
                routed: parameters.routed / spread,
                adapters: run.model.experts.map_or(0.0, |experts| {
                    adapters_of_block(&run.model, rank, experts.shared_ffn) / tp
                }),
            },
            embedding: parameters.embedding / tp,
            output: output / tp,
            common: bytes(run, copies, quantized(run)),
            routed: bytes(run, expert_copies, quantized(run)),
            ends: bytes(run, copies, Quantized::NONE),
            adapters: adapter_bytes(run, copies),
        }
    }

    pub(super) fn of_stage(&self, stage: &Stage, run: &Run) -> State {
        let (dense, mixture) = (f64::from(stage.dense_blocks), f64::from(stage.expert_blocks));
        let common = dense * self.dense.common + mixture * self.mixture.common;
        let routed = mixture * self.mixture.routed;
        let ends = f64::from(u8::from(stage.first)) * self.embedding
            + f64::from(u8::from(stage.last)) * self.output;
        let sum = |of: fn(&Bytes) -> f64| {
            common * of(&self.common) + routed * of(&self.routed) + ends * of(&self.ends)
        };
        let mut held = State {
            weights: sum(|bytes| bytes.weights),
            gradients: sum(|bytes| bytes.gradients),
            optimizer: sum(|bytes| bytes.optimizer),
            unsharded: self.unsharded(stage, run, ends),
        };
        if run.layout.schedule == Schedule::DualPipe && run.layout.pp > 1 {
            // The two copies of a stage share its optimizer as copies of the model do.
            if run.layout.sharding != Sharding::None {
                held.optimizer /= 2.0;
            }
        }
        if run.task == Task::Lora {
            let adapters = dense * self.dense.adapters + mixture * self.mixture.adapters;
            held.weights += adapters * self.adapters.weights;
            held.gradients += adapters * self.adapters.gradients;
            held.optimizer += adapters * self.adapters.optimizer;
        }
        held
    }

    /// What is whole only while it is used: the block under way and the next, which is fetched
    /// meanwhile; the ends, which stay; and the gradient of one of them, on its way.
    fn unsharded(&self, stage: &Stage, run: &Run, ends: f64) -> f64 {
        let block = |block: &Block, blocks: u32| {
            if blocks == 0 { 0.0 } else { block.common + block.routed }
        };
        let largest =
            block(&self.dense, stage.dense_blocks).max(block(&self.mixture, stage.expert_blocks));
        // DeepSpeed gathers products, not blocks, and so many weights at most
        // (`stage3_max_live_parameters`).
        let largest =
            if run.stack == Stack::MegatronEarly { largest.min(MOST_LIVE) } else { largest };
        let learns = f64::from(u8::from(run.task == Task::Full));
        let end = if stage.last { self.output.max(self.embedding) } else { self.embedding };
        let end = if stage.first || stage.last { end } else { 0.0 };
        // As it is made in 16 bits, and as it is sent.
        let gradient = learns * (2.0 + f64::from(run.layout.reduce_bytes)) * largest.max(end);
        match run.layout.sharding {
            _ if !run.layout.shares_gradients() => 0.0,
            Sharding::None | Sharding::Optimizer | Sharding::Gradients => gradient,
            Sharding::Weights => 2.0 * (2.0 * largest + ends) + gradient,
        }
    }
}

/// Bytes of a weight's two moments.
fn moments_bytes(run: &Run) -> f64 {
    2.0 * f64::from(run.layout.moment_bytes)
}

/// Bytes of a weight that learns, wherever they are: in Megatron itself in 16 bits, its gradient, a
/// copy of 32 bits and the moments (`theoretical_memory_usage.py`); in FSDP weight and gradient of 32
/// bits and the moments.
pub(super) fn learning_bytes(run: &Run) -> f64 {
    let rest = if run.stack.is_megatron() { 6.0 + f64::from(run.layout.reduce_bytes) } else { 8.0 };
    rest + moments_bytes(run)
}

/// Bytes for a weight of an adapter: it learns as all do, in 16 bits with a copy of 32.
fn adapter_bytes(run: &Run, copies: u32) -> Bytes {
    let layout = &run.layout;
    let holders = f64::from(layout.holders(copies));
    let over = |least: Sharding| if layout.sharding >= least { holders } else { 1.0 };
    Bytes {
        weights: 2.0 / over(Sharding::Weights),
        gradients: f64::from(layout.reduce_bytes)
            / if layout.shares_gradients() { holders } else { 1.0 },
        optimizer: (4.0 + moments_bytes(run)) / over(Sharding::Optimizer),
    }
}

/// Copies of a weight in the precision of products.
#[derive(Debug, Clone, Copy)]
struct Quantized {
    /// Bytes of a weight.
    bytes: f64,
    /// Whether there is none in 16 bits beside.
    instead: bool,
}

impl Quantized {
    const NONE: Self = Self { bytes: 0.0, instead: false };
}

fn quantized(run: &Run) -> Quantized {
    if !run.stack.is_megatron() || run.task == Task::Lora {
        return Quantized::NONE;
    }
    // The way back multiplies by the transposed weight: tensor cores before Blackwell, and formats
    // with scales of blocks, need it a second time in that order (Transformer Engine).
    let orders = match (run.precision, run.gpu.generation) {
        (Precision::Fp8, Generation::Blackwell) => 1.0,
        _ => 2.0,
    };
    let bytes = match run.precision {
        Precision::Fp16 | Precision::Bf16 => return Quantized::NONE,
        Precision::Mxfp8 => 33.0 / 32.0,
        other => other.operand_bytes(),
    };
    // Megatron Bridge keeps weights in these formats only (`fp8_param_gather` of its recipes).
    let instead =
        run.stack == Stack::Bridge && matches!(run.precision, Precision::Fp8 | Precision::Mxfp8);
    Quantized { bytes: bytes * orders, instead }
}

/// Bytes for a weight that so many copies hold.
fn bytes(run: &Run, copies: u32, quantized: Quantized) -> Bytes {
    let layout = &run.layout;
    let group = f64::from(layout.holders(copies));
    let over = |least: Sharding| if layout.sharding >= least { group } else { 1.0 };
    let gradient_holders = if layout.shares_gradients() { group } else { 1.0 };
    if run.task == Task::Lora {
        return Bytes { weights: 2.0 / over(Sharding::Weights), gradients: 0.0, optimizer: 0.0 };
    }
    if run.stack.is_megatron() {
        let half = if quantized.instead { 0.0 } else { 2.0 };
        return Bytes {
            weights: (half + quantized.bytes) / over(Sharding::Weights),
            gradients: f64::from(layout.reduce_bytes) / gradient_holders,
            // A copy of 32 bits and the two moments.
            optimizer: (4.0 + moments_bytes(run)) / over(Sharding::Optimizer),
        };
    }
    // FSDP keeps weights in 32 bits; those in 16 stay whole where only gradients are shared.
    let weights = match layout.sharding {
        Sharding::None | Sharding::Optimizer => 4.0,
        Sharding::Gradients => 4.0 / group + 2.0,
        Sharding::Weights => 4.0 / group,
    };
    Bytes {
        weights,
        gradients: 4.0 / gradient_holders,
        optimizer: moments_bytes(run) / over(Sharding::Optimizer),
    }
}
