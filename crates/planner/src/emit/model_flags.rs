//! What the shape of a model does not say and its blocks need all the same.
//!
//! Sources: Megatron-LM `examples/post_training/modelopt/conf/` (Llama 3, Qwen, `DeepSeek`, Kimi,
//! Nemotron, gpt-oss), `examples/rl/model_configs/` (epsilon of Qwen 3), `examples/mixtral/` and
//! `tests/functional_tests/test_cases/mixtral/`, all at the commit of [`super::megatron::PROGRAM`];
//! `NeMo` `nemo/collections/llm/gpt/model/` for Llama 2, the scaling of Llama 3.2, `DeepSeek` V2 and
//! Nemotron 4; torchtitan `models/gpt_oss/model/args.py` for gpt-oss's `YaRN`.

use crate::model::{Model, builtin};

/// A flag and its value; without a value where that is empty.
pub(super) type Known = (&'static str, &'static str);

/// What is known of a model's blocks beyond their shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Details {
    /// How positions are told apart, where they are computed.
    pub(super) positions: &'static str,
    /// The base of rotary positions, if it is known.
    pub(super) rotary_base: Option<&'static str>,
    /// The share of a head that is rotated, if it is known.
    pub(super) rotary_percent: Option<&'static str>,
    /// Further flags of the blocks.
    pub(super) blocks: &'static [Known],
    /// Further flags of the router.
    pub(super) router: &'static [Known],
}

/// What Megatron can build of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocks {
    /// All of it.
    Known(Details),
    /// Its shape; the rest is not known here.
    Shape(Details),
    /// Not this.
    Not(&'static str),
}

const ROTARY: Details = Details {
    positions: "rope",
    rotary_base: None,
    rotary_percent: Some("1.0"),
    blocks: &[],
    router: AUXILIARY_LOSS,
};

const UNKNOWN: Details = Details { rotary_percent: None, ..ROTARY };

const AUXILIARY_LOSS: &[Known] =
    &[("--moe-router-load-balancing-type", "aux_loss"), ("--moe-aux-loss-coeff", "1e-3")];

/// Shared by `DeepSeek` V3 and Kimi K2.
const SIGMOID: [Known; 7] = [
    ("--moe-router-load-balancing-type", "seq_aux_loss"),
    ("--moe-aux-loss-coeff", "1e-4"),
    ("--moe-router-score-function", "sigmoid"),
    ("--moe-router-enable-expert-bias", ""),
    ("--moe-router-bias-update-rate", "1e-3"),
    ("--moe-router-pre-softmax", ""),
    ("--moe-router-dtype", "fp32"),
];

const DEEPSEEK_V3: &[Known] = &[
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

const KIMI_K2: &[Known] = &[
    SIGMOID[0],
    SIGMOID[1],
    SIGMOID[2],
    SIGMOID[3],
    SIGMOID[4],
    SIGMOID[5],
    SIGMOID[6],
    ("--moe-router-topk-scaling-factor", "2.827"),
];

const DEEPSEEK_V2: &[Known] = &[
    SIGMOID[0],
    ("--moe-aux-loss-coeff", "1e-3"),
    SIGMOID[5],
    SIGMOID[6],
    ("--moe-router-num-groups", "8"),
    ("--moe-router-group-topk", "3"),
    ("--moe-router-topk-scaling-factor", "16.0"),
];

const DEEPSEEK_V2_LITE: &[Known] = &[
    SIGMOID[0],
    ("--moe-aux-loss-coeff", "1e-3"),
    SIGMOID[5],
    ("--moe-router-topk-scaling-factor", "1.0"),
];

const MIXTRAL: &[Known] =
    &[("--moe-router-load-balancing-type", "aux_loss"), ("--moe-aux-loss-coeff", "1e-2")];

const QWEN3_MIXTURE: &[Known] = &[AUXILIARY_LOSS[0], AUXILIARY_LOSS[1], SIGMOID[6]];

const GPT_OSS: Details = Details {
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

impl Blocks {
    /// Of a model. One that only has the name of another is not taken for it.
    pub(super) fn of(model: &Model) -> Self {
        let same = |record: &&builtin::Record| {
            let known = record.model();
            Model { name: known.name.clone(), ..model.clone() } == known
        };
        match builtin::named(&model.name).filter(same) {
            Some(record) => Self::of_record(&record.name, &record.family),
            None => Self::Shape(UNKNOWN),
        }
    }

    fn of_record(name: &str, family: &str) -> Self {
        let rotary = |base: &'static str, blocks: &'static [Known]| {
            Self::Known(Details { rotary_base: Some(base), blocks, ..ROTARY })
        };
        if let Some(what) = not_built(name, family) {
            return Self::Not(what);
        }
        match (family, name) {
            // Learned positions: nothing is missing.
            ("gpt", _) => Self::Known(ROTARY),
            ("gpt-oss", _) => Self::Known(GPT_OSS),
            ("nemotron", _) => Self::Known(Details {
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
                Self::Known(Details { rotary_base: Some("1000000"), router: MIXTRAL, ..ROTARY })
            }
            ("mistral", "mixtral-8x22b") => Self::Shape(Details { router: MIXTRAL, ..ROTARY }),
            ("deepseek" | "kimi", _) => latent(name),
            _ => Self::Shape(UNKNOWN),
        }
    }
}

fn qwen(name: &str) -> Blocks {
    let details = Details {
        rotary_base: Some("1000000"),
        blocks: &[("--norm-epsilon", "1e-6")],
        router: QWEN3_MIXTURE,
        ..ROTARY
    };
    let normed = &[("--norm-epsilon", "1e-6"), ("--qk-layernorm", "")];
    if name.starts_with("qwen3-coder") {
        Blocks::Shape(Details { rotary_base: None, blocks: normed, ..details })
    } else if name.starts_with("qwen3") {
        Blocks::Known(Details { blocks: normed, ..details })
    } else {
        Blocks::Known(details)
    }
}

/// Models with latent attention: their norms are those of the latents.
fn latent(name: &str) -> Blocks {
    let (rotary_base, blocks, router): (_, &[Known], _) = match name {
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
        _ => return Blocks::Shape(UNKNOWN),
    };
    Blocks::Known(Details { rotary_base: Some(rotary_base), blocks, router, ..ROTARY })
}

fn yarn_v2() -> &'static [Known] {
    &[
        ("--norm-epsilon", "1e-6"),
        ("--rotary-scaling-factor", "40"),
        ("--mscale", "0.707"),
        ("--mscale-all-dim", "0.707"),
    ]
}

/// What `pretrain_gpt.py` has no flag for.
fn not_built(name: &str, family: &str) -> Option<&'static str> {
    Some(match family {
        "gemma" => "the scaled embedding",
        "mpt" => "the linear biases of attention (ALiBi)",
        "falcon" => "attention beside the feed-forward block",
        "olmo" => "the norms behind attention and feed-forward blocks",
        "minimax" => "the norm over all heads of queries",
        "llama" if name.starts_with("llama4") => "attention in chunks",
        _ => return None,
    })
}
