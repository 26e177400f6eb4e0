//! Properties that a model family fixes and its config files do not state.

use crate::model::{Bias, Norm};

/// Where a family states its biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BiasField {
    /// Not in the config: the family always has these.
    Fixed(Bias),
    /// A field that enables biases everywhere, and its default.
    With(&'static str, bool),
    /// A field that disables biases everywhere.
    Without(&'static str),
    /// `attention_bias` and `mlp_bias`.
    Attention,
}

#[derive(Debug)]
pub(super) struct ModelFamily {
    name: &'static str,
    model_types: &'static [&'static str],
    pub(super) gated: bool,
    pub(super) norm: Norm,
    pub(super) bias: BiasField,
    /// Default of `tie_word_embeddings`.
    pub(super) tied: bool,
    /// Whether the feed-forward width defaults to 4 × hidden.
    pub(super) four_wide: bool,
    /// Defaults of the family's configuration class.
    pub(super) defaults: &'static [(&'static str, u32)],
}

const LLAMA: ModelFamily = ModelFamily {
    name: "llama",
    model_types: &["llama"],
    gated: true,
    norm: Norm::Rms,
    bias: BiasField::Attention,
    tied: false,
    four_wide: false,
    defaults: &[],
};

const GPT: ModelFamily = ModelFamily {
    name: "gpt2",
    model_types: &["gpt2"],
    gated: false,
    norm: Norm::Layer,
    bias: BiasField::Fixed(Bias::All),
    tied: true,
    four_wide: true,
    defaults: &[],
};

/// Defaults are those of the configuration classes of transformers 4.57 (`configuration_*.py`).
const FAMILIES: &[ModelFamily] = &[
    LLAMA,
    ModelFamily { name: "mistral", model_types: &["mistral"], ..LLAMA },
    ModelFamily { name: "mixtral", model_types: &["mixtral"], ..LLAMA },
    ModelFamily {
        name: "qwen",
        model_types: &["qwen2", "qwen2_moe"],
        bias: BiasField::Fixed(Bias::Qkv),
        ..LLAMA
    },
    ModelFamily {
        name: "qwen",
        model_types: &["qwen3", "qwen3_moe"],
        defaults: &[("head_dim", 128)],
        ..LLAMA
    },
    ModelFamily {
        name: "gemma",
        model_types: &["gemma"],
        tied: true,
        defaults: &[("head_dim", 256)],
        ..LLAMA
    },
    ModelFamily {
        name: "gemma2",
        model_types: &["gemma2"],
        tied: true,
        defaults: &[("head_dim", 256), ("sliding_window", 4096), ("sliding_window_pattern", 2)],
        ..LLAMA
    },
    ModelFamily {
        name: "gemma3",
        model_types: &["gemma3", "gemma3_text"],
        tied: true,
        defaults: &[
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("vocab_size", 262_208),
            ("sliding_window", 4096),
            ("sliding_window_pattern", 6),
        ],
        ..LLAMA
    },
    ModelFamily {
        name: "deepseek",
        model_types: &["deepseek_v2", "deepseek_v3", "kimi_k2"],
        ..LLAMA
    },
    GPT,
    // The width is 4 × hidden by definition (`modeling_bloom.py`); positions are computed (ALiBi).
    ModelFamily { name: "bloom", model_types: &["bloom"], ..GPT },
    ModelFamily {
        name: "gpt_neox",
        model_types: &["gpt_neox"],
        tied: false,
        four_wide: false,
        ..GPT
    },
    ModelFamily { name: "mpt", model_types: &["mpt"], bias: BiasField::Without("no_bias"), ..GPT },
    ModelFamily {
        name: "falcon",
        model_types: &["falcon", "RefinedWeb", "RefinedWebModel"],
        bias: BiasField::With("bias", false),
        ..GPT
    },
    ModelFamily { name: "phi3", model_types: &["phi3"], ..LLAMA },
    ModelFamily { name: "phi", model_types: &["phi"], tied: false, ..GPT },
    ModelFamily { name: "olmo2", model_types: &["olmo2"], ..LLAMA },
    ModelFamily {
        name: "starcoder2",
        model_types: &["starcoder2"],
        bias: BiasField::With("use_bias", true),
        four_wide: false,
        ..GPT
    },
    ModelFamily {
        name: "gpt_oss",
        model_types: &["gpt_oss"],
        bias: BiasField::Fixed(Bias::All),
        defaults: &[("head_dim", 64), ("sliding_window", 128), ("sliding_window_pattern", 2)],
        ..LLAMA
    },
    ModelFamily {
        name: "llama4",
        model_types: &["llama4", "llama4_text"],
        defaults: &[("attention_chunk_size", 8192), ("no_rope_layer_interval", 4)],
        ..LLAMA
    },
    ModelFamily {
        name: "nemotron",
        model_types: &["nemotron"],
        gated: false,
        norm: Norm::Layer,
        ..LLAMA
    },
    ModelFamily { name: "glm4_moe", model_types: &["glm4_moe"], ..LLAMA },
];

static OTHER: ModelFamily = ModelFamily { name: "", model_types: &[], ..LLAMA };

impl ModelFamily {
    /// The family of a `model_type`.
    pub(super) fn from_model_type(model_type: Option<&str>) -> &'static Self {
        let is_match = |family: &&Self| {
            model_type.is_some_and(|model_type| family.model_types.contains(&model_type))
        };
        FAMILIES.iter().find(is_match).unwrap_or(&OTHER)
    }

    /// Whether the `model_type` was recognized.
    pub(super) fn is_known(&self) -> bool {
        !self.model_types.is_empty()
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name
    }
}

/// The supported `model_type`s.
pub(super) fn names() -> String {
    let types = FAMILIES.iter().flat_map(|family| family.model_types);
    types.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
