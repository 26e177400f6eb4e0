//! What is trained: the shape of a transformer.

pub mod builtin;
pub mod config;
mod parameters;

pub use parameters::Parameters;
pub(crate) use parameters::{adapters, adapters_of_block, attention_of_rank};

use serde::{Deserialize, Serialize};

/// A transformer, as far as its size and its work depend on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Its name, as asked for or as the file says.
    pub name: String,
    /// Transformer blocks.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// How tokens look at each other.
    pub attention: Attention,
    /// How far a token looks back.
    pub window: Window,
    /// Inner width of the dense feed-forward block.
    pub ffn: u32,
    /// Whether the feed-forward block has a gate beside its up projection (`SwiGLU`, `GeGLU`).
    pub gated: bool,
    /// Tokens that the model knows.
    pub vocab: u32,
    /// Whether the embedding is also the output projection.
    pub tied: bool,
    /// What is added to products.
    pub bias: Bias,
    /// What norms hold.
    pub norm: Norm,
    /// Learned embeddings of positions; 0 where positions are computed.
    pub learned_positions: u32,
    /// Experts, if the feed-forward block is a mixture.
    pub experts: Option<Experts>,
    /// Extra blocks that predict further tokens.
    pub mtp_layers: u32,
}

/// How tokens look at each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// Heads that share keys and values in groups (as many groups as heads: multi-head).
    Grouped {
        /// Query heads.
        heads: u32,
        /// Heads of keys and values.
        kv_heads: u32,
        /// Width of a head.
        head_dim: u32,
    },
    /// Keys and values from a narrow latent (`DeepSeek`).
    Latent {
        /// Heads.
        heads: u32,
        /// Width of the queries' latent; 0 where there is none.
        q_rank: u32,
        /// Width of the latent of keys and values.
        kv_rank: u32,
        /// Part of a query head without position.
        nope_dim: u32,
        /// Part of a query head with position.
        rope_dim: u32,
        /// Width of a value head.
        v_dim: u32,
    },
}

impl Attention {
    /// Query heads.
    pub fn heads(self) -> u32 {
        match self {
            Self::Grouped { heads, .. } | Self::Latent { heads, .. } => heads,
        }
    }

    /// Heads of keys and values, as far as they can be split.
    pub fn kv_heads(self) -> u32 {
        match self {
            Self::Grouped { kv_heads, .. } => kv_heads,
            Self::Latent { heads, .. } => heads,
        }
    }

    /// Width of all query heads together.
    pub fn query_width(self) -> f64 {
        match self {
            Self::Grouped { heads, head_dim, .. } => f64::from(heads) * f64::from(head_dim),
            Self::Latent { heads, nope_dim, rope_dim, .. } => {
                f64::from(heads) * f64::from(nope_dim + rope_dim)
            }
        }
    }

    /// Width of what all heads put out together.
    pub fn value_width(self) -> f64 {
        match self {
            Self::Grouped { heads, head_dim, .. } => f64::from(heads) * f64::from(head_dim),
            Self::Latent { heads, v_dim, .. } => f64::from(heads) * f64::from(v_dim),
        }
    }

    /// Width of keys and values on one of so many tensor-parallel ranks, each of which has a head.
    pub fn key_value_width_of_rank(self, tp: u32) -> f64 {
        self.key_value_width() / f64::from(tp.min(self.kv_heads()))
    }

    /// Width of keys and values together, as the core of attention reads them.
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

/// How far a token looks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Tokens seen by a layer that has a window; 0 where none has.
    pub tokens: u32,
    /// Layers that see all, ...
    pub global: u32,
    /// ... of every so many.
    pub of: u32,
}

impl Window {
    /// All layers see all tokens.
    pub const NONE: Self = Self { tokens: 0, global: 1, of: 1 };

    /// So many tokens, but for the layers that see all, each in its place.
    pub fn with_global(tokens: u32, layers: &[bool]) -> Self {
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        let every = layers.iter().position(|sees_all| *sees_all).map_or(0, |first| first + 1);
        let repeats = |(at, sees_all): (usize, &bool)| {
            *sees_all == (every > 0 && (at + 1).is_multiple_of(every))
        };
        if layers.iter().all(|sees_all| *sees_all) {
            return Self::NONE;
        }
        if layers.iter().enumerate().all(repeats) {
            return Self::with_global_every(tokens, count(every));
        }
        let global = layers.iter().filter(|sees_all| **sees_all).count();
        Self { tokens, global: count(global), of: count(layers.len()) }
    }

    /// So many tokens, but every so manieth layer sees all; none does if that is 0.
    pub fn with_global_every(tokens: u32, every: u32) -> Self {
        Self { tokens, global: u32::from(every > 0), of: every.max(1) }
    }

    /// Tokens that a token looks at, over all layers and places of a sequence, when each sees only
    /// those before it.
    pub fn mean_causal_span(self, seq_len: u32) -> f64 {
        let seq = f64::from(seq_len);
        let window = f64::from(self.tokens);
        let all = seq / 2.0;
        if self.tokens == 0 || window >= seq {
            return all;
        }
        let within = window - window * window / (2.0 * seq);
        let global = f64::from(self.global) / f64::from(self.of.max(1));
        global * all + (1.0 - global) * within
    }
}

/// What is added to products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bias {
    /// Nothing.
    None,
    /// A vector, to queries, keys and values.
    Qkv,
    /// A vector, to each.
    All,
}

/// What a norm holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// A scale.
    Rms,
    /// A scale and a shift.
    Layer,
}

/// A feed-forward block of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts that tokens are routed to.
    pub count: u32,
    /// Experts that a token goes to.
    pub per_token: u32,
    /// Inner width of an expert.
    pub ffn: u32,
    /// Inner width of what every token passes beside them, all together.
    pub shared_ffn: u32,
    /// Blocks at the beginning that are dense.
    pub dense_layers: u32,
    /// After those every which block is a mixture.
    pub every: u32,
}

impl Model {
    /// Blocks whose feed-forward part is a mixture of experts.
    pub fn expert_layers(&self) -> u32 {
        self.experts.map_or(0, |experts| {
            self.layers.saturating_sub(experts.dense_layers) / experts.every.max(1)
        })
    }

    /// Blocks whose feed-forward part is dense.
    pub fn dense_layers(&self) -> u32 {
        self.layers - self.expert_layers()
    }
}
