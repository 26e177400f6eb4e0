//! Activation memory: activations that a micro-batch stores for the backward pass, and transient
//! buffers.
//!
//! Counted after arXiv:2205.05198 (Table 2), updated to current kernels: flash attention stores no
//! scores; norms, activation functions and GEMMs store their inputs.

use super::stage::PipelineStage;
use crate::model::{Attention, Experts};
use crate::parallelism::Recompute;
use crate::run::{Framework, TrainingRun};

/// Bytes per logit while the loss is computed, as (P50, P95). Unfused: the logit in 16 bits and in
/// 32 bits, and its gradient in 32 bits.
const LOGIT_BYTES_PLAIN: (f64, f64) = (10.0, 10.0);
/// Fused with the loss: logit and gradient in 16 bits, and one 32-bit pass.
const LOGIT_BYTES_FUSED: (f64, f64) = (6.0, 6.0);
/// Fitted to torchtitan's peaks on Llama 3 without compilation (its docs/performance.md).
const LOGIT_BYTES_EAGER: (f64, f64) = (14.0, 14.0);
/// llm-foundry's fused loss writes the gradient over the logits (`inplace_backward`). The P50 is
/// the largest value with which its runs of small MPT models fit into 40 GB.
const LOGIT_BYTES_IN_PLACE: (f64, f64) = (4.0, 6.0);
/// Fitted to torchtitan's peaks on Llama 3 with compilation.
const LOGIT_BYTES_COMPILED: (f64, f64) = (12.0, 12.0);

/// Activations of one layer and one micro-batch on one GPU, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockActivations {
    /// All inputs of the backward pass. They are stored if the layer is not recomputed.
    full: f64,
    /// The layer's input. Only this is stored if the whole layer is recomputed.
    input: f64,
    /// Activations stored under the run's recompute mode.
    stored: f64,
    /// Gradients of the backward pass, and all-gathered GEMM inputs.
    transient: f64,
}

/// Activation bytes per token, by the parallelism that splits them.
#[derive(Debug, Clone, Copy, Default)]
struct TokenBytes {
    /// Split only by sequence parallelism.
    sequence_split: f64,
    /// Split by tensor parallelism.
    tensor_split: f64,
}

impl BlockActivations {
    /// A dense layer.
    pub(super) fn dense(run: &TrainingRun) -> Self {
        let width = f64::from(run.model.ffn);
        Self::new(run, |mode| feed_forward(run, mode, width), backward(run, width))
    }

    /// A `MoE` layer.
    pub(super) fn moe(run: &TrainingRun, imbalance: f64) -> Self {
        let Some(experts) = run.model.experts else { return Self::default() };
        let imbalance = if run.parallelism.ep > 1 { imbalance } else { 1.0 };
        let shared = f64::from(experts.shared_ffn);
        let copies = f64::from(experts.per_token) * imbalance;
        let hidden = f64::from(run.model.hidden);
        let per_token = |mode| {
            let shared = feed_forward(run, mode, shared);
            let routed = routed(run, mode, experts) * copies;
            // Tokens reach experts already split along the sequence.
            TokenBytes {
                sequence_split: shared.sequence_split,
                tensor_split: shared.tensor_split + routed,
            }
        };
        let back =
            backward(run, shared) + copies * (backward(run, f64::from(experts.ffn)) + 2.0 * hidden);
        Self::new(run, per_token, back)
    }

