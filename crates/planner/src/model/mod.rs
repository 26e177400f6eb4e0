//! The model: shape of a decoder-only transformer.

pub mod builtin;
pub mod config;
mod parameters;

pub use parameters::ParameterCounts;
pub(crate) use parameters::{adapters, adapters_of_block, attention_of_rank};

use serde::{Deserialize, Serialize};

/// Shape of a transformer, as far as its size and FLOPs depend on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformerConfig {
    /// Name as requested, or from the config file.
    pub name: String,
    pub layers: u32,
    pub hidden: u32,
    pub attention: Attention,
    pub window: AttentionWindow,
    pub ffn: u32,
    /// Whether the feed-forward block is gated (`SwiGLU`, `GeGLU`).
    pub gated: bool,
    /// Vocabulary size.
    pub vocab: u32,
    /// Whether the embedding is also the output projection.
    pub tied: bool,
    pub bias: Bias,
    pub norm: Norm,
    /// Learned position embeddings; 0 if positions are computed.
    pub learned_positions: u32,
    /// `None` for a dense model.
    pub experts: Option<Experts>,
    /// Multi-token prediction (MTP) layers.
    pub mtp_layers: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// Grouped-query attention; multi-head if there are as many KV heads as heads.
    Grouped { heads: u32, kv_heads: u32, head_dim: u32 },
    /// Multi-head latent attention (MLA, `DeepSeek`).
    Latent {
        heads: u32,
        /// Query latent dimension; 0 if queries are not compressed.
        q_rank: u32,
        /// Key-value latent dimension.
        kv_rank: u32,
        /// Head dimension without position embedding.
        nope_dim: u32,
        /// Head dimension with rotary position embedding.
        rope_dim: u32,
        v_dim: u32,
    },
}

impl Attention {
    pub fn heads(self) -> u32 {
        match self {
            Self::Grouped { heads, .. } | Self::Latent { heads, .. } => heads,
        }
    }

    /// KV heads that tensor parallelism can split.
    pub fn kv_heads(self) -> u32 {
        match self {
            Self::Grouped { kv_heads, .. } => kv_heads,
            Self::Latent { heads, .. } => heads,
        }
    }

    pub fn query_width(self) -> f64 {
        match self {
            Self::Grouped { heads, head_dim, .. } => f64::from(heads) * f64::from(head_dim),
            Self::Latent { heads, nope_dim, rope_dim, .. } => {
                f64::from(heads) * f64::from(nope_dim + rope_dim)
            }
        }
    }

    /// Width of the concatenated attention output.
    pub fn value_width(self) -> f64 {
        match self {
            Self::Grouped { heads, head_dim, .. } => f64::from(heads) * f64::from(head_dim),
            Self::Latent { heads, v_dim, .. } => f64::from(heads) * f64::from(v_dim),
        }
    }

    /// Width of keys and values on one tensor-parallel rank. Every rank has at least one KV head.
    pub fn key_value_width_of_rank(self, tp: u32) -> f64 {
        self.key_value_width() / f64::from(tp.min(self.kv_heads()))
    }

    /// Width of keys and values together, as the attention core reads them.
    pub fn key_value_width(self) -> f64 {
        match self {
            Self::Grouped { kv_heads, head_dim, .. } => {
                2.0 * f64::from(kv_heads) * f64::from(head_dim)
            }
            Self::Latent { heads, nope_dim, rope_dim, v_dim, .. } => {
                f64::from(heads) * f64::from(nope_dim + rope_dim + v_dim)
            }
        }
    }
}

/// Sliding-window attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionWindow {
    /// Window size; 0 if no layer has a window.
    pub tokens: u32,
    /// Number of layers with full attention in each period of layers.
    pub global: u32,
    /// Number of layers in a period.
    #[serde(rename = "of")]
    pub period: u32,
}

impl AttentionWindow {
    /// Full attention in all layers.
    pub const NONE: Self = Self { tokens: 0, global: 1, period: 1 };

    /// A window in all layers except those marked `true`.
    pub fn with_global(tokens: u32, layers: &[bool]) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let every = layers.iter().position(|is_global| *is_global).map_or(0, |first| first + 1);
        let repeats = |(index, is_global): (usize, &bool)| {
            *is_global == (every > 0 && (index + 1).is_multiple_of(every))
        };
        if layers.iter().all(|is_global| *is_global) {
            return Self::NONE;
        }
        if layers.iter().enumerate().all(repeats) {
            return Self::with_global_every(tokens, count(every));
        }
        let global = layers.iter().filter(|is_global| **is_global).count();
        Self { tokens, global: count(global), period: count(layers.len()) }
    }

    /// A window in all layers except every `every`-th; in all layers if `every` is 0.
    pub fn with_global_every(tokens: u32, every: u32) -> Self {
        Self { tokens, global: u32::from(every > 0), period: every.max(1) }
    }

    /// Mean number of tokens that a token attends to under a causal mask, over all layers and
    /// positions.
    pub fn mean_causal_span(self, seq_len: u32) -> f64 {
        let seq = f64::from(seq_len);
        let window = f64::from(self.tokens);
        let all = seq / 2.0;
        if self.tokens == 0 || window >= seq {
            return all;
        }
        let within = window - window * window / (2.0 * seq);
        let global = f64::from(self.global) / f64::from(self.period.max(1));
        global * all + (1.0 - global) * within
    }
}

/// Biases of linear layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bias {
    None,
    /// On queries, keys and values.
    Qkv,
    /// On every linear layer.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// `RMSNorm`: a scale.
    Rms,
    /// `LayerNorm`: a scale and a shift.
    Layer,
}

/// Mixture of experts (`MoE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Routed experts.
    pub count: u32,
    /// Routed experts per token (top-k).
    pub per_token: u32,
    pub ffn: u32,
    /// Inner width of all shared experts together.
    pub shared_ffn: u32,
    /// Dense layers at the start of the model.
    pub dense_layers: u32,
    /// After the dense layers, every `every`-th layer is a `MoE` layer.
    pub every: u32,
}

impl TransformerConfig {
    /// `MoE` layers.
    pub fn expert_layers(&self) -> u32 {
        self.experts.map_or(0, |experts| {
            self.layers.saturating_sub(experts.dense_layers) / experts.every.max(1)
        })
    }

    /// Dense layers.
    pub fn dense_layers(&self) -> u32 {
        self.layers - self.expert_layers()
    }
}
