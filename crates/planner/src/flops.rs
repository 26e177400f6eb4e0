//! Arithmetic of a training step, by stated convention.
//!
//! Sources count differently, and MFU with them: with causal attention (Megatron, which counts what
//! a causal mask leaves) or full attention (`PaLM`, llm-foundry); without what is computed again
//! (model FLOPs) or with it (hardware FLOPs). At 8,192 tokens the two differ by some 10 %, so both
//! are printed.

use serde::Serialize;

use crate::model::Parameters;
use crate::run::{Run, Task};

/// FLOPs for each token of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FlopsPerToken {
    /// As a causal mask leaves them.
    pub causal: f64,
    /// As if every token looked at every other.
    pub full: f64,
    /// Causal, with what is computed again.
    pub causal_with_recompute: f64,
}

impl FlopsPerToken {
    /// Of a run.
    pub fn of(run: &Run) -> Self {
        let model = &run.model;
        let linear = 2.0 * multiplied(run);
        let width = model.attention.query_width() + model.attention.value_width();
        let layers = f64::from(model.layers + model.mtp_layers);
        let core = |span: f64| 2.0 * layers * width * span;
        let span = model.window.mean_causal_span(run.seq_len);
        let full_span = if model.window.tokens == 0 { f64::from(run.seq_len) } else { 2.0 * span };
        // There once, back twice: to the input and to the weights, where those learn.
        let (linear_passes, core_passes) = match run.task {
            Task::Full => (3.0, 3.0),
            Task::Lora => (2.0, 3.0),
        };
        let causal = linear_passes * linear + core_passes * core(span);
        let recompute = run.layout.recompute;
        let stage = run.layers_of_stage();
        let heads = 1.0 + f64::from(model.mtp_layers);
        let head = 2.0 * heads * f64::from(model.hidden) * f64::from(model.vocab);
        let again = recompute.products_again(stage) * (linear - head)
            + recompute.attention_again(stage) * core(span);
        Self {
            causal,
            full: linear_passes * linear + core_passes * core(full_span),
            causal_with_recompute: causal + again,
        }
    }
}

/// Weights that a token is multiplied with: those it meets, without the look-up of its embedding and
/// without norms.
fn multiplied(run: &Run) -> f64 {
    let model = &run.model;
    let parameters = Parameters::of(model);
    let (dense, expert) = (f64::from(model.dense_layers()), f64::from(model.expert_layers()));
    let used = model
        .experts
        .map_or(0.0, |experts| f64::from(experts.per_token) / f64::from(experts.count));
    let block =
        parameters.attention + parameters.shared_ffn + parameters.router + used * parameters.routed;
    let head = f64::from(model.hidden) * f64::from(model.vocab);
    let last = if expert > 0.0 { block } else { parameters.attention + parameters.dense_ffn };
    let joined = 2.0 * f64::from(model.hidden).powi(2);
    let further = f64::from(model.mtp_layers) * (head + joined + last);
    dense * (parameters.attention + parameters.dense_ffn) + expert * block + head + further
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Accelerator;
    use crate::layout::Layout;
    use crate::model::builtin;
    use crate::precision::Precision;
    use crate::run::Stack;

    /// Megatron Bridge publishes TFLOP/s beside tokens/s: their quotient is the causal count.
    #[test]
    fn the_causal_count_is_that_of_megatron() {
        let facts = farrier_facts::FactSet::embedded();
        let published = [("llama3-8b", 0.0515), ("llama3-70b", 0.4492), ("llama3.1-405b", 2.5241)];
        for (name, tflop_per_token) in published {
            let run = Run {
                model: builtin::named(name).unwrap().model(),
                gpu: Accelerator::named(facts, "H100").unwrap(),
                seq_len: 8192,
                global_batch: 8,
                precision: Precision::Bf16,
                layout: Layout::copies(8, 1),
                task: Task::Full,
                stack: Stack::Bridge,
                fused_experts: false,
            };
            let counted = FlopsPerToken::of(&run).causal / 1e12;
            assert!((counted / tflop_per_token - 1.0).abs() < 0.01, "{name}: {counted}");
        }
    }
}
