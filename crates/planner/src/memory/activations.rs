//! What is kept of a micro-batch for the way back, and what the way back needs beside.
//!
//! Counted after arXiv:2205.05198 (Table 2), for blocks as they are today: the core of attention
//! keeps no scores, norms and activations keep their inputs, products keep theirs.

use super::stage::Stage;
use crate::layout::Recompute;
use crate::model::{Attention, Experts};
use crate::run::{Run, Stack};

/// Bytes of a score of the vocabulary while the loss is computed, in half of runs and at most.
/// Where it is not fused: 16 bits, 32 bits, and the gradient.
const LOGIT_BYTES_PLAIN: (f64, f64) = (10.0, 10.0);
/// Fused with the loss: the score and its gradient in 16 bits, and a pass of it in 32.
const LOGIT_BYTES_FUSED: (f64, f64) = (6.0, 6.0);
/// Fitted to the peaks of torchtitan on Llama 3 without a compiler (its docs/performance.md).
const LOGIT_BYTES_EAGER: (f64, f64) = (14.0, 14.0);
/// The loss of llm-foundry writes the gradient over the scores (`inplace_backward` of its fused
/// loss): the most that lets its runs of small MPT models fit 40 GB.
const LOGIT_BYTES_IN_PLACE: (f64, f64) = (4.0, 6.0);
/// Fitted to the peaks of torchtitan on Llama 3, likewise.
const LOGIT_BYTES_COMPILED: (f64, f64) = (12.0, 12.0);

/// Activations of one block and one micro-batch on one GPU, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockActivations {
    /// All that the way back reads.
    whole: f64,
    /// Only what the block reads.
    input: f64,
    /// What is kept in the run's mode.
    kept: f64,
    /// Gradients on the way back, and what is gathered for products.
    transient: f64,
}

/// Bytes of a token.
#[derive(Debug, Clone, Copy, Default)]
struct Token {
    /// Split by tensor parallelism only along the sequence.
    spread: f64,
    /// Split by tensor parallelism.
    split: f64,
}

impl BlockActivations {
    /// Of a block with a dense feed-forward part.
    pub(super) fn dense(run: &Run) -> Self {
        let width = f64::from(run.model.ffn);
        Self::of(run, |mode| feed_forward(run, mode, width), backward(run, width))
    }

    /// Of a block with experts.
    pub(super) fn mixture(run: &Run, imbalance: f64) -> Self {
        let Some(experts) = run.model.experts else { return Self::default() };
        let imbalance = if run.layout.ep > 1 { imbalance } else { 1.0 };
        let shared = f64::from(experts.shared_ffn);
        let copies = f64::from(experts.per_token) * imbalance;
        let hidden = f64::from(run.model.hidden);
        let part = |mode| {
            let own = feed_forward(run, mode, shared);
            let routed = routed(run, mode, experts) * copies;
            // Tokens reach experts already split along the sequence.
            Token { spread: own.spread, split: own.split + routed }
        };
        let back =
            backward(run, shared) + copies * (backward(run, f64::from(experts.ffn)) + 2.0 * hidden);
        Self::of(run, part, back)
    }

    fn of(run: &Run, feed_forward: impl Fn(Recompute) -> Token, backward: f64) -> Self {
        let layout = &run.layout;
        let tokens = run.tokens_at_once();
        let tp = f64::from(layout.tp);
        let hidden = f64::from(run.model.hidden);
        let along = if layout.sequence_parallel { tp } else { 1.0 };
        let bytes = |token: Token| tokens * (token.spread / along + token.split / tp);
        let all = |mode| {
            let (attention, feed_forward) = (attention(run, mode), feed_forward(mode));
            bytes(Token {
                spread: attention.spread + feed_forward.spread,
                split: attention.split + feed_forward.split,
            })
        };
        let input = bytes(Token { spread: 2.0 * hidden, split: 0.0 });
        let whole = all(match layout.recompute {
            Recompute::Attention => Recompute::Attention,
            _ => Recompute::None,
        });
        let kept = match layout.recompute {
            Recompute::Full => input,
            Recompute::EverySecond => f64::midpoint(whole, input),
            Recompute::None | Recompute::Attention | Recompute::Layers(_) => whole,
            mode @ (Recompute::Modules | Recompute::Operators) => all(mode),
        };
        // With sequence parallelism the inputs of products are gathered, one there, one back.
        let gathered = if along > 1.0 { 2.0 * 2.0 * hidden * tokens } else { 0.0 };
        let gradients = bytes(Token { spread: 2.0 * hidden, split: backward });
        Self { whole, input, kept, transient: gathered + gradients }
    }
}

/// Bytes of what a product reads, as it is kept.
fn operand_bytes(run: &Run) -> f64 {
    // PyTorch's products in 8 bits keep what they read in 16.
    if run.stack.is_megatron() { run.precision.operand_bytes() } else { 2.0 }
}

