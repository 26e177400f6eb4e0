//! Parser for the `config.json` of Hugging Face models.

mod family;
mod fields;
mod unsupported;

use serde_json::Value;

use self::family::{BiasField, ModelFamily};
use self::fields::Fields;
use super::{Attention, AttentionWindow, Bias, Experts, TransformerConfig};

/// Upper limit for counts of heads and experts and for the hidden width; no real model exceeds it.
const MAX_COUNT: u32 = 1_000_000;
/// Upper limit for the number of layers; no real model exceeds it.
const MAX_LAYERS: u32 = 10_000;
/// Upper limit for the feed-forward width and the vocabulary; no real model exceeds it.
const MAX_WIDTH: u32 = 100_000_000;

const LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model"];
const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads"];
const KV_HEADS: &[&str] = &["num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads"];
const HEAD_DIM: &[&str] = &["head_dim", "kv_channels"];
const FFN: &[&str] = &["intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"];
const EXPERTS: &[&str] =
    &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];
const PER_TOKEN: &[&str] =
    &["num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k"];
const EXPERT_FFN: &[&str] = &["moe_intermediate_size", "expert_ffn_hidden_size"];
const SHARED: &[&str] = &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];
const EVERY: &[&str] = &["decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"];

/// A parsed model, and the assumptions made about it.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedConfig {
    pub model: TransformerConfig,
    /// Values assumed for fields that the file lacks, and features that were ignored.
    pub assumed: Vec<String>,
}

/// Why a `config.json` cannot be planned with.
#[derive(Debug, thiserror::Error)]
pub enum ModelConfigError {
    /// The text is not JSON.
    #[error("the config is not valid JSON; expected a Hugging Face `config.json`")]
    Json(#[from] serde_json::Error),
    /// JSON, but not an object.
    #[error(
        "the config is not a JSON object; expected one with `model_type`, `hidden_size` and similar \
         fields"
    )]
    NotAnObject,
    /// The model is not a decoder-only language model.
    #[error(
        "`{architecture}` is {kind}; supported: decoder-only transformers such as {}",
        family::names()
    )]
    Unsupported { architecture: String, kind: &'static str },
    /// A required field is missing.
    #[error("the config has no `{field}`{}", alternatives(.others))]
    Missing {
        /// The most common name.
        field: &'static str,
        /// Other accepted names.
        others: &'static [&'static str],
    },
    /// A field has an invalid value.
    #[error("`{field}` is `{value}`; expected {expected}")]
    InvalidField { field: String, value: String, expected: String },
    /// The hidden width is not divisible by the number of heads.
    #[error(
        "{heads} heads do not divide the hidden width {hidden} and there is no `head_dim`; set \
         `head_dim`, or a number of heads that divides {hidden}"
    )]
    Heads { hidden: u32, heads: u32 },
}

fn alternatives(others: &[&str]) -> String {
    if others.is_empty() {
        String::new()
    } else {
        format!("; `{}` would work too", others.join("`, `"))
    }
}

/// Parses the text of a `config.json`.
pub fn parse(text: &str) -> Result<ParsedConfig, ModelConfigError> {
    from_value(&serde_json::from_str(text)?)
}

/// Converts a parsed `config.json`.
pub fn from_value(config: &Value) -> Result<ParsedConfig, ModelConfigError> {
    let outer = config.as_object().ok_or(ModelConfigError::NotAnObject)?;
    unsupported::check_supported(outer)?;
    let inner = outer.get("text_config").and_then(Value::as_object);
    if let Some(inner) = inner {
        unsupported::check_supported(inner)?;
    }
    let object = inner.unwrap_or(outer);
    let kind = fields::text(object, "model_type").or_else(|| fields::text(outer, "model_type"));
    let family = ModelFamily::from_model_type(kind);
    let mut fields = Fields::new(object, family);
    if inner.is_some() && outer.contains_key("vision_config") {
        fields.assumed.push("only the text model; the vision encoder is ignored".to_owned());
    }
    if !family.is_known() {
        let reason = match kind {
            Some(kind) => format!("unknown family `{}`", fields::sanitized(kind)),
            None => "the config has no `model_type`".to_owned(),
        };
        fields.assumed.push(format!("layers as in Llama: {reason}"));
    }
    let model = model(&mut fields, family, name(outer))?;
    Ok(ParsedConfig { model, assumed: fields.assumed })
}

fn name(outer: &serde_json::Map<String, Value>) -> String {
    let architecture = || outer.get("architectures")?.get(0)?.as_str();
    fields::text(outer, "_name_or_path")
        .filter(|name| !name.trim().is_empty())
        .or_else(architecture)
        .or_else(|| fields::text(outer, "model_type"))
        .map_or_else(|| "config.json".to_owned(), fields::sanitized)
}

