//! The work of one GPU for one micro-batch: a block of the model, its two ends, and the optimizer.

use super::exchange;
use super::{Phase, Rates, StepTime};
use crate::coefficients::Coefficients;
use crate::layout::Sharding;
use crate::model::{Attention, Bias, Experts, Parameters};
use crate::run::{Run, Stack, Task};

/// A block with a dense feed-forward part, forward and back.
pub(super) fn dense(run: &Run, rates: &Rates, fitted: &Coefficients) -> StepTime {
    let mut time = StepTime::default();
    if run.model.dense_layers() == 0 {
        return time;
    }
    attention(run, rates, fitted, &mut time);
    let split = f64::from(run.layout.tp);
    feed_forward(run, rates, f64::from(run.model.ffn), split, &mut time);
    pointwise(run, rates, fitted, f64::from(run.model.ffn), &mut time);
    exchange::tensor_parallel(run, rates, fitted, 2.0, &mut time);
    host(run, fitted, 0.0, &mut time);
    time
}

/// A block with experts, forward and back.
pub(super) fn mixture(run: &Run, rates: &Rates, fitted: &Coefficients) -> StepTime {
    let mut time = StepTime::default();
    let Some(experts) = run.model.experts else { return time };
    attention(run, rates, fitted, &mut time);
    let split = f64::from(run.layout.tp);
    let mut width = f64::from(experts.per_token) * f64::from(experts.ffn);
    if experts.shared_ffn > 0 {
        feed_forward(run, rates, f64::from(experts.shared_ffn), split, &mut time);
        width += f64::from(experts.shared_ffn);
    }
    routed(run, rates, fitted, experts, &mut time);
    pointwise(run, rates, fitted, width, &mut time);
    let tensor_passes = if experts.shared_ffn > 0 { 2.0 } else { 1.0 };
    exchange::tensor_parallel(run, rates, fitted, tensor_passes, &mut time);
    exchange::expert_parallel(run, rates, fitted, experts, &mut time);
    host(run, fitted, fitted.host_expert_s * fused(run, fitted), &mut time);
    time
}

/// Time of a linear layer: there, back to its input, back to its weights where they learn, and again.
fn linear_s(run: &Run, rates: &Rates, tokens: f64, columns: f64, depth: f64) -> f64 {
    let there = 1.0 + run.layout.recompute.products_again(run.layers_of_stage());
    let weights = match run.task {
        Task::Full => rates.product_s(columns, depth, tokens),
        Task::Lora => 0.0,
    };
    there * rates.product_s(tokens, columns, depth)
        + rates.product_s(tokens, depth, columns)
        + weights
}

/// Products and core of attention.
fn attention(run: &Run, rates: &Rates, fitted: &Coefficients, time: &mut StepTime) {
    let tokens = run.tokens_at_once();
    let hidden = f64::from(run.model.hidden);
    let split = f64::from(run.layout.tp);
    let shape = run.model.attention;
    let once = match shape {
        Attention::Grouped { .. } => {
            let joined = shape.query_width() + shape.key_value_width();
            linear_s(run, rates, tokens, joined / split, hidden)
        }
        Attention::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim } => {
            let (q_rank, kv_rank) = (f64::from(q_rank), f64::from(kv_rank));
            let heads = f64::from(heads) / split;
            let key_value = heads * f64::from(nope_dim + v_dim);
            let down = q_rank + kv_rank + f64::from(rope_dim);
            let query_depth = if q_rank > 0.0 { q_rank } else { hidden };
            linear_s(run, rates, tokens, down, hidden)
                + linear_s(run, rates, tokens, shape.query_width() / split, query_depth)
                + linear_s(run, rates, tokens, key_value, kv_rank)
        }
    };
    let out = linear_s(run, rates, tokens, hidden, shape.value_width() / split);
    time.add(Phase::Products, once + out);

    let span = run.model.window.mean_causal_span(run.seq_len);
    // Early programs masked what they had computed.
    let computed = if run.stack == Stack::MegatronEarly { f64::from(run.seq_len) } else { span };
    let width = (shape.query_width() + shape.value_width()) / split;
    let head = shape.query_width() / f64::from(shape.heads());
    let forward = 2.0 * tokens * computed * width / rates.attention
        * (1.0 + fitted.attention_knee / f64::from(run.seq_len))
        * (1.0 + fitted.attention_head_knee / head)
        / (1.0 + fitted.attention_head_knee / 128.0);
    // Its way back does five products where the way there does two.
    let passes = 3.5 + run.layout.recompute.attention_again(run.layers_of_stage());
    time.add(Phase::Attention, forward * passes);
}

fn feed_forward(run: &Run, rates: &Rates, width: f64, split: f64, time: &mut StepTime) {
    let tokens = run.tokens_at_once();
    let hidden = f64::from(run.model.hidden);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let both = linear_s(run, rates, tokens, up * width / split, hidden)
        + linear_s(run, rates, tokens, hidden, width / split);
    time.add(Phase::Products, both);
}