    fn new(
        run: &TrainingRun,
        feed_forward: impl Fn(Recompute) -> TokenBytes,
        backward: f64,
    ) -> Self {
        let parallelism = &run.parallelism;
        let tokens = run.tokens_per_micro_batch();
        let tp = f64::from(parallelism.tp);
        let hidden = f64::from(run.model.hidden);
        let sequence_ranks = if parallelism.sequence_parallel { tp } else { 1.0 };
        let bytes = |token: TokenBytes| {
            tokens * (token.sequence_split / sequence_ranks + token.tensor_split / tp)
        };
        let total = |mode| {
            let (attention, feed_forward) = (attention(run, mode), feed_forward(mode));
            bytes(TokenBytes {
                sequence_split: attention.sequence_split + feed_forward.sequence_split,
                tensor_split: attention.tensor_split + feed_forward.tensor_split,
            })
        };
        let input = bytes(TokenBytes { sequence_split: 2.0 * hidden, tensor_split: 0.0 });
        let full = total(match parallelism.recompute {
            Recompute::Attention => Recompute::Attention,
            _ => Recompute::None,
        });
        let stored = match parallelism.recompute {
            Recompute::Full => input,
            Recompute::EverySecond => f64::midpoint(full, input),
            Recompute::None | Recompute::Attention | Recompute::Layers(_) => full,
            mode @ (Recompute::Modules | Recompute::Operators) => total(mode),
        };
        // Sequence parallelism all-gathers GEMM inputs, one in the forward and one in the backward
        // pass.
        let gathered = if sequence_ranks > 1.0 { 2.0 * 2.0 * hidden * tokens } else { 0.0 };
        let gradients = bytes(TokenBytes { sequence_split: 2.0 * hidden, tensor_split: backward });
        Self { full, input, stored, transient: gathered + gradients }
    }
}

/// Bytes per element of a stored GEMM input.
fn operand_bytes(run: &TrainingRun) -> f64 {
    // PyTorch's FP8 GEMMs store their inputs in 16 bits.
    if run.framework.is_megatron() { run.precision.operand_bytes() } else { 2.0 }
}

/// Norms, residual stream and attention, per token.
fn attention(run: &TrainingRun, mode: Recompute) -> TokenBytes {
    let model = &run.model;
    let hidden = f64::from(model.hidden);
    let read = operand_bytes(run);
    let shape = model.attention;
    // If KV heads are replicated across ranks, each rank stores its copy.
    let tp = run.parallelism.tp;
    let key_value = shape.key_value_width_of_rank(tp) * f64::from(tp);
    let (query, value) = (shape.query_width(), shape.value_width());
    let heads = f64::from(shape.heads());
    let (latent, is_latent) = match shape {
        Attention::Grouped { .. } => (0.0, false),
        Attention::Latent { q_rank, kv_rank, rope_dim, .. } => {
            // Latents are stored before and after their norms.
            let ranks = f64::from(q_rank) + f64::from(kv_rank);
            (4.0 * ranks + 2.0 * f64::from(rope_dim), true)
        }
    };
    if mode == Recompute::Operators {
        // torchtitan stores the output of every second GEMM, here queries and values, and the
        // attention output.
        let tensor_split = 2.0 * query + key_value + 2.0 * value + 4.0 * heads;
        return TokenBytes { sequence_split: 2.0 * hidden, tensor_split };
    }
    let norm_results = if mode == Recompute::Modules { 0.0 } else { 2.0 * read * hidden };
    let projections =
        if mode == Recompute::Modules && is_latent { 0.0 } else { 2.0 * (query + key_value) };
    let result = if read < 2.0 { (2.0 + read) * value } else { 2.0 * value };
    let mut token = TokenBytes {
        sequence_split: 4.0 * hidden + norm_results + latent,
        tensor_split: projections + result + 4.0 * heads,
    };
    if run.framework == Framework::MegatronEarly {
        // Early Megatron also stores dropout masks, and for the scores the softmax output, its
        // dropout mask and the dropped-out result.
        token.sequence_split += 2.0 * hidden;
        let seq_len = f64::from(run.seq_len);
        let scores = if mode == Recompute::Attention { 0.0 } else { 5.0 * heads * seq_len };
        token.tensor_split += scores - 4.0 * heads;
    }
    token
}

