//! Built-in models, looked up by name.

use std::sync::LazyLock;

use farrier_facts::names;
use serde::Deserialize;

use super::{Attention, AttentionWindow, Bias, Experts, Norm, TransformerConfig};

/// An entry of `data/planner/models.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuiltinModel {
    pub name: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Model family, such as `llama`.
    pub family: String,
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    ffn: u32,
    gated: bool,
    vocab: u32,
    tied: bool,
    norm: Norm,
    bias: Bias,
    #[serde(default)]
    learned_positions: u32,
    #[serde(default)]
    sliding_window: u32,
    #[serde(default)]
    global_every: u32,
    #[serde(default)]
    experts: u32,
    #[serde(default)]
    topk: u32,
    #[serde(default)]
    expert_ffn: u32,
    #[serde(default)]
    shared_ffn: u32,
    #[serde(default)]
    dense_layers: u32,
    #[serde(default)]
    moe_every: u32,
    #[serde(default)]
    q_rank: u32,
    #[serde(default)]
    kv_rank: u32,
    #[serde(default)]
    qk_nope_dim: u32,
    #[serde(default)]
    qk_rope_dim: u32,
    #[serde(default)]
    v_dim: u32,
    #[serde(default)]
    mtp_layers: u32,
    /// Published parameter count, in billions.
    pub params_b: f64,
    /// Published active parameter count, in billions.
    pub active_params_b: Option<f64>,
    pub source: String,
}

impl BuiltinModel {
    pub fn model(&self) -> TransformerConfig {
        let attention = if self.kv_rank > 0 {
            Attention::Latent {
                heads: self.heads,
                q_rank: self.q_rank,
                kv_rank: self.kv_rank,
                nope_dim: self.qk_nope_dim,
                rope_dim: self.qk_rope_dim,
                v_dim: self.v_dim,
            }
        } else {
            Attention::Grouped {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
            }
        };
        let window = if self.sliding_window == 0 {
            AttentionWindow::NONE
        } else {
            AttentionWindow::with_global_every(self.sliding_window, self.global_every)
        };
        let experts = (self.experts > 0).then_some(Experts {
            count: self.experts,
            per_token: self.topk,
            ffn: self.expert_ffn,
            shared_ffn: self.shared_ffn,
            dense_layers: self.dense_layers,
            every: self.moe_every.max(1),
        });
        TransformerConfig {
            name: self.name.clone(),
            layers: self.layers,
            hidden: self.hidden,
            attention,
            window,
            ffn: self.ffn,
            gated: self.gated,
            vocab: self.vocab,
            tied: self.tied,
            bias: self.bias,
            norm: self.norm,
            learned_positions: self.learned_positions,
            experts,
            mtp_layers: self.mtp_layers,
        }
    }
}

#[derive(Deserialize)]
struct ModelsFile {
    model: Vec<BuiltinModel>,
}

static MODELS: LazyLock<Vec<BuiltinModel>> = LazyLock::new(|| {
    let text = include_str!(concat!(env!("OUT_DIR"), "/models.json"));
    serde_json::from_str::<ModelsFile>(text).expect("a test reads the embedded models").model
});

/// All built-in models.
pub fn all() -> &'static [BuiltinModel] {
    &MODELS
}

/// Looks up a model by name or alias.
pub fn by_name(name: &str) -> Option<&'static BuiltinModel> {
    let normalized = names::fold(name);
    let is_match = |model: &&BuiltinModel| {
        names::fold(&model.name) == normalized
            || model.aliases.iter().any(|alias| names::fold(alias) == normalized)
    };
    all().iter().find(is_match)
}

/// Similar names, for "did you mean" hints.
pub fn nearest(name: &str) -> Vec<&'static str> {
    names::nearest(name, all().iter().map(|model| model.name.as_str()))
}
