//! A model from the `config.json` that Hugging Face keeps beside its weights.

mod family;
mod fields;
mod refused;

use serde_json::Value;

use self::family::{BiasField, Family};
use self::fields::Fields;
use super::{Attention, Bias, Experts, Model, Window};

/// More blocks, heads, experts or width than any model has.
const MOST: u32 = 1_000_000;
/// Deeper than any model by far.
const MOST_BLOCKS: u32 = 10_000;
/// A wider feed-forward block or a larger vocabulary than any model has.
const MOST_WIDE: u32 = 100_000_000;

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

/// A model, and what its file left open.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// The model.
    pub model: Model,
    /// What the file does not say and was assumed, or says and was left out.
    pub assumed: Vec<String>,
}

/// Why a `config.json` is no model that can be planned with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON.
    #[error("the config is not JSON; `config.json` as Hugging Face keeps it is possible")]
    Json(#[from] serde_json::Error),
    /// JSON, but no object.
    #[error(
        "the config is not a JSON object; one with `model_type`, `hidden_size` and the like is \
         possible"
    )]
    NotAnObject,
    /// Something else than a decoder of text.
    #[error(
        "`{architecture}` is {kind}; possible: transformers that decode text, such as {}",
        family::names()
    )]
    Refused {
        /// As the file calls itself.
        architecture: String,
        /// What it is.
        kind: &'static str,
    },
    /// A field that is needed is not there.
    #[error("the config has no `{field}`{}", also(.others))]
    Missing {
        /// The usual name.
        field: &'static str,
        /// Names that would do as well.
        others: &'static [&'static str],
    },
    /// A field holds something of another kind.
    #[error("`{field}` is `{value}`; possible: {possible}")]
    Unfit {
        /// Its name.
        field: String,
        /// What it holds.
        value: String,
        /// What it may hold.
        possible: String,
    },
    /// Heads of no whole width.
    #[error(
        "{heads} heads do not divide a width of {hidden} and there is no `head_dim`; give \
         `head_dim`, or a number of heads that divides {hidden}"
    )]
    Heads {
        /// Width of the residual stream.
        hidden: u32,
        /// Query heads.
        heads: u32,
    },
}

fn also(others: &[&str]) -> String {
    if others.is_empty() {
        String::new()
    } else {
        format!("; `{}` would do as well", others.join("`, `"))
    }
}

/// A model from the text of a `config.json`.
pub fn read(text: &str) -> Result<Read, ConfigError> {
    from_value(&serde_json::from_str(text)?)
}

/// A model from a parsed `config.json`.
pub fn from_value(config: &Value) -> Result<Read, ConfigError> {
    let outer = config.as_object().ok_or(ConfigError::NotAnObject)?;
    refused::refuse(outer)?;
    let inner = outer.get("text_config").and_then(Value::as_object);
    if let Some(inner) = inner {
        refused::refuse(inner)?;
    }
    let object = inner.unwrap_or(outer);
    let kind = fields::text(object, "model_type").or_else(|| fields::text(outer, "model_type"));
    let family = Family::of(kind);
    let mut fields = Fields::new(object, family);
    if inner.is_some() && outer.contains_key("vision_config") {
        fields.assumed.push("only the text model: what sees is left out".to_owned());
    }
    if !family.is_known() {
        let why = match kind {
            Some(kind) => format!("the family `{}` is not known", fields::shown(kind)),
            None => "the config has no `model_type`".to_owned(),
        };
        fields.assumed.push(format!("blocks as in Llama: {why}"));
    }
    let model = model(&mut fields, family, name(outer))?;
    Ok(Read { model, assumed: fields.assumed })
}

fn name(outer: &serde_json::Map<String, Value>) -> String {
    let architecture = || outer.get("architectures")?.get(0)?.as_str();
    fields::text(outer, "_name_or_path")
        .filter(|name| !name.trim().is_empty())
        .or_else(architecture)
        .or_else(|| fields::text(outer, "model_type"))
        .map_or_else(|| "config.json".to_owned(), fields::shown)
}