/// Norms, residual stream and attention, of a token.
fn attention(run: &Run, mode: Recompute) -> Token {
    let model = &run.model;
    let hidden = f64::from(model.hidden);
    let read = operand_bytes(run);
    let shape = model.attention;
    // Heads of keys and values that several ranks hold are kept by each.
    let tp = run.layout.tp;
    let key_value = shape.key_value_width_of_rank(tp) * f64::from(tp);
    let (query, value) = (shape.query_width(), shape.value_width());
    let heads = f64::from(shape.heads());
    let (latent, is_latent) = match shape {
        Attention::Grouped { .. } => (0.0, false),
        Attention::Latent { q_rank, kv_rank, rope_dim, .. } => {
            // Before and after their norms.
            let ranks = f64::from(q_rank) + f64::from(kv_rank);
            (4.0 * ranks + 2.0 * f64::from(rope_dim), true)
        }
    };
    if mode == Recompute::Operators {
        // torchtitan keeps every second product, here queries and values, and the core's result.
        let split = 2.0 * query + key_value + 2.0 * value + 4.0 * heads;
        return Token { spread: 2.0 * hidden, split };
    }
    let norm_results = if mode == Recompute::Modules { 0.0 } else { 2.0 * read * hidden };
    let projections =
        if mode == Recompute::Modules && is_latent { 0.0 } else { 2.0 * (query + key_value) };
    let result = if read < 2.0 { (2.0 + read) * value } else { 2.0 * value };
    let mut token = Token {
        spread: 4.0 * hidden + norm_results + latent,
        split: projections + result + 4.0 * heads,
    };
    if run.stack == Stack::MegatronEarly {
        // Masks of dropout, and scores: their softmax, its mask and what remains of it.
        token.spread += 2.0 * hidden;
        let seq_len = f64::from(run.seq_len);
        let scores = if mode == Recompute::Attention { 0.0 } else { 5.0 * heads * seq_len };
        token.split += scores - 4.0 * heads;
    }
    token
}

/// A feed-forward part of a width, of a token.
fn feed_forward(run: &Run, mode: Recompute, width: f64) -> Token {
    let hidden = f64::from(run.model.hidden);
    let read = operand_bytes(run);
    let before = if run.model.gated { 4.0 } else { 2.0 };
    match mode {
        // The first product of three and the last, or the first of two.
        Recompute::Operators => {
            let last = if run.model.gated && width > 0.0 { 2.0 * hidden } else { 0.0 };
            Token { spread: last, split: 2.0 * width }
        }
        Recompute::Modules => Token { spread: 0.0, split: before * width },
        // Eager code keeps the gate's activation beside the product with it.
        _ if run.stack == Stack::Fsdp && run.model.gated => {
            Token { spread: 0.0, split: (before + 2.0 + read) * width }
        }
        // Tuned forks keep what the gate reads and compute its product again: so says DeepSeek V3
        // (arXiv:2412.19437, 3.3.3), and Llama 3 405B does not fit its GPUs without.
        _ if run.stack == Stack::Tuned && run.model.gated => {
            Token { spread: 0.0, split: before * width }
        }
        _ => Token { spread: 0.0, split: (before + read) * width },
    }
}

/// One copy of a token at one expert.
fn routed(run: &Run, mode: Recompute, experts: Experts) -> f64 {
    let arrived = operand_bytes(run) * f64::from(run.model.hidden);
    // Products of experts are not among those that are kept as operators.
    match mode {
        Recompute::Operators => arrived,
        _ => arrived + feed_forward(run, mode, f64::from(experts.ffn)).split,
    }
}

/// Gradients of a feed-forward part that exist at once, of a token.
fn backward(run: &Run, width: f64) -> f64 {
    2.0 * width * if run.model.gated { 3.0 } else { 2.0 }
}

/// What a stage keeps, and what it needs beside on the way back, bytes.
pub(super) fn of_stage(
    run: &Run,
    stage: &Stage,
    dense: &BlockActivations,
    mixture: &BlockActivations,
) -> (f64, f64) {
    let blocks = stage.blocks();
    let again = match run.layout.recompute {
        Recompute::Layers(count) if blocks > 0.0 => (f64::from(count) / blocks).min(1.0),
        _ => 0.0,
    };
    let kept = |block: &BlockActivations| block.kept + again * (block.input - block.kept);
    let (dense_blocks, expert_blocks) =
        (f64::from(stage.dense_blocks), f64::from(stage.expert_blocks));
    let all = dense_blocks * kept(dense) + expert_blocks * kept(mixture);
    let working = |block: &BlockActivations, blocks: u32| {
        let recomputed = match run.layout.recompute {
            Recompute::None | Recompute::Attention | Recompute::Layers(0) => 0.0,
            Recompute::EverySecond | Recompute::Layers(_) => block.whole - block.input,
            _ => block.whole - block.kept,
        };
        if blocks == 0 { 0.0 } else { recomputed + block.transient }
    };
    let most = working(dense, stage.dense_blocks).max(working(mixture, stage.expert_blocks));
    (all * stage.in_flight, most)
}

/// What the last stage needs for the loss, bytes: in half of runs, or at most.
pub(super) fn logits_bytes(run: &Run, at_most: bool) -> f64 {
    let (half, most) = match run.stack {
        Stack::MegatronEarly | Stack::Megatron => LOGIT_BYTES_PLAIN,
        Stack::Bridge | Stack::Tuned => LOGIT_BYTES_FUSED,
        Stack::Fsdp => LOGIT_BYTES_EAGER,
        Stack::Foundry => LOGIT_BYTES_IN_PLACE,
        Stack::FsdpCompiled => LOGIT_BYTES_COMPILED,
    };
    let each = if at_most { most } else { half };
    let heads = 1.0 + f64::from(run.model.mtp_layers);
    let vocabulary = f64::from(run.model.vocab) / f64::from(run.layout.tp);
    // With sequence parallelism its input is gathered, and the gradient of that not yet reduced.
    let gathers = run.layout.sequence_parallel && run.layout.tp > 1;
    let gathered = if gathers { 4.0 * f64::from(run.model.hidden) } else { 0.0 };
    heads * run.tokens_at_once() * (vocabulary * each + gathered)
}
