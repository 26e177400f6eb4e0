//! Models that are known by name.

use std::sync::LazyLock;

use farrier_facts::names;
use serde::Deserialize;

use super::{Attention, Bias, Experts, Model, Norm, Window};

/// A model of `data/planner/models.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The one name of it here.
    pub name: String,
    /// Other names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Such as `llama`.
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
    /// Weights in billions, as published.
    pub params_b: f64,
    /// Weights that a token meets in billions, as published.
    pub active_params_b: Option<f64>,
    /// Where the numbers are from.
    pub source: String,
}

impl Record {
    /// Its shape.
    pub fn model(&self) -> Model {
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
            Window::NONE
        } else {
            Window::with_global_every(self.sliding_window, self.global_every)
        };
        let experts = (self.experts > 0).then_some(Experts {
            count: self.experts,
            per_token: self.topk,
            ffn: self.expert_ffn,
            shared_ffn: self.shared_ffn,
            dense_layers: self.dense_layers,
            every: self.moe_every.max(1),
        });
        Model {
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
struct File {
    model: Vec<Record>,
}

static RECORDS: LazyLock<Vec<Record>> = LazyLock::new(|| {
    let text = include_str!(concat!(env!("OUT_DIR"), "/models.json"));
    serde_json::from_str::<File>(text).expect("a test reads the embedded models").model
});

/// All models that are known by name.
pub fn records() -> &'static [Record] {
    &RECORDS
}

/// A model by any of its names.
pub fn named(name: &str) -> Option<&'static Record> {
    let wanted = names::fold(name);
    let is_it = |record: &&Record| {
        names::fold(&record.name) == wanted
            || record.aliases.iter().any(|alias| names::fold(alias) == wanted)
    };
    records().iter().find(is_it)
}

/// Names that may have been meant.
pub fn nearest(name: &str) -> Vec<&'static str> {
    names::nearest(name, records().iter().map(|record| record.name.as_str()))
}