fn model(
    fields: &mut Fields<'_>,
    family: &'static Family,
    name: String,
) -> Result<Model, ConfigError> {
    let layers = fields.required(LAYERS, 1, MOST_BLOCKS)?;
    let hidden = fields.required(HIDDEN, 1, MOST)?;
    let vocab = fields.required(&["vocab_size"], 1, MOST_WIDE)?;
    let attention = attention(fields, family, hidden)?;
    let experts = experts(fields, family, layers)?;
    let ffn = dense_ffn(fields, family, hidden, experts)?;
    let gated = gated(fields, family);
    let tied = match fields.flag("tie_word_embeddings")? {
        Some(tied) => tied,
        None if family.is_known() => family.tied,
        None => {
            fields.assumed.push("an output projection apart from the embedding".to_owned());
            false
        }
    };
    let mtp_layers =
        fields.optional(&["num_nextn_predict_layers", "num_mtp_modules"], 0, MOST)?.unwrap_or(0);
    Ok(Model {
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
    family: &'static Family,
    hidden: u32,
) -> Result<Attention, ConfigError> {
    let heads = fields.required(HEADS, 1, MOST)?;
    let kv_rank = fields.optional(&["kv_lora_rank"], 0, MOST)?.unwrap_or(0);
    if kv_rank > 0 {
        return Ok(Attention::Latent {
            heads,
            q_rank: fields.optional(&["q_lora_rank"], 0, MOST)?.unwrap_or(0),
            kv_rank,
            nope_dim: fields.required(&["qk_nope_head_dim"], 1, MOST)?,
            rope_dim: fields.required(&["qk_rope_head_dim"], 0, MOST)?,
            v_dim: fields.required(&["v_head_dim"], 1, MOST)?,
        });
    }
    let head_dim = match fields.optional(HEAD_DIM, 1, MOST)? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(ConfigError::Heads { hidden, heads }),
    };
    let kv_heads = kv_heads(fields, family, heads)?;
    if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
        return Err(ConfigError::Unfit {
            field: KV_HEADS[0].to_owned(),
            value: kv_heads.to_string(),
            possible: format!("a divisor of the {heads} heads"),
        });
    }
    Ok(Attention::Grouped { heads, kv_heads, head_dim })
}

fn kv_heads(
    fields: &mut Fields<'_>,
    family: &'static Family,
    heads: u32,
) -> Result<u32, ConfigError> {
    // Falcon says the number also where its first generation does not heed it.
    if family.is("falcon") && !fields.flag("new_decoder_architecture")?.unwrap_or(false) {
        return Ok(if fields.flag("multi_query")?.unwrap_or(true) { 1 } else { heads });
    }
    let stated = fields.optional(KV_HEADS, 1, MOST)?;
    let nested = fields.within("attn_config", "kv_n_heads", MOST)?;
    Ok(stated.or(nested).unwrap_or(heads))
}

fn dense_ffn(
    fields: &mut Fields<'_>,
    family: &'static Family,
    hidden: u32,
    experts: Option<Experts>,
) -> Result<u32, ConfigError> {
    if family.is("llama4") {
        let stated = fields.optional(&["intermediate_size_mlp"], 1, MOST_WIDE)?;
        if let Some(width) = stated {
            return Ok(width);
        }
    }
    if family.is("mpt") {
        let ratio = fields.optional(&["expansion_ratio"], 1, 1000)?.unwrap_or(4);
        return Ok(hidden * ratio);
    }
    match (fields.optional(FFN, 1, MOST_WIDE)?, experts) {
        (Some(width), _) => Ok(width),
        // The width that these families say nothing of.
        (None, _) if family.four_wide => Ok(4 * hidden),
        (None, Some(experts)) => {
            fields.assumed.push(format!("dense blocks as wide as an expert, {}", experts.ffn));
            Ok(experts.ffn)
        }
        (None, None) => Err(ConfigError::Missing { field: FFN[0], others: &FFN[1..] }),
    }
}

fn gated(fields: &mut Fields<'_>, family: &'static Family) -> bool {
    if family.is_known() {
        return family.gated;
    }
    let plain = ["gelu", "gelu_new", "gelu_fast", "relu", "relu2", "quick_gelu"];
    let activation = ["hidden_act", "activation_function", "hidden_activation"]
        .into_iter()
        .find_map(|field| fields::text(fields.object, field));
    let gated = activation.is_none_or(|activation| !plain.contains(&activation));
    let matrices = if gated { "three matrices" } else { "two matrices" };
    fields.assumed.push(format!("a feed-forward block of {matrices}"));
    gated
}

