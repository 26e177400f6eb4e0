//! Detection of architectures other than decoder-only language models.

use serde_json::{Map, Value};

use super::{ModelConfigError, fields};

const ENCODER_DECODER: &str = "an encoder-decoder model";
const ENCODER: &str = "an encoder (embeddings, classification)";
const VISION: &str = "an image or video model";
const SPEECH: &str = "an audio model";
const DIFFUSION: &str = "a diffusion model";
const STATE_SPACE: &str = "a state-space or recurrent model, or a hybrid with one";
const OTHER_ATTENTION: &str = "a model with sparse or compressed attention";

/// Unsupported `model_type`s of transformers, by kind.
const KINDS: &[(&str, &str)] = &[
    (
        ENCODER_DECODER,
        "t5 mt5 umt5 longt5 switch_transformers bart mbart pegasus pegasus_x m2m_100 nllb-moe \
         led marian blenderbot prophetnet bigbird_pegasus encoder-decoder \
         vision-encoder-decoder fsmt t5gemma",
    ),
    (
        ENCODER,
        "bert roberta xlm-roberta xlm-roberta-xl deberta deberta-v2 electra albert distilbert \
         mpnet modernbert nomic_bert new camembert ernie esm funnel longformer big_bird \
         layoutlm layoutlmv3 xlnet",
    ),
    (
        VISION,
        "vit vit_mae deit beit swin swinv2 convnext convnextv2 resnet dinov2 dinov3_vit clip \
         clip_vision_model clip_text_model siglip_text_model siglip siglip2 align blip blip-2 \
         detr sam sam2 segformer mask2former owlvit dpt depth_anything timesformer videomae \
         vjepa2 mllama",
    ),
    (
        SPEECH,
        "whisper wav2vec2 wav2vec2-bert hubert wavlm speech_to_text speecht5 seamless_m4t \
         seamless_m4t_v2 musicgen encodec bark vits moonshine",
    ),
    (
        STATE_SPACE,
        "mamba mamba2 falcon_mamba jamba zamba zamba2 bamba nemotron_h granitemoehybrid \
         falcon_h1 rwkv rwkv5 rwkv6 rwkv7 recurrent_gemma qwen3_next qwen3_5 qwen3_5_moe lfm2 \
         lfm2_moe plamo2 minimax minimax_text_01 minimax_m1 kimi_linear xlstm hyena \
         stripedhyena olmo_hybrid",
    ),
    (OTHER_ATTENTION, "deepseek_v32 deepseek_v4 glm_moe_dsa minicpm_sala reformer"),
];

/// Fields that only models of one unsupported kind have.
const SIGNS: &[(&str, &[&str])] = &[
    (DIFFUSION, &["_diffusers_version", "_class_name"]),
    (
        STATE_SPACE,
        &[
            "ssm_cfg",
            "ssm_state_size",
            "mamba_d_state",
            "mamba_num_heads",
            "mamba_d_conv",
            "hybrid_override_pattern",
            "linear_num_key_heads",
            "attn_type_list",
            "attn_layer_period",
            "linear_attn_config",
        ],
    ),
    (OTHER_ATTENTION, &["index_topk", "compress_ratios"]),
    (VISION, &["patch_size", "image_size"]),
];

/// Fails for architectures that cannot be planned with.
pub(super) fn check_supported(object: &Map<String, Value>) -> Result<(), ModelConfigError> {
    let model_type = fields::text(object, "model_type").unwrap_or_default();
    let is_listed = |types: &str| types.split(' ').any(|name| name == model_type);
    let by_type = KINDS.iter().find(|(_, types)| is_listed(types)).map(|(kind, _)| kind);
    let has = |field: &&str| object.get(*field).is_some_and(|value| !value.is_null());
    // If the file nests a text model, check that one instead.
    let is_flat = !object.contains_key("text_config");
    let by_sign =
        || SIGNS.iter().find(|(_, signs)| is_flat && signs.iter().any(has)).map(|(kind, _)| kind);
    let kind = match by_type.or_else(by_sign) {
        Some(kind) => kind,
        None if object.get("is_encoder_decoder").and_then(Value::as_bool) == Some(true) => {
            ENCODER_DECODER
        }
        None if lists_non_attention_layers(object) => STATE_SPACE,
        None => return Ok(()),
    };
    let class = || object.get("architectures")?.get(0)?.as_str();
    let architecture = Some(model_type)
        .filter(|name| !name.is_empty())
        .or_else(class)
        .or_else(|| fields::text(object, "_class_name"))
        .unwrap_or("this config");
    Err(ModelConfigError::Unsupported { architecture: fields::sanitized(architecture), kind })
}

/// Whether the config lists layers without softmax attention.
fn lists_non_attention_layers(object: &Map<String, Value>) -> bool {
    let other = |kind: &Value| {
        kind.as_str().is_some_and(|kind| {
            ["linear", "mamba", "conv", "recurrent", "ssm"].iter().any(|part| kind.contains(part))
        })
    };
    ["layer_types", "layers_block_type", "block_types"]
        .iter()
        .filter_map(|field| object.get(*field)?.as_array())
        .any(|list| list.iter().any(other))
}
