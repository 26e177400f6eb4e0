//! Cost of the parts of a step on one GPU. For one micro-batch: a transformer layer, and embedding
//! and loss. Once per step: the optimizer.

use super::cost::{CostSink, OpCost, OpKind};
use super::{AchievedRates, StepPhase, StepTime, collectives};
use crate::coefficients::Coefficients;
use crate::model::{
    Attention, Bias, Experts, ParameterCounts, adapters_of_block, attention_of_rank,
};
use crate::parallelism::Sharding;
use crate::run::{Framework, TrainingRun, TrainingTask};

/// Estimated FLOPs of pointwise operations per element that they read or write. This is an estimate
/// from 5 FLOPs per 2 elements for a norm (one element read, one written), 5 per 3 for a gated
/// activation, and 1 per 3 for a residual sum.
const POINTWISE_FLOPS: f64 = 2.0;
/// FLOPs of Adam per weight. These are 3 for the first moment, 4 for the second moment, and 6 for
/// the update (square root, division, weight decay).
const ADAM_FLOPS: f64 = 13.0;

/// Time of a dense layer, forward and backward, including exposed communication and host time.
pub(super) fn dense(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
) -> StepTime {
    let mut time = StepTime::default();
    if run.model.dense_layers() == 0 {
        return time;
    }
    dense_work(run, rates, coefficients, &mut time);
    collectives::tensor_parallel(run, rates, coefficients, 2.0, &mut time);
    host(run, coefficients, 0.0, &mut time);
    time
}

/// Time of a `MoE` layer, forward and backward, including exposed communication and host time.
pub(super) fn moe(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
) -> StepTime {
    let mut time = StepTime::default();
    let Some(experts) = run.model.experts else { return time };
    moe_work(run, rates, coefficients, experts, &mut time);
    let tensor_passes = if experts.shared_ffn > 0 { 2.0 } else { 1.0 };
    collectives::tensor_parallel(run, rates, coefficients, tensor_passes, &mut time);
    collectives::expert_parallel(run, rates, coefficients, experts, &mut time);
    host(
        run,
        coefficients,
        coefficients.host_expert_s * fused_factor(run, coefficients),
        &mut time,
    );
    time
}

/// Operations of a dense layer.
pub(crate) fn dense_work(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    sink: &mut impl CostSink,
) {
    let width = f64::from(run.model.ffn);
    attention(run, rates, coefficients, sink);
    feed_forward(run, rates, width, sink);
    adapters(run, rates, run.model.ffn, sink);
    pointwise(run, rates, coefficients, width, sink);
}

/// Operations of a `MoE` layer.
pub(crate) fn moe_work(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    experts: Experts,
    sink: &mut impl CostSink,
) {
    attention(run, rates, coefficients, sink);
    let mut width = f64::from(experts.per_token) * f64::from(experts.ffn);
    if experts.shared_ffn > 0 {
        let shared = f64::from(experts.shared_ffn);
        feed_forward(run, rates, shared, sink);
        width += shared;
    }
    routed(run, rates, coefficients, experts, sink);
    adapters(run, rates, experts.shared_ffn, sink);
    pointwise(run, rates, coefficients, width, sink);
}

/// Cost of a layer's LoRA adapters: forward pass, input gradient and weight gradient, in 16 bits.
fn adapters(run: &TrainingRun, rates: &AchievedRates, ffn: u32, sink: &mut impl CostSink) {
    if run.task != TrainingTask::Lora {
        return;
    }
    let weights = adapters_of_block(&run.model, run.parallelism.adapter_rank, ffn);
    let flops = 6.0 * run.tokens_per_micro_batch() * weights / f64::from(run.parallelism.tp);
    let bytes = 3.0 * 2.0 * weights / f64::from(run.parallelism.tp);
    let cost = OpCost { flops, bytes, seconds: flops / rates.gemm_16bit_flops };
    sink.record(StepPhase::Gemm, OpKind::FeedForwardGemm, cost);
}