/// Experts, with as many tokens for each as an even spread gives.
fn routed(run: &Run, rates: &Rates, fitted: &Coefficients, experts: Experts, time: &mut StepTime) {
    let hidden = f64::from(run.model.hidden);
    // With sequence parallelism each tensor-parallel rank routes its own part of the tokens.
    let routed = run.tokens_at_once() / f64::from(run.layout.tp) * f64::from(experts.per_token);
    let local = (f64::from(experts.count) / f64::from(run.layout.ep)).max(1.0);
    let each = (routed / local).max(1.0);
    let width = f64::from(experts.ffn);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let both =
        linear_s(run, rates, each, up * width, hidden) + linear_s(run, rates, each, hidden, width);
    let rate =
        if run.fused_experts { fitted.products_expert_fused } else { fitted.products_expert };
    time.add(Phase::Products, both * local / rate);
    let passes = fitted.expert_traffic * routed * hidden * 2.0 * fused(run, fitted);
    let biased = if run.model.bias == Bias::All {
        fitted.expert_bias_traffic * routed * up * width * 2.0
    } else {
        0.0
    };
    time.add(Phase::Pointwise, (passes + biased) / rates.memory);
}

/// What fused kernels leave of the work around experts.
pub(super) fn fused(run: &Run, fitted: &Coefficients) -> f64 {
    if run.fused_experts { fitted.experts_fused } else { 1.0 }
}

/// Norms, activations, sums and scaling: bytes over the memory's rate.
fn pointwise(run: &Run, rates: &Rates, fitted: &Coefficients, ffn_width: f64, time: &mut StepTime) {
    let tokens = run.tokens_at_once();
    let layout = &run.layout;
    let split = f64::from(layout.tp);
    let stream = f64::from(run.model.hidden) / if layout.sequence_parallel { split } else { 1.0 };
    let shape = run.model.attention;
    let heads = (shape.query_width() + shape.key_value_width()) / split;
    let gates = if run.model.gated { 3.0 } else { 2.0 };
    // Of 16 bits each: two norms and two sums read and write the stream, positions the heads, the
    // activation its inputs and output; the way back does about twice that.
    let forward = 2.0 * tokens * (10.0 * stream + 2.0 * heads + gates * ffn_width / split);
    let passes = 3.0 + layout.recompute.pointwise_again(run.layers_of_stage());
    let mut bytes = forward * passes * rates.pointwise;
    if run.precision.is_scaled() {
        let operands = stream * 2.0 + heads + gates * ffn_width / split;
        bytes += 3.0 * tokens * operands * (2.0 + 1.0) * fitted.scaling_traffic;
    }
    time.add(Phase::Pointwise, bytes / rates.memory);
}

/// The GPU waits where the host cannot issue a block's work in the time that the work takes.
fn host(run: &Run, fitted: &Coefficients, beside_s: f64, time: &mut StepTime) {
    let mut issue = match run.stack {
        Stack::Fsdp => fitted.host_block_eager_s,
        _ => fitted.host_block_fused_s,
    };
    issue *= 1.0 + run.layout.recompute.products_again(run.layers_of_stage()) / 3.0;
    issue += beside_s;
    let busy = time.total_s();
    let both = (busy.powi(4) + issue.powi(4)).powf(0.25);
    time.add(Phase::Host, both - busy);
}

/// The two ends of the model: embedding, output projection and loss.
pub(super) fn ends(run: &Run, rates: &Rates, fitted: &Coefficients) -> StepTime {
    let mut time = StepTime::default();
    let tokens = run.tokens_at_once();
    let split = f64::from(run.layout.tp);
    let (hidden, vocab) = (f64::from(run.model.hidden), f64::from(run.model.vocab) / split);
    let heads = 1.0 + f64::from(run.model.mtp_layers);
    let passes = match run.task {
        Task::Full => 3.0,
        Task::Lora => 2.0,
    };
    time.add(Phase::Products, heads * passes * rates.product_half_s(tokens, vocab, hidden));
    let bytes = heads * tokens * vocab * fitted.logits_traffic + tokens * hidden * 12.0;
    time.add(Phase::Pointwise, bytes / rates.memory);
    time
}

/// A step of the optimizer over the weights that this GPU keeps the state of.
pub(super) fn optimizer(run: &Run, rates: &Rates, fitted: &Coefficients) -> f64 {
    if run.task == Task::Lora {
        return 0.0;
    }
    let weights = weights_per_gpu(run);
    let kept = if run.layout.sharding == Sharding::None {
        weights.total()
    } else {
        let holders = |copies: u32| f64::from(run.layout.holders(copies));
        weights.common / holders(run.layout.dp * run.layout.cp)
            + weights.routed / holders(run.layout.expert_copies())
    };
    kept * fitted.optimizer_traffic / rates.memory
}

/// Weights that one GPU works with, before any is shared between copies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightsPerGpu {
    /// Those copied over data- and context-parallel ranks.
    pub(crate) common: f64,
    /// Those of experts, copied over fewer.
    pub(crate) routed: f64,
}

impl WeightsPerGpu {
    pub(crate) fn total(self) -> f64 {
        self.common + self.routed
    }
}

/// On the mean stage.
pub(crate) fn weights_per_gpu(run: &Run) -> WeightsPerGpu {
    let parameters = Parameters::of(&run.model);
    let (tp, pp) = (f64::from(run.layout.tp), f64::from(run.layout.pp));
    let dense = f64::from(run.model.dense_layers());
    let expert = f64::from(run.model.expert_layers());
    let blocks = (dense + expert) * (parameters.attention / tp + parameters.norms)
        + dense * parameters.dense_ffn / tp
        + expert * (parameters.shared_ffn / tp + parameters.router);
    let ends = (parameters.embedding + parameters.output) / tp;
    let shared = f64::from(run.layout.ep);
    WeightsPerGpu { common: (blocks + ends) / pp, routed: expert * parameters.routed / shared / pp }
}