fn model(
    fields: &mut Fields<'_>,
    family: &'static ModelFamily,
    name: String,
) -> Result<TransformerConfig, ModelConfigError> {
    let layers = fields.required(LAYERS, 1, MAX_LAYERS)?;
    let hidden = fields.required(HIDDEN, 1, MAX_COUNT)?;
    let vocab = fields.required(&["vocab_size"], 1, MAX_WIDTH)?;
    let attention = attention(fields, family, hidden)?;
    let experts = experts(fields, family, layers)?;
    let ffn = dense_ffn(fields, family, hidden, experts)?;
    let gated = gated(fields, family);
    let tied = match fields.flag("tie_word_embeddings")? {
        Some(tied) => tied,
        None if family.is_known() => family.tied,
        None => {
            fields.assumed.push("output projection not tied to the embedding".to_owned());
            false
        }
    };
    let mtp_layers = fields
        .optional(&["num_nextn_predict_layers", "num_mtp_modules"], 0, MAX_COUNT)?
        .unwrap_or(0);
    Ok(TransformerConfig {
        name,
        layers,
        hidden,
        attention,
        window: window(fields, family, layers)?,
        ffn,
        gated,
        vocab,
        tied,
        bias: bias(fields, family)?,
        norm: family.norm,
        learned_positions: learned_positions(fields, family)?,
        experts,
        mtp_layers,
    })
}

fn attention(
    fields: &mut Fields<'_>,
    family: &'static ModelFamily,
    hidden: u32,
) -> Result<Attention, ModelConfigError> {
    let heads = fields.required(HEADS, 1, MAX_COUNT)?;
    let kv_rank = fields.optional(&["kv_lora_rank"], 0, MAX_COUNT)?.unwrap_or(0);
    if kv_rank > 0 {
        return Ok(Attention::Latent {
            heads,
            q_rank: fields.optional(&["q_lora_rank"], 0, MAX_COUNT)?.unwrap_or(0),
            kv_rank,
            nope_dim: fields.required(&["qk_nope_head_dim"], 1, MAX_COUNT)?,
            rope_dim: fields.required(&["qk_rope_head_dim"], 0, MAX_COUNT)?,
            v_dim: fields.required(&["v_head_dim"], 1, MAX_COUNT)?,
        });
    }
    let head_dim = match fields.optional(HEAD_DIM, 1, MAX_COUNT)? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(ModelConfigError::Heads { hidden, heads }),
    };
    let kv_heads = kv_heads(fields, family, heads)?;
    if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
        return Err(ModelConfigError::InvalidField {
            field: KV_HEADS[0].to_owned(),
            value: kv_heads.to_string(),
            expected: format!("a divisor of the {heads} heads"),
        });
    }
    Ok(Attention::Grouped { heads, kv_heads, head_dim })
}

fn kv_heads(
    fields: &mut Fields<'_>,
    family: &'static ModelFamily,
    heads: u32,
) -> Result<u32, ModelConfigError> {
    // Falcon states the number of KV heads even in its first generation, which ignores it.
    if family.is("falcon") && !fields.flag("new_decoder_architecture")?.unwrap_or(false) {
        return Ok(if fields.flag("multi_query")?.unwrap_or(true) { 1 } else { heads });
    }
    let stated = fields.optional(KV_HEADS, 1, MAX_COUNT)?;
    let nested = fields.nested("attn_config", "kv_n_heads", MAX_COUNT)?;
    Ok(stated.or(nested).unwrap_or(heads))
}

fn dense_ffn(
    fields: &mut Fields<'_>,
    family: &'static ModelFamily,
    hidden: u32,
    experts: Option<Experts>,
) -> Result<u32, ModelConfigError> {
    if family.is("llama4") {
        let stated = fields.optional(&["intermediate_size_mlp"], 1, MAX_WIDTH)?;
        if let Some(width) = stated {
            return Ok(width);
        }
    }
    if family.is("mpt") {
        let ratio = fields.optional(&["expansion_ratio"], 1, 1000)?.unwrap_or(4);
        return Ok(hidden * ratio);
    }
    match (fields.optional(FFN, 1, MAX_WIDTH)?, experts) {
        (Some(width), _) => Ok(width),
        // These families default to 4 × hidden.
        (None, _) if family.four_wide => Ok(4 * hidden),
        (None, Some(experts)) => {
            fields.assumed.push(format!("dense layers as wide as an expert, {}", experts.ffn));
            Ok(experts.ffn)
        }
        (None, None) => Err(ModelConfigError::Missing { field: FFN[0], others: &FFN[1..] }),
    }
}

fn gated(fields: &mut Fields<'_>, family: &'static ModelFamily) -> bool {
    if family.is_known() {
        return family.gated;
    }
    let plain = ["gelu", "gelu_new", "gelu_fast", "relu", "relu2", "quick_gelu"];
    let activation = ["hidden_act", "activation_function", "hidden_activation"]
        .into_iter()
        .find_map(|field| fields::text(fields.object, field));
    let gated = activation.is_none_or(|activation| !plain.contains(&activation));
    let matrices = if gated { "three matrices" } else { "two matrices" };
    fields.assumed.push(format!("a feed-forward block with {matrices}"));
    gated
}

