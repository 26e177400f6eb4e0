//! The work of one GPU for one micro-batch: a block of the model, its two ends, and the optimizer.

use super::work::{Kind, Ledger, Work};
use super::{Phase, Rates, StepTime, exchange};
use crate::coefficients::Coefficients;
use crate::layout::Sharding;
use crate::model::{Attention, Bias, Experts, Parameters, adapters_of_block, attention_of_rank};
use crate::run::{Run, Stack, Task};

/// Operations for each number that pointwise work must move: a norm does about five for two
/// numbers, a gate five for three, a sum one for three. Our count.
const POINTWISE_FLOPS: f64 = 2.0;
/// Operations of Adam for each weight: its two moments 3 and 4, the step with its root, quotient and
/// decay 6. Our count.
const ADAM_FLOPS: f64 = 13.0;

/// A block with a dense feed-forward part, forward and back.
pub(super) fn dense(run: &Run, rates: &Rates, fitted: &Coefficients) -> StepTime {
    let mut time = StepTime::default();
    if run.model.dense_layers() == 0 {
        return time;
    }
    dense_work(run, rates, fitted, &mut time);
    exchange::tensor_parallel(run, rates, fitted, 2.0, &mut time);
    host(run, fitted, 0.0, &mut time);
    time
}

/// A block with experts, forward and back.
pub(super) fn mixture(run: &Run, rates: &Rates, fitted: &Coefficients) -> StepTime {
    let mut time = StepTime::default();
    let Some(experts) = run.model.experts else { return time };
    mixture_work(run, rates, fitted, experts, &mut time);
    let tensor_passes = if experts.shared_ffn > 0 { 2.0 } else { 1.0 };
    exchange::tensor_parallel(run, rates, fitted, tensor_passes, &mut time);
    exchange::expert_parallel(run, rates, fitted, experts, &mut time);
    host(run, fitted, fitted.host_expert_s * fused(run, fitted), &mut time);
    time
}

/// What a GPU computes of a dense block.
pub(crate) fn dense_work(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    ledger: &mut impl Ledger,
) {
    let width = f64::from(run.model.ffn);
    attention(run, rates, fitted, ledger);
    feed_forward(run, rates, width, ledger);
    adapters(run, rates, run.model.ffn, ledger);
    pointwise(run, rates, fitted, width, ledger);
}

/// What a GPU computes of a block with experts.
pub(crate) fn mixture_work(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    experts: Experts,
    ledger: &mut impl Ledger,
) {
    attention(run, rates, fitted, ledger);
    let mut width = f64::from(experts.per_token) * f64::from(experts.ffn);
    if experts.shared_ffn > 0 {
        let shared = f64::from(experts.shared_ffn);
        feed_forward(run, rates, shared, ledger);
        width += shared;
    }
    routed(run, rates, fitted, experts, ledger);
    adapters(run, rates, experts.shared_ffn, ledger);
    pointwise(run, rates, fitted, width, ledger);
}

/// Adapters beside a block's products, where they learn in the place of those: there, back to their
/// input and to themselves, in 16 bits.
fn adapters(run: &Run, rates: &Rates, ffn: u32, ledger: &mut impl Ledger) {
    if run.task != Task::Lora {
        return;
    }
    let weights = adapters_of_block(&run.model, run.layout.adapter_rank, ffn);
    let flops = 6.0 * run.tokens_at_once() * weights / f64::from(run.layout.tp);
    let bytes = 3.0 * 2.0 * weights / f64::from(run.layout.tp);
    let work = Work { flops, bytes, seconds: flops / rates.products_half };
    ledger.enter(Phase::Products, Kind::FeedForwardProducts, work);
}

/// A linear layer: there, back to its input, back to its weights where they learn, and again.
fn linear(run: &Run, rates: &Rates, tokens: f64, columns: f64, depth: f64) -> Work {
    let there = 1.0 + run.layout.recompute.products_again(run.layers_of_stage());
    // Operands are read in the precision of products, results written in 16 bits.
    let product = |rows: f64, columns: f64, depth: f64| Work {
        flops: 2.0 * rows * columns * depth,
        bytes: run.precision.operand_bytes() * depth * (rows + columns) + 2.0 * rows * columns,
        seconds: rates.product_s(rows, columns, depth),
    };
    let input = product(tokens, columns, depth).times(there).plus(product(tokens, depth, columns));
    match run.task {
        Task::Full => input.plus(product(columns, depth, tokens)),
        Task::Lora => input,
    }
}

