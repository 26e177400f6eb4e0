//! FLOPs of a training step.
//!
//! Sources count FLOPs, and therefore MFU, in different ways: with causal attention (Megatron) or
//! full attention (`PaLM`, llm-foundry), and without recomputed FLOPs (model FLOPs) or with them
//! (hardware FLOPs). At 8,192 tokens, the full count is about 1.04 (Llama 3.1 405B) to 1.13 (Llama
//! 3 8B) times the causal one, so both are reported.

use serde::Serialize;

use crate::model::ParameterCounts;
use crate::run::{TrainingRun, TrainingTask};

/// FLOPs per token of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlopsPerToken {
    /// All model FLOPs, with attention FLOPs counted under a causal mask.
    pub causal: f64,
    /// All model FLOPs, with attention FLOPs counted without a causal mask.
    pub full: f64,
    /// Like `causal`, plus recomputed FLOPs.
    pub causal_with_recompute: f64,
}

impl FlopsPerToken {
    pub fn new(run: &TrainingRun) -> Self {
        let model = &run.model;
        let linear = 2.0 * matmul_parameters(run);
        let width = model.attention.query_width() + model.attention.value_width();
        let layers = f64::from(model.layers + model.mtp_layers);
        let core = |span: f64| 2.0 * layers * width * span;
        let span = model.window.mean_causal_span(run.seq_len);
        let full_span = if model.window.tokens == 0 { f64::from(run.seq_len) } else { 2.0 * span };
        // One forward pass; the backward pass computes input gradients and, if the weights are
        // trained, weight gradients.
        let (linear_passes, core_passes) = match run.task {
            TrainingTask::Full => (3.0, 3.0),
            TrainingTask::Lora => (2.0, 3.0),
        };
        let causal = linear_passes * linear + core_passes * core(span);
        let recompute = run.parallelism.recompute;
        let stage = run.layers_per_stage();
        let heads = 1.0 + f64::from(model.mtp_layers);
        let head = 2.0 * heads * f64::from(model.hidden) * f64::from(model.vocab);
        let recomputed = recompute.recomputed_gemm_share(stage) * (linear - head)
            + recompute.recomputed_attention_share(stage) * core(span);
        Self {
            causal,
            full: linear_passes * linear + core_passes * core(full_span),
            causal_with_recompute: causal + recomputed,
        }
    }
}

/// Parameters that a token is multiplied with: the active parameters without the embedding lookup
/// and the norms.
fn matmul_parameters(run: &TrainingRun) -> f64 {
    let model = &run.model;
    let parameters = ParameterCounts::new(model);
    let (dense, expert) = (f64::from(model.dense_layers()), f64::from(model.expert_layers()));
    let used = model
        .experts
        .map_or(0.0, |experts| f64::from(experts.per_token) / f64::from(experts.count));
    let block =
        parameters.attention + parameters.shared_ffn + parameters.router + used * parameters.routed;
    let head = f64::from(model.hidden) * f64::from(model.vocab);
    let last = if expert > 0.0 { block } else { parameters.attention + parameters.dense_ffn };
    let joined = 2.0 * f64::from(model.hidden).powi(2);
    let mtp = f64::from(model.mtp_layers) * (head + joined + last);
    dense * (parameters.attention + parameters.dense_ffn) + expert * block + head + mtp
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Accelerator;
    use crate::model::builtin;
    use crate::parallelism::ParallelConfig;
    use crate::precision::Precision;
    use crate::run::Framework;

    /// Megatron Bridge publishes TFLOP/s and tokens/s; their quotient is the causal count.
    #[test]
    fn causal_count_matches_megatron() {
        let facts = farrier_facts::FactSet::embedded();
        let published = [("llama3-8b", 0.0515), ("llama3-70b", 0.4492), ("llama3.1-405b", 2.5241)];
        for (name, tflop_per_token) in published {
            let run = TrainingRun {
                model: builtin::by_name(name).unwrap().model(),
                gpu: Accelerator::by_name(facts, "H100").unwrap(),
                seq_len: 8192,
                global_batch: 8,
                precision: Precision::Bf16,
                parallelism: ParallelConfig::data_parallel(8, 1),
                task: TrainingTask::Full,
                framework: Framework::Bridge,
                fused_experts: false,
            };
            let tflop = FlopsPerToken::new(&run).causal / 1e12;
            assert!((tflop / tflop_per_token - 1.0).abs() < 0.01, "{name}: {tflop}");
        }
    }
}
