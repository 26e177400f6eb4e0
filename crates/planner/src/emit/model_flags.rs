//! Flags that a model's layers need beyond its shape.
//!
//! Sources: Megatron-LM `examples/post_training/modelopt/conf/` (Llama 3, Qwen, `DeepSeek`, Kimi,
//! Nemotron, gpt-oss), `examples/rl/model_configs/` (epsilon of Qwen 3), `examples/mixtral/` and
//! `tests/functional_tests/test_cases/mixtral/`, all at the commit that `VERSION` in
//! `megatron/mod.rs` names; `NeMo` `nemo/collections/llm/gpt/model/` for Llama 2, the scaling of
//! Llama 3.2, `DeepSeek` V2 and Nemotron 4; torchtitan `models/gpt_oss/model/args.py` for gpt-oss's
//! `YaRN`.

use crate::model::{TransformerConfig, builtin};

/// A flag and its value; an empty value means a flag without value.
pub(super) type FlagValue = (&'static str, &'static str);

/// Flags of a model's layers beyond its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModelFlags {
    /// Position embedding, unless learned.
    pub(super) positions: &'static str,
    /// Base of the rotary embedding, if known.
    pub(super) rotary_base: Option<&'static str>,
    /// Share of the head dimension that is rotated, if known.
    pub(super) rotary_percent: Option<&'static str>,
    /// Further flags of the layers.
    pub(super) blocks: &'static [FlagValue],
    /// Further flags of the router.
    pub(super) router: &'static [FlagValue],
}

/// How well `pretrain_gpt.py` can build a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelSupport {
    /// There are flags for every feature of the model.
    Full(ModelFlags),
    /// Only the shape of the model is known, so its other flags may be wrong or missing.
    ShapeOnly(ModelFlags),
    /// There is no flag for this feature.
    Unsupported(&'static str),
}

const ROTARY: ModelFlags = ModelFlags {
    positions: "rope",
    rotary_base: None,
    rotary_percent: Some("1.0"),
    blocks: &[],
    router: AUXILIARY_LOSS,
};

const UNKNOWN: ModelFlags = ModelFlags { rotary_percent: None, ..ROTARY };

const AUXILIARY_LOSS: &[FlagValue] =
    &[("--moe-router-load-balancing-type", "aux_loss"), ("--moe-aux-loss-coeff", "1e-3")];

/// Router flags of `DeepSeek` V3 and Kimi K2; other models use some of them.
const SIGMOID: [FlagValue; 7] = [
    ("--moe-router-load-balancing-type", "seq_aux_loss"),
    ("--moe-aux-loss-coeff", "1e-4"),
    ("--moe-router-score-function", "sigmoid"),
    ("--moe-router-enable-expert-bias", ""),
    ("--moe-router-bias-update-rate", "1e-3"),
    ("--moe-router-pre-softmax", ""),
    ("--moe-router-dtype", "fp32"),
];

const DEEPSEEK_V3: &[FlagValue] = &[
    SIGMOID[0],
    SIGMOID[1],
    SIGMOID[2],
    SIGMOID[3],
    SIGMOID[4],
    SIGMOID[5],
    SIGMOID[6],
    ("--moe-router-num-groups", "8"),
    ("--moe-router-group-topk", "4"),
    ("--moe-router-topk-scaling-factor", "2.5"),
];

const KIMI_K2: &[FlagValue] = &[
    SIGMOID[0],
    SIGMOID[1],
    SIGMOID[2],
    SIGMOID[3],
    SIGMOID[4],
    SIGMOID[5],
    SIGMOID[6],
    ("--moe-router-topk-scaling-factor", "2.827"),
];

const DEEPSEEK_V2: &[FlagValue] = &[
    SIGMOID[0],
    ("--moe-aux-loss-coeff", "1e-3"),
    SIGMOID[5],
    SIGMOID[6],
    ("--moe-router-num-groups", "8"),
    ("--moe-router-group-topk", "3"),
    ("--moe-router-topk-scaling-factor", "16.0"),
];

const DEEPSEEK_V2_LITE: &[FlagValue] = &[
    SIGMOID[0],
    ("--moe-aux-loss-coeff", "1e-3"),
    SIGMOID[5],
    ("--moe-router-topk-scaling-factor", "1.0"),
];

const MIXTRAL: &[FlagValue] =
    &[("--moe-router-load-balancing-type", "aux_loss"), ("--moe-aux-loss-coeff", "1e-2")];

const QWEN3_MIXTURE: &[FlagValue] = &[AUXILIARY_LOSS[0], AUXILIARY_LOSS[1], SIGMOID[6]];

const GPT_OSS: ModelFlags = ModelFlags {
    positions: "yarn",
    rotary_base: Some("150000"),
    blocks: &[
        ("--rotary-scaling-factor", "32"),
        ("--yarn-original-max-position-embeddings", "4096"),
        ("--quick-geglu", ""),
        ("--glu-linear-offset", "1.0"),
        ("--activation-func-clamp-value", "7.0"),
        ("--softmax-type", "learnable"),
    ],
    router: &[
        ("--moe-router-load-balancing-type", "aux_loss"),
        ("--moe-aux-loss-coeff", "0.0"),
        SIGMOID[6],
    ],
    ..ROTARY
};