/// Cost of a linear layer: forward pass, its recompute, input gradient and, if the layer is
/// trained, weight gradient.
fn linear(
    run: &TrainingRun,
    rates: &AchievedRates,
    tokens: f64,
    columns: f64,
    depth: f64,
) -> OpCost {
    let forward_passes =
        1.0 + run.parallelism.recompute.recomputed_gemm_share(run.layers_per_stage());
    // A GEMM reads operands in the run's precision, and writes results in 16 bits.
    let gemm = |rows: f64, columns: f64, depth: f64| OpCost {
        flops: 2.0 * rows * columns * depth,
        bytes: run.precision.operand_bytes() * depth * (rows + columns) + 2.0 * rows * columns,
        seconds: rates.gemm_s(rows, columns, depth),
    };
    let forward_and_input =
        gemm(tokens, columns, depth).times(forward_passes).plus(gemm(tokens, depth, columns));
    match run.task {
        TrainingTask::Full => forward_and_input.plus(gemm(columns, depth, tokens)),
        TrainingTask::Lora => forward_and_input,
    }
}

/// Projections and core of attention.
fn attention(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    sink: &mut impl CostSink,
) {
    let tokens = run.tokens_per_micro_batch();
    let hidden = f64::from(run.model.hidden);
    let tp = f64::from(run.parallelism.tp);
    let shape = run.model.attention;
    let linear = |columns: f64, depth: f64| linear(run, rates, tokens, columns, depth);
    let projections = match shape {
        Attention::Grouped { .. } => {
            let qkv = shape.query_width() / tp + shape.key_value_width_of_rank(run.parallelism.tp);
            linear(qkv, hidden)
        }
        Attention::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim } => {
            let (q_rank, kv_rank) = (f64::from(q_rank), f64::from(kv_rank));
            let key_value = f64::from(heads) / tp * f64::from(nope_dim + v_dim);
            let query_depth = if q_rank > 0.0 { q_rank } else { hidden };
            linear(q_rank + kv_rank + f64::from(rope_dim), hidden)
                .plus(linear(shape.query_width() / tp, query_depth))
                .plus(linear(key_value, kv_rank))
        }
    };
    let out = linear(hidden, shape.value_width() / tp);
    sink.record(StepPhase::Gemm, OpKind::AttentionGemm, projections.plus(out));
    sink.record(
        StepPhase::Attention,
        OpKind::AttentionCore,
        attention_core(run, rates, coefficients),
    );
}

fn attention_core(run: &TrainingRun, rates: &AchievedRates, coefficients: &Coefficients) -> OpCost {
    let tokens = run.tokens_per_micro_batch();
    let tp = f64::from(run.parallelism.tp);
    let shape = run.model.attention;
    let span = run.model.window.mean_causal_span(run.seq_len);
    // Early frameworks compute the full score matrix and then mask it.
    let computed =
        if run.framework == Framework::MegatronEarly { f64::from(run.seq_len) } else { span };
    let width = shape.query_width() + shape.value_width();
    let head = shape.query_width() / f64::from(shape.heads());
    let slowdown = (1.0 + coefficients.attention_knee / f64::from(run.seq_len))
        * (1.0 + coefficients.attention_head_knee / head)
        / (1.0 + coefficients.attention_head_knee / 128.0);
    let recomputed = run.parallelism.recompute.recomputed_attention_share(run.layers_per_stage());
    // The backward pass does five GEMMs where the forward pass does two.
    let flops = 2.0 * tokens * computed * width / tp * (3.5 + recomputed);
    // The forward pass reads queries, keys and values, and writes the output. The backward pass
    // also reads the output gradient, and writes the gradients of queries, keys and values. Scores
    // stay in on-chip memory. Every context-parallel rank reads the keys and values of the whole
    // sequence.
    let keys = shape.key_value_width_of_rank(run.parallelism.tp) * f64::from(run.parallelism.cp);
    let bytes = 2.0 * tokens * (width / tp + keys) * (3.0 + recomputed);
    OpCost { flops, bytes, seconds: flops / rates.attention * slowdown }
}

fn feed_forward(run: &TrainingRun, rates: &AchievedRates, width: f64, sink: &mut impl CostSink) {
    let tokens = run.tokens_per_micro_batch();
    let hidden = f64::from(run.model.hidden);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let width = width / f64::from(run.parallelism.tp);
    let both = linear(run, rates, tokens, up * width, hidden)
        .plus(linear(run, rates, tokens, hidden, width));
    sink.record(StepPhase::Gemm, OpKind::FeedForwardGemm, both);
}