fn bias(fields: &Fields<'_>, family: &'static Family) -> Result<Bias, ConfigError> {
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

fn learned_positions(fields: &mut Fields<'_>, family: &'static Family) -> Result<u32, ConfigError> {
    if family.is("gpt2") {
        return fields.required(&["n_positions", "max_position_embeddings", "n_ctx"], 1, MOST_WIDE);
    }
    if family.is("mpt") {
        let computed = fields.flag_within("attn_config", "alibi")
            || fields.flag_within("attn_config", "rope")
            || !fields.flag("learned_pos_emb")?.unwrap_or(true);
        return if computed { Ok(0) } else { fields.required(&["max_seq_len"], 1, MOST_WIDE) };
    }
    Ok(0)
}

fn experts(
    fields: &mut Fields<'_>,
    family: &'static Family,
    layers: u32,
) -> Result<Option<Experts>, ConfigError> {
    let count = fields.optional(EXPERTS, 0, MOST)?.unwrap_or(0);
    if count <= 1 {
        return Ok(None);
    }
    let per_token = fields.required(PER_TOKEN, 1, count)?;
    let ffn = match fields.optional(EXPERT_FFN, 1, MOST_WIDE)? {
        Some(width) => width,
        None => fields.required(FFN, 1, MOST_WIDE)?,
    };
    let shared_count = fields.optional(SHARED, 0, MOST)?.unwrap_or(0);
    let shared_width = fields.optional(&["shared_expert_intermediate_size"], 0, MOST_WIDE)?;
    let shared_ffn = match shared_width {
        Some(width) => width,
        // Its one shared expert is as wide as a routed one.
        None if family.is("llama4") => ffn,
        None => {
            let width = u64::from(shared_count) * u64::from(ffn);
            u32::try_from(width).ok().filter(|width| *width <= MOST_WIDE).ok_or_else(|| {
                ConfigError::Unfit {
                    field: SHARED[0].to_owned(),
                    value: shared_count.to_string(),
                    possible: format!("up to {}", MOST_WIDE / ffn),
                }
            })?
        }
    };
    let only_dense = fields.listed("mlp_only_layers", layers)?;
    let first = fields.optional(&["first_k_dense_replace"], 0, MOST)?.unwrap_or(0);
    let every = fields.optional(EVERY, 1, MOST)?.unwrap_or(1);
    if only_dense > 0 {
        fields.assumed.push(format!("the {only_dense} blocks of `mlp_only_layers` come first"));
    }
    let dense_layers = (first + only_dense).min(layers);
    Ok(Some(Experts { count, per_token, ffn, shared_ffn, dense_layers, every }))
}

fn window(
    fields: &mut Fields<'_>,
    family: &'static Family,
    layers: u32,
) -> Result<Window, ConfigError> {
    let size = ["sliding_window", "attention_chunk_size", "sliding_window_size"];
    let tokens = fields.optional(&size, 0, u32::MAX)?.unwrap_or(0);
    let used = fields.flag("use_sliding_window")?.unwrap_or(!family.is("qwen"));
    if tokens == 0 || !used {
        return Ok(Window::NONE);
    }
    if let Some(global) = fields.layer_types(layers)? {
        return Ok(Window::with_global(tokens, &global));
    }
    let pattern = ["sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"];
    if let Some(global_every) = fields.optional(&pattern, 0, MOST)? {
        return Ok(Window::with_global_every(tokens, global_every));
    }
    if family.is("qwen") {
        // The first so many blocks see all.
        let all = fields.optional(&["max_window_layers"], 0, MOST)?.unwrap_or(0).min(layers);
        return Ok(Window { tokens, global: all, of: layers });
    }
    if !family.is_known() {
        fields.assumed.push(format!("every block looks back {tokens} tokens"));
    }
    Ok(Window::with_global_every(tokens, 0))
}

#[cfg(test)]
mod tests;
