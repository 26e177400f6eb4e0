//! Parameter counts of a model.

use super::{Attention, Bias, Norm, TransformerConfig};

/// Parameter counts, by how parallelism splits them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterCounts {
    /// Attention of one layer, split by tensor parallelism.
    pub attention: f64,
    /// Feed-forward block of one dense layer, split by tensor parallelism.
    pub dense_ffn: f64,
    /// Shared experts of one `MoE` layer, split by tensor parallelism.
    pub shared_ffn: f64,
    /// All routed experts of one `MoE` layer, split by expert parallelism.
    pub routed: f64,
    /// Router of one `MoE` layer, replicated on every rank.
    pub router: f64,
    /// Norms of one layer, replicated on every rank.
    pub norms: f64,
    /// Token and position embeddings.
    pub embedding: f64,
    /// Output projection; 0 if tied to the embedding.
    pub output: f64,
    /// All MTP layers.
    pub mtp: f64,
    /// All parameters except `mtp`.
    pub total: f64,
    /// Parameters used per token.
    pub active: f64,
}

impl ParameterCounts {
    pub fn new(model: &TransformerConfig) -> Self {
        let hidden = f64::from(model.hidden);
        let matrices = if model.gated { 3.0 } else { 2.0 };
        let block_bias = model.bias == Bias::All;
        let ffn = |width: u32| {
            let bias = if block_bias { (matrices - 1.0) * f64::from(width) + hidden } else { 0.0 };
            matrices * hidden * f64::from(width) + bias
        };
        let attention = attention(model);
        let dense_ffn = ffn(model.ffn);
        let (routed, shared_ffn, gate, used) =
            model.experts.map_or((0.0, 0.0, 0.0, 0.0), |experts| {
                let one = ffn(experts.ffn);
                let shared = if experts.shared_ffn == 0 { 0.0 } else { ffn(experts.shared_ffn) };
                let gate = hidden * f64::from(experts.count);
                let count = f64::from(experts.count);
                (one * count, shared, gate, f64::from(experts.per_token) / count)
            });
        let norms = 2.0 * norm(model);
        let embedding = hidden * f64::from(model.vocab + model.learned_positions);
        let output = if model.tied { 0.0 } else { hidden * f64::from(model.vocab) };

        let dense = f64::from(model.dense_layers());
        let expert = f64::from(model.expert_layers());
        let common = f64::from(model.layers) * (attention + norms) + norm(model);
        let always_active = common + dense * dense_ffn + expert * (shared_ffn + gate);
        let mtp = f64::from(model.mtp_layers) * mtp_block(model, attention, norms, dense_ffn);
        Self {
            attention,
            dense_ffn,
            shared_ffn,
            routed,
            router: gate,
            norms,
            embedding,
            output,
            mtp,
            total: always_active + expert * routed + embedding + output,
            active: always_active + expert * routed * used + embedding + output,
        }
    }
}

/// Attention parameters of a layer per tensor-parallel rank. Query heads are split; KV heads are
/// split down to one per rank and replicated beyond; latent projections are replicated.
pub(crate) fn attention_of_rank(model: &TransformerConfig, tp: u32) -> f64 {
    let hidden = f64::from(model.hidden);
    let ranks = f64::from(tp);
    let replicated = match model.attention {
        Attention::Grouped { kv_heads, head_dim, .. } => {
            let extra = f64::from(kv_heads.max(tp)) / f64::from(kv_heads) - 1.0;
            let key_value = 2.0 * f64::from(kv_heads) * f64::from(head_dim);
            return (attention(model) + extra * key_value * hidden) / ranks;
        }
        Attention::Latent { q_rank, kv_rank, rope_dim, .. } => {
            f64::from(q_rank) + f64::from(kv_rank) + f64::from(rope_dim)
        }
    };
    replicated * hidden + (attention(model) - replicated * hidden) / ranks
}

/// LoRA parameters of a layer with a feed-forward block of width `ffn`: adapters on all projections
/// of attention and of the feed-forward block, none on routed experts.
pub(crate) fn adapters_of_block(model: &TransformerConfig, rank: u32, ffn: u32) -> f64 {
    let (hidden, ffn) = (f64::from(model.hidden), f64::from(ffn));
    let attention = model.attention;
    let (query, value) = (attention.query_width(), attention.value_width());
    let key_value = match attention {
        Attention::Grouped { .. } => attention.key_value_width(),
        Attention::Latent { kv_rank, .. } => f64::from(kv_rank),
    };
    let up = if model.gated { 2.0 * ffn } else { ffn };
    let feed_forward = if ffn > 0.0 { hidden + up + ffn + hidden } else { 0.0 };
    f64::from(rank) * (hidden + query + key_value + value + hidden + feed_forward)
}

/// LoRA parameters of the whole model.
pub(crate) fn adapters(model: &TransformerConfig, rank: u32) -> f64 {
    let shared = model.experts.map_or(0, |experts| experts.shared_ffn);
    f64::from(model.dense_layers()) * adapters_of_block(model, rank, model.ffn)
        + f64::from(model.expert_layers()) * adapters_of_block(model, rank, shared)
}

fn norm(model: &TransformerConfig) -> f64 {
    f64::from(model.hidden)
        * match model.norm {
            Norm::Rms => 1.0,
            Norm::Layer => 2.0,
        }
}

fn attention(model: &TransformerConfig) -> f64 {
    let hidden = f64::from(model.hidden);
    match model.attention {
        Attention::Grouped { heads, kv_heads, head_dim } => {
            let query = f64::from(heads) * f64::from(head_dim);
            let key_value = 2.0 * f64::from(kv_heads) * f64::from(head_dim);
            let bias = match model.bias {
                Bias::None => 0.0,
                Bias::Qkv => query + key_value,
                Bias::All => query + key_value + hidden,
            };
            hidden * (query + key_value) + query * hidden + bias
        }
        Attention::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim } => {
            let (heads, q_rank, kv_rank) =
                (f64::from(heads), f64::from(q_rank), f64::from(kv_rank));
            let (nope, rope, value) = (f64::from(nope_dim), f64::from(rope_dim), f64::from(v_dim));
            let query = if q_rank == 0.0 {
                hidden * heads * (nope + rope)
            } else {
                q_rank * (hidden + heads * (nope + rope) + 1.0)
            };
            query
                + kv_rank * (hidden + heads * (nope + value) + 1.0)
                + hidden * rope
                + heads * value * hidden
        }
    }
}

/// An MTP layer: a layer like the last layer of the model, and a projection that joins its two
/// input streams.
fn mtp_block(model: &TransformerConfig, attention: f64, norms: f64, dense_ffn: f64) -> f64 {
    let hidden = f64::from(model.hidden);
    let feed_forward = model.experts.map_or(dense_ffn, |experts| {
        let matrices = if model.gated { 3.0 } else { 2.0 };
        let width =
            f64::from(experts.count) * f64::from(experts.ffn) + f64::from(experts.shared_ffn);
        matrices * hidden * width + hidden * f64::from(experts.count)
    });
    2.0 * hidden * hidden + attention + norms + feed_forward
}