/// Cost of the routed experts, if all experts get the same number of tokens.
fn routed(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    experts: Experts,
    sink: &mut impl CostSink,
) {
    let hidden = f64::from(run.model.hidden);
    // With sequence parallelism each tensor-parallel rank routes its own shard of the tokens.
    let routed =
        run.tokens_per_micro_batch() / f64::from(run.parallelism.tp) * f64::from(experts.per_token);
    let local_experts = (f64::from(experts.count) / f64::from(run.parallelism.ep)).max(1.0);
    let tokens_per_expert = (routed / local_experts).max(1.0);
    let width = f64::from(experts.ffn);
    let up = if run.model.gated { 2.0 } else { 1.0 };
    let mut gemms = linear(run, rates, tokens_per_expert, up * width, hidden)
        .plus(linear(run, rates, tokens_per_expert, hidden, width))
        .times(local_experts);
    gemms.seconds /= if run.fused_experts {
        coefficients.products_expert_fused
    } else {
        coefficients.products_expert
    };
    sink.record(StepPhase::Gemm, OpKind::ExpertGemm, gemms);
    let dispatch =
        coefficients.expert_traffic * routed * hidden * 2.0 * fused_factor(run, coefficients);
    let bias = if run.model.bias == Bias::All {
        coefficients.expert_bias_traffic * routed * up * width * 2.0
    } else {
        0.0
    };
    // Only data movement, no FLOPs.
    let moved = OpCost::memory_bound(dispatch + bias, rates.memory, 0.0);
    sink.record(StepPhase::Pointwise, OpKind::Pointwise, moved);
}

/// Factor for the host time, dispatch traffic and all-to-all of a `MoE` layer. Below 1 with fused
/// kernels, otherwise 1.
pub(super) fn fused_factor(run: &TrainingRun, coefficients: &Coefficients) -> f64 {
    if run.fused_experts { coefficients.experts_fused } else { 1.0 }
}

/// Cost of norms, activation functions, residual sums and quantization, all of which are limited by
/// memory bandwidth.
fn pointwise(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    ffn_width: f64,
    sink: &mut impl CostSink,
) {
    let tokens = run.tokens_per_micro_batch();
    let parallelism = &run.parallelism;
    let tp = f64::from(parallelism.tp);
    let residual =
        f64::from(run.model.hidden) / if parallelism.sequence_parallel { tp } else { 1.0 };
    let shape = run.model.attention;
    let heads = shape.query_width() / tp + shape.key_value_width_of_rank(parallelism.tp);
    let gates = if run.model.gated { 3.0 } else { 2.0 };
    // Two norms and two residual sums read and write the residual stream. Position embeddings read
    // and write the heads. The activation function reads its inputs and writes its output. The
    // backward pass moves about twice as much.
    let passes = 3.0 + parallelism.recompute.recomputed_pointwise_share(run.layers_per_stage());
    let elements = tokens * (10.0 * residual + 2.0 * heads + gates * ffn_width / tp) * passes;
    let mut bytes = 2.0 * elements * rates.pointwise;
    if run.framework == Framework::Tuned && run.model.gated {
        // Tuned frameworks recompute the gated activation, which reads two inputs and writes one
        // output.
        bytes += 2.0 * 3.0 * tokens * ffn_width / tp * rates.pointwise;
    }
    if run.precision.is_scaled() {
        let operands = residual * 2.0 + heads + gates * ffn_width / tp;
        bytes += 3.0 * tokens * operands * (2.0 + 1.0) * coefficients.scaling_traffic;
    }
    let cost = OpCost::memory_bound(bytes, rates.memory, POINTWISE_FLOPS * elements);
    sink.record(StepPhase::Pointwise, OpKind::Pointwise, cost);
}