/// Products and core of attention.
fn attention(run: &Run, rates: &Rates, fitted: &Coefficients, ledger: &mut impl Ledger) {
    let tokens = run.tokens_at_once();
    let hidden = f64::from(run.model.hidden);
    let split = f64::from(run.layout.tp);
    let shape = run.model.attention;
    let linear = |columns: f64, depth: f64| linear(run, rates, tokens, columns, depth);
    let once = match shape {
        Attention::Grouped { .. } => {
            let joined = shape.query_width() / split + shape.key_value_width_of_rank(run.layout.tp);
            linear(joined, hidden)
        }
        Attention::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim } => {
            let (q_rank, kv_rank) = (f64::from(q_rank), f64::from(kv_rank));
            let key_value = f64::from(heads) / split * f64::from(nope_dim + v_dim);
            let query_depth = if q_rank > 0.0 { q_rank } else { hidden };
            linear(q_rank + kv_rank + f64::from(rope_dim), hidden)
                .plus(linear(shape.query_width() / split, query_depth))
                .plus(linear(key_value, kv_rank))
        }
    };
    let out = linear(hidden, shape.value_width() / split);
    ledger.enter(Phase::Products, Kind::AttentionProducts, once.plus(out));
    ledger.enter(Phase::Attention, Kind::AttentionCore, core(run, rates, fitted));
}

/// The core of attention.
fn core(run: &Run, rates: &Rates, fitted: &Coefficients) -> Work {
    let tokens = run.tokens_at_once();
    let split = f64::from(run.layout.tp);
    let shape = run.model.attention;
    let span = run.model.window.mean_causal_span(run.seq_len);
    // Early programs masked what they had computed.
    let computed = if run.stack == Stack::MegatronEarly { f64::from(run.seq_len) } else { span };
    let width = shape.query_width() + shape.value_width();
    let head = shape.query_width() / f64::from(shape.heads());
    let slowness = (1.0 + fitted.attention_knee / f64::from(run.seq_len))
        * (1.0 + fitted.attention_head_knee / head)
        / (1.0 + fitted.attention_head_knee / 128.0);
    let again = run.layout.recompute.attention_again(run.layers_of_stage());
    // Its way back does five products where the way there does two.
    let flops = 2.0 * tokens * computed * width / split * (3.5 + again);
    // There it reads queries, keys and values and writes its result; back it reads these and the
    // result's gradient, and writes the gradients of all three. Scores stay on the chip, and keys of
    // the whole sequence pass, however it is split.
    let keys = shape.key_value_width_of_rank(run.layout.tp) * f64::from(run.layout.cp);
    let bytes = 2.0 * tokens * (width / split + keys) * (3.0 + again);
    Work { flops, bytes, seconds: flops / rates.attention * slowness }
}

fn feed_forward(run: &Run, rates: &Rates, width: f64, ledger: &mut impl Ledger) {
    let tokens = run.tokens_at_once();
    let hidden = f64::from(run.model.hidden);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let width = width / f64::from(run.layout.tp);
    let both = linear(run, rates, tokens, up * width, hidden)
        .plus(linear(run, rates, tokens, hidden, width));
    ledger.enter(Phase::Products, Kind::FeedForwardProducts, both);
}

/// Experts, with as many tokens for each as an even spread gives.
fn routed(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    experts: Experts,
    ledger: &mut impl Ledger,
) {
    let hidden = f64::from(run.model.hidden);
    // With sequence parallelism each tensor-parallel rank routes its own part of the tokens.
    let routed = run.tokens_at_once() / f64::from(run.layout.tp) * f64::from(experts.per_token);
    let local = (f64::from(experts.count) / f64::from(run.layout.ep)).max(1.0);
    let each = (routed / local).max(1.0);
    let width = f64::from(experts.ffn);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let mut products = linear(run, rates, each, up * width, hidden)
        .plus(linear(run, rates, each, hidden, width))
        .times(local);
    products.seconds /=
        if run.fused_experts { fitted.products_expert_fused } else { fitted.products_expert };
    ledger.enter(Phase::Products, Kind::ExpertProducts, products);
    let passes = fitted.expert_traffic * routed * hidden * 2.0 * fused(run, fitted);
    let biased = if run.model.bias == Bias::All {
        fitted.expert_bias_traffic * routed * up * width * 2.0
    } else {
        0.0
    };
    // Moved, not computed with.
    let moved = Work::of_memory(passes + biased, rates.memory, 0.0);
    ledger.enter(Phase::Pointwise, Kind::Pointwise, moved);
}

/// What fused kernels leave of the work around experts.
pub(super) fn fused(run: &Run, fitted: &Coefficients) -> f64 {
    if run.fused_experts { fitted.experts_fused } else { 1.0 }
}