impl ModelSupport {
    /// A model counts as built-in only if its shape matches, not just its name.
    pub(super) fn for_model(model: &TransformerConfig) -> Self {
        let has_same_shape = |builtin: &&builtin::BuiltinModel| {
            let builtin = builtin.model();
            TransformerConfig { name: builtin.name.clone(), ..model.clone() } == builtin
        };
        match builtin::by_name(&model.name).filter(has_same_shape) {
            Some(builtin) => Self::for_builtin(&builtin.name, &builtin.family),
            None => Self::ShapeOnly(UNKNOWN),
        }
    }

    fn for_builtin(name: &str, family: &str) -> Self {
        let rotary = |base: &'static str, blocks: &'static [FlagValue]| {
            Self::Full(ModelFlags { rotary_base: Some(base), blocks, ..ROTARY })
        };
        if let Some(what) = unsupported_feature(name, family) {
            return Self::Unsupported(what);
        }
        match (family, name) {
            // Learned positions need no rotary flags.
            ("gpt", _) => Self::Full(ROTARY),
            ("gpt-oss", _) => Self::Full(GPT_OSS),
            ("nemotron", _) => Self::Full(ModelFlags {
                rotary_base: Some("10000"),
                rotary_percent: Some("0.5"),
                blocks: &[("--squared-relu", ""), ("--apply-layernorm-1p", "")],
                ..ROTARY
            }),
            ("llama", "llama3-8b" | "llama3-70b") => rotary("500000", &[]),
            ("llama", _) if name.starts_with("llama2") => rotary("10000", &[]),
            ("llama", _) if name.starts_with("llama3.2") => {
                rotary("500000", &[("--use-rope-scaling", ""), ("--rope-scaling-factor", "32.0")])
            }
            ("llama", _) => {
                rotary("500000", &[("--use-rope-scaling", ""), ("--rope-scaling-factor", "8.0")])
            }
            ("qwen", _) => qwen(name),
            ("mistral", "mixtral-8x7b") => {
                Self::Full(ModelFlags { rotary_base: Some("1000000"), router: MIXTRAL, ..ROTARY })
            }
            ("mistral", "mixtral-8x22b") => {
                Self::ShapeOnly(ModelFlags { router: MIXTRAL, ..ROTARY })
            }
            ("deepseek" | "kimi", _) => latent(name),
            _ => Self::ShapeOnly(UNKNOWN),
        }
    }
}

fn qwen(name: &str) -> ModelSupport {
    let flags = ModelFlags {
        rotary_base: Some("1000000"),
        blocks: &[("--norm-epsilon", "1e-6")],
        router: QWEN3_MIXTURE,
        ..ROTARY
    };
    let normed = &[("--norm-epsilon", "1e-6"), ("--qk-layernorm", "")];
    if name.starts_with("qwen3-coder") {
        ModelSupport::ShapeOnly(ModelFlags { rotary_base: None, blocks: normed, ..flags })
    } else if name.starts_with("qwen3") {
        ModelSupport::Full(ModelFlags { blocks: normed, ..flags })
    } else {
        ModelSupport::Full(flags)
    }
}

/// Models with latent attention (MLA), which normalize the latents.
fn latent(name: &str) -> ModelSupport {
    let (rotary_base, blocks, router): (_, &[FlagValue], _) = match name {
        "deepseek-v2" => ("10000", yarn_v2(), DEEPSEEK_V2),
        "deepseek-v2-lite" => ("10000", yarn_v2(), DEEPSEEK_V2_LITE),
        "kimi-k2" => (
            "50000",
            &[
                ("--norm-epsilon", "1e-6"),
                ("--rotary-scaling-factor", "32"),
                ("--mscale", "1.0"),
                ("--mscale-all-dim", "1.0"),
            ],
            KIMI_K2,
        ),
        _ if name.starts_with("deepseek-v3") => (
            "10000",
            &[
                ("--norm-epsilon", "1e-6"),
                ("--rotary-scaling-factor", "40"),
                ("--mscale", "1.0"),
                ("--mscale-all-dim", "1.0"),
            ],
            DEEPSEEK_V3,
        ),
        _ => return ModelSupport::ShapeOnly(UNKNOWN),
    };
    ModelSupport::Full(ModelFlags { rotary_base: Some(rotary_base), blocks, router, ..ROTARY })
}

fn yarn_v2() -> &'static [FlagValue] {
    &[
        ("--norm-epsilon", "1e-6"),
        ("--rotary-scaling-factor", "40"),
        ("--mscale", "0.707"),
        ("--mscale-all-dim", "0.707"),
    ]
}

/// A feature of the model that `pretrain_gpt.py` has no flag for.
fn unsupported_feature(name: &str, family: &str) -> Option<&'static str> {
    Some(match family {
        "gemma" => "the scaled embedding",
        "mpt" => "ALiBi",
        "falcon" => "parallel attention and feed-forward blocks",
        "olmo" => "post-norms",
        "minimax" => "the query norm over all heads",
        "llama" if name.starts_with("llama4") => "chunked attention",
        _ => return None,
    })
}