/// A feed-forward block of a width, per token.
fn feed_forward(run: &TrainingRun, mode: Recompute, width: f64) -> TokenBytes {
    let hidden = f64::from(run.model.hidden);
    let read = operand_bytes(run);
    let before = if run.model.gated { 4.0 } else { 2.0 };
    match mode {
        // Stores the outputs of the first and the last of three GEMMs, or of the first of two.
        Recompute::Operators => {
            let last = if run.model.gated && width > 0.0 { 2.0 * hidden } else { 0.0 };
            TokenBytes { sequence_split: last, tensor_split: 2.0 * width }
        }
        Recompute::Modules => TokenBytes { sequence_split: 0.0, tensor_split: before * width },
        // Eager code also stores the activated gate.
        _ if run.framework == Framework::Fsdp && run.model.gated => {
            TokenBytes { sequence_split: 0.0, tensor_split: (before + 2.0 + read) * width }
        }
        // Tuned forks store the gate's inputs and recompute its output: DeepSeek V3 states it
        // (arXiv:2412.19437, 3.3.3), and Llama 3 405B does not fit its GPUs otherwise.
        _ if run.framework == Framework::Tuned && run.model.gated => {
            TokenBytes { sequence_split: 0.0, tensor_split: before * width }
        }
        _ => TokenBytes { sequence_split: 0.0, tensor_split: (before + read) * width },
    }
}

/// Stored bytes of one token that is routed to one expert.
fn routed(run: &TrainingRun, mode: Recompute, experts: Experts) -> f64 {
    let input = operand_bytes(run) * f64::from(run.model.hidden);
    // torchtitan's selective mode does not store the outputs of expert GEMMs.
    match mode {
        Recompute::Operators => input,
        _ => input + feed_forward(run, mode, f64::from(experts.ffn)).tensor_split,
    }
}

/// Gradients of a feed-forward block that are live at once, per token.
fn backward(run: &TrainingRun, width: f64) -> f64 {
    2.0 * width * if run.model.gated { 3.0 } else { 2.0 }
}

/// Stored activations of a pipeline stage and its transient backward buffers, bytes.
pub(super) fn stage_bytes(
    run: &TrainingRun,
    stage: &PipelineStage,
    dense: &BlockActivations,
    moe: &BlockActivations,
) -> (f64, f64) {
    let blocks = stage.blocks();
    let recomputed = match run.parallelism.recompute {
        Recompute::Layers(count) if blocks > 0.0 => (f64::from(count) / blocks).min(1.0),
        _ => 0.0,
    };
    let stored =
        |block: &BlockActivations| block.stored + recomputed * (block.input - block.stored);
    let (dense_blocks, expert_blocks) =
        (f64::from(stage.dense_blocks), f64::from(stage.expert_blocks));
    let all = dense_blocks * stored(dense) + expert_blocks * stored(moe);
    let working = |block: &BlockActivations, blocks: u32| {
        let recomputed = match run.parallelism.recompute {
            Recompute::None | Recompute::Attention | Recompute::Layers(0) => 0.0,
            Recompute::EverySecond | Recompute::Layers(_) => block.full - block.input,
            _ => block.full - block.stored,
        };
        if blocks == 0 { 0.0 } else { recomputed + block.transient }
    };
    let largest = working(dense, stage.dense_blocks).max(working(moe, stage.expert_blocks));
    (all * stage.in_flight, largest)
}

/// Logits and loss on the last pipeline stage, bytes, at P50 or P95.
pub(super) fn logits_bytes(run: &TrainingRun, p95: bool) -> f64 {
    let (p50_bytes, p95_bytes) = match run.framework {
        Framework::MegatronEarly | Framework::Megatron => LOGIT_BYTES_PLAIN,
        Framework::Bridge | Framework::Tuned => LOGIT_BYTES_FUSED,
        Framework::Fsdp => LOGIT_BYTES_EAGER,
        Framework::Foundry => LOGIT_BYTES_IN_PLACE,
        Framework::FsdpCompiled => LOGIT_BYTES_COMPILED,
    };
    let bytes = if p95 { p95_bytes } else { p50_bytes };
    let heads = 1.0 + f64::from(run.model.mtp_layers);
    let vocabulary = f64::from(run.model.vocab) / f64::from(run.parallelism.tp);
    // Sequence parallelism all-gathers the input, and its gradient is not yet reduce-scattered.
    let gathers = run.parallelism.sequence_parallel && run.parallelism.tp > 1;
    let gathered = if gathers { 4.0 * f64::from(run.model.hidden) } else { 0.0 };
    heads * run.tokens_per_micro_batch() * (vocabulary * bytes + gathered)
}