/// Norms, activations, sums and scaling: bytes over the memory's rate.
fn pointwise(
    run: &Run,
    rates: &Rates,
    fitted: &Coefficients,
    ffn_width: f64,
    ledger: &mut impl Ledger,
) {
    let tokens = run.tokens_at_once();
    let layout = &run.layout;
    let split = f64::from(layout.tp);
    let stream = f64::from(run.model.hidden) / if layout.sequence_parallel { split } else { 1.0 };
    let shape = run.model.attention;
    let heads = shape.query_width() / split + shape.key_value_width_of_rank(layout.tp);
    let gates = if run.model.gated { 3.0 } else { 2.0 };
    // Two norms and two sums read and write the stream, positions the heads, the activation its
    // inputs and output; the way back does about twice that.
    let passes = 3.0 + layout.recompute.pointwise_again(run.layers_of_stage());
    let numbers = tokens * (10.0 * stream + 2.0 * heads + gates * ffn_width / split) * passes;
    let mut bytes = 2.0 * numbers * rates.pointwise;
    if run.stack == Stack::Tuned && run.model.gated {
        // The gate's product is computed again: two are read and one written.
        bytes += 2.0 * 3.0 * tokens * ffn_width / split * rates.pointwise;
    }
    if run.precision.is_scaled() {
        let operands = stream * 2.0 + heads + gates * ffn_width / split;
        bytes += 3.0 * tokens * operands * (2.0 + 1.0) * fitted.scaling_traffic;
    }
    let work = Work::of_memory(bytes, rates.memory, POINTWISE_FLOPS * numbers);
    ledger.enter(Phase::Pointwise, Kind::Pointwise, work);
}

/// The GPU waits where the host cannot issue a block's work in the time that the work takes.
fn host(run: &Run, fitted: &Coefficients, beside_s: f64, time: &mut StepTime) {
    let mut issue = match run.stack {
        Stack::Fsdp | Stack::Foundry => fitted.host_block_eager_s,
        _ => fitted.host_block_fused_s,
    };
    issue *= 1.0 + run.layout.recompute.products_again(run.layers_of_stage()) / 3.0;
    issue += beside_s;
    let busy = time.total_s();
    let both = (busy.powi(4) + issue.powi(4)).powf(0.25);
    time.add(Phase::Host, both - busy);
}

/// The two ends of the model: embedding, output projection and loss.
pub(crate) fn ends(run: &Run, rates: &Rates, fitted: &Coefficients, ledger: &mut impl Ledger) {
    let tokens = run.tokens_at_once();
    let split = f64::from(run.layout.tp);
    let (hidden, vocab) = (f64::from(run.model.hidden), f64::from(run.model.vocab) / split);
    let heads = 1.0 + f64::from(run.model.mtp_layers);
    let passes = match run.task {
        Task::Full => 3.0,
        Task::Lora => 2.0,
    };
    let product = Work {
        flops: 2.0 * tokens * vocab * hidden,
        bytes: 2.0 * hidden * (tokens + vocab),
        seconds: rates.product_half_s(tokens, vocab, hidden),
    };
    ledger.enter(Phase::Products, Kind::Logits, product.times(heads * passes));
    let bytes = heads * tokens * vocab * fitted.logits_traffic + tokens * hidden * 12.0;
    ledger.enter(Phase::Pointwise, Kind::Logits, Work::of_memory(bytes, rates.memory, 0.0));
}

/// A step of the optimizer over the weights that this GPU keeps the state of.
pub(crate) fn optimizer(run: &Run, rates: &Rates, fitted: &Coefficients, ledger: &mut impl Ledger) {
    if run.task == Task::Lora {
        return;
    }
    let weights = weights_per_gpu(run);
    let kept = if run.layout.sharding == Sharding::None {
        weights.total()
    } else {
        let holders = |copies: u32| f64::from(run.layout.holders(copies));
        weights.common / holders(run.layout.dp * run.layout.cp)
            + weights.routed / holders(run.layout.expert_copies())
    };
    let bytes = kept * fitted.optimizer_traffic;
    let work = Work::of_memory(bytes, rates.memory, kept * ADAM_FLOPS);
    ledger.enter(Phase::Optimizer, Kind::Optimizer, work);
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
    let mut dense = f64::from(run.model.dense_layers());
    let mut expert = f64::from(run.model.expert_layers());
    // Blocks that predict further tokens are like the last.
    *if expert > 0.0 { &mut expert } else { &mut dense } += f64::from(run.model.mtp_layers);
    let attention = attention_of_rank(&run.model, run.layout.tp);
    let blocks = (dense + expert) * (attention + parameters.norms)
        + dense * parameters.dense_ffn / tp
        + expert * (parameters.shared_ffn / tp + parameters.router);
    let ends = (parameters.embedding + parameters.output) / tp;
    let shared = f64::from(run.layout.ep);
    WeightsPerGpu { common: (blocks + ends) / pp, routed: expert * parameters.routed / shared / pp }
}