/// Adds the time that the GPU waits because the host launches a layer's kernels more slowly than
/// the GPU runs them.
fn host(run: &TrainingRun, coefficients: &Coefficients, additional_s: f64, time: &mut StepTime) {
    let mut launch_s = match run.framework {
        Framework::Fsdp | Framework::Foundry => coefficients.host_block_eager_s,
        _ => coefficients.host_block_fused_s,
    };
    launch_s *= 1.0 + run.parallelism.recompute.recomputed_gemm_share(run.layers_per_stage()) / 3.0;
    launch_s += additional_s;
    let busy = time.total_s();
    let both = (busy.powi(4) + launch_s.powi(4)).powf(0.25);
    time.add(StepPhase::Host, both - busy);
}

/// Cost of embedding, output projection and loss.
pub(crate) fn embedding_and_loss(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    sink: &mut impl CostSink,
) {
    let tokens = run.tokens_per_micro_batch();
    let tp = f64::from(run.parallelism.tp);
    let (hidden, vocab) = (f64::from(run.model.hidden), f64::from(run.model.vocab) / tp);
    let heads = 1.0 + f64::from(run.model.mtp_layers);
    let passes = match run.task {
        TrainingTask::Full => 3.0,
        TrainingTask::Lora => 2.0,
    };
    let gemm = OpCost {
        flops: 2.0 * tokens * vocab * hidden,
        bytes: 2.0 * hidden * (tokens + vocab),
        seconds: rates.gemm_16bit_s(tokens, vocab, hidden),
    };
    sink.record(StepPhase::Gemm, OpKind::Logits, gemm.times(heads * passes));
    let bytes = heads * tokens * vocab * coefficients.logits_traffic + tokens * hidden * 12.0;
    sink.record(
        StepPhase::Pointwise,
        OpKind::Logits,
        OpCost::memory_bound(bytes, rates.memory, 0.0),
    );
}

/// Cost of an optimizer step over the weights whose optimizer state this GPU holds.
pub(crate) fn optimizer(
    run: &TrainingRun,
    rates: &AchievedRates,
    coefficients: &Coefficients,
    sink: &mut impl CostSink,
) {
    if run.task == TrainingTask::Lora {
        return;
    }
    let weights = weights_per_gpu(run);
    let owned = if run.parallelism.sharding == Sharding::None {
        weights.total()
    } else {
        let shards = |replicas: u32| f64::from(run.parallelism.shard_group_size(replicas));
        weights.common / shards(run.parallelism.dp * run.parallelism.cp)
            + weights.routed / shards(run.parallelism.expert_replicas())
    };
    let bytes = owned * coefficients.optimizer_traffic;
    let cost = OpCost::memory_bound(bytes, rates.memory, owned * ADAM_FLOPS);
    sink.record(StepPhase::Optimizer, OpKind::Optimizer, cost);
}

/// Weights per GPU, before sharding across data-parallel replicas.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightsPerGpu {
    /// All weights except those of routed experts. They are replicated over DP × CP ranks.
    pub(crate) common: f64,
    /// Weights of routed experts. They have fewer replicas than `common`, because EP shards them.
    pub(crate) routed: f64,
}

impl WeightsPerGpu {
    pub(crate) fn total(self) -> f64 {
        self.common + self.routed
    }
}

/// Weights per GPU of the mean pipeline stage.
pub(crate) fn weights_per_gpu(run: &TrainingRun) -> WeightsPerGpu {
    let parameters = ParameterCounts::new(&run.model);
    let (tp, pp) = (f64::from(run.parallelism.tp), f64::from(run.parallelism.pp));
    let mut dense = f64::from(run.model.dense_layers());
    let mut expert = f64::from(run.model.expert_layers());
    // Multi-token prediction (MTP) layers have the same kind as the last layer.
    *if expert > 0.0 { &mut expert } else { &mut dense } += f64::from(run.model.mtp_layers);
    let attention = attention_of_rank(&run.model, run.parallelism.tp);
    let blocks = (dense + expert) * (attention + parameters.norms)
        + dense * parameters.dense_ffn / tp
        + expert * (parameters.shared_ffn / tp + parameters.router);
    let ends = (parameters.embedding + parameters.output) / tp;
    let ep = f64::from(run.parallelism.ep);
    WeightsPerGpu { common: (blocks + ends) / pp, routed: expert * parameters.routed / ep / pp }
}