fn bias(fields: &Fields<'_>, family: &'static ModelFamily) -> Result<Bias, ModelConfigError> {
    let all_if = |all: bool| if all { Bias::All } else { Bias::None };
    Ok(match family.bias {
        BiasField::Fixed(bias) => bias,
        BiasField::With(field, default) => all_if(fields.flag(field)?.unwrap_or(default)),
        BiasField::Without(field) => all_if(!fields.flag(field)?.unwrap_or(false)),
        BiasField::Attention => {
            let attention = fields.flag("attention_bias")?.unwrap_or(false);
            match (attention, fields.flag("mlp_bias")?.unwrap_or(false)) {
                (_, true) => Bias::All,
                (true, false) => Bias::Qkv,
                (false, false) => Bias::None,
            }
        }
    })
}

fn learned_positions(
    fields: &mut Fields<'_>,
    family: &'static ModelFamily,
) -> Result<u32, ModelConfigError> {
    if family.is("gpt2") {
        return fields.required(&["n_positions", "max_position_embeddings", "n_ctx"], 1, MAX_WIDTH);
    }
    if family.is("mpt") {
        let computed = fields.nested_flag("attn_config", "alibi")
            || fields.nested_flag("attn_config", "rope")
            || !fields.flag("learned_pos_emb")?.unwrap_or(true);
        return if computed { Ok(0) } else { fields.required(&["max_seq_len"], 1, MAX_WIDTH) };
    }
    Ok(0)
}

fn experts(
    fields: &mut Fields<'_>,
    family: &'static ModelFamily,
    layers: u32,
) -> Result<Option<Experts>, ModelConfigError> {
    let count = fields.optional(EXPERTS, 0, MAX_COUNT)?.unwrap_or(0);
    if count <= 1 {
        return Ok(None);
    }
    let per_token = fields.required(PER_TOKEN, 1, count)?;
    let ffn = match fields.optional(EXPERT_FFN, 1, MAX_WIDTH)? {
        Some(width) => width,
        None => fields.required(FFN, 1, MAX_WIDTH)?,
    };
    let shared_count = fields.optional(SHARED, 0, MAX_COUNT)?.unwrap_or(0);
    let shared_width = fields.optional(&["shared_expert_intermediate_size"], 0, MAX_WIDTH)?;
    let shared_ffn = match shared_width {
        Some(width) => width,
        // The one shared expert is as wide as a routed expert.
        None if family.is("llama4") => ffn,
        None => {
            let width = u64::from(shared_count) * u64::from(ffn);
            u32::try_from(width).ok().filter(|width| *width <= MAX_WIDTH).ok_or_else(|| {
                ModelConfigError::InvalidField {
                    field: SHARED[0].to_owned(),
                    value: shared_count.to_string(),
                    expected: format!("up to {}", MAX_WIDTH / ffn),
                }
            })?
        }
    };
    let only_dense = fields.count_listed("mlp_only_layers", layers)?;
    let first = fields.optional(&["first_k_dense_replace"], 0, MAX_COUNT)?.unwrap_or(0);
    let every = fields.optional(EVERY, 1, MAX_COUNT)?.unwrap_or(1);
    if only_dense > 0 {
        fields.assumed.push(format!("the {only_dense} layers of `mlp_only_layers` come first"));
    }
    let dense_layers = (first + only_dense).min(layers);
    Ok(Some(Experts { count, per_token, ffn, shared_ffn, dense_layers, every }))
}

fn window(
    fields: &mut Fields<'_>,
    family: &'static ModelFamily,
    layers: u32,
) -> Result<AttentionWindow, ModelConfigError> {
    let size = ["sliding_window", "attention_chunk_size", "sliding_window_size"];
    let tokens = fields.optional(&size, 0, u32::MAX)?.unwrap_or(0);
    let used = fields.flag("use_sliding_window")?.unwrap_or(!family.is("qwen"));
    if tokens == 0 || !used {
        return Ok(AttentionWindow::NONE);
    }
    if let Some(global) = fields.layer_types(layers)? {
        return Ok(AttentionWindow::with_global(tokens, &global));
    }
    let pattern = ["sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"];
    if let Some(global_every) = fields.optional(&pattern, 0, MAX_COUNT)? {
        return Ok(AttentionWindow::with_global_every(tokens, global_every));
    }
    if family.is("qwen") {
        // The first `max_window_layers` layers have full attention.
        let all = fields.optional(&["max_window_layers"], 0, MAX_COUNT)?.unwrap_or(0).min(layers);
        return Ok(AttentionWindow { tokens, global: all, period: layers });
    }
    if !family.is_known() {
        fields.assumed.push(format!("a sliding window of {tokens} tokens in every layer"));
    }
    Ok(AttentionWindow::with_global_every(tokens, 0))
}

#[cfg(test)]
mod tests;
