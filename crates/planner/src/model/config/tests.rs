use proptest::prelude::*;

use super::*;
use crate::model::{ParameterCounts, builtin};

/// Name of the built-in model, and the relevant fields of its Hugging Face `config.json`.
const FILES: &[(&str, &str)] = &[
    (
        "llama2-70b",
        r#"{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":8192,
        "intermediate_size":28672,"num_attention_heads":64,"num_hidden_layers":80,
        "num_key_value_heads":8,"vocab_size":32000,"tie_word_embeddings":false,
        "rms_norm_eps":1e-05,"rope_scaling":null,"torch_dtype":"float16"}"#,
    ),
    (
        "llama3.2-1b",
        r#"{"model_type":"llama","head_dim":64,"hidden_size":2048,"intermediate_size":8192,
        "num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,
        "tie_word_embeddings":true,"vocab_size":128256,"attention_bias":false,"mlp_bias":false}"#,
    ),
    (
        "mistral-7b",
        r#"{"model_type":"mistral","hidden_size":4096,"intermediate_size":14336,
        "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,
        "sliding_window":4096,"tie_word_embeddings":false,"vocab_size":32000}"#,
    ),
    (
        "mixtral-8x7b",
        r#"{"model_type":"mixtral","hidden_size":4096,"intermediate_size":14336,
        "num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,
        "num_key_value_heads":8,"num_local_experts":8,"sliding_window":null,
        "tie_word_embeddings":false,"vocab_size":32000}"#,
    ),
    (
        "qwen2.5-7b",
        r#"{"model_type":"qwen2","hidden_size":3584,"intermediate_size":18944,
        "max_window_layers":28,"num_attention_heads":28,"num_hidden_layers":28,
        "num_key_value_heads":4,"sliding_window":131072,"tie_word_embeddings":false,
        "use_sliding_window":false,"vocab_size":152064}"#,
    ),
    (
        "qwen3-30b-a3b",
        r#"{"model_type":"qwen3_moe","attention_bias":false,"decoder_sparse_step":1,"head_dim":128,
        "hidden_size":2048,"intermediate_size":6144,"max_window_layers":48,"mlp_only_layers":[],
        "moe_intermediate_size":768,"num_attention_heads":32,"num_experts":128,
        "num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":4,
        "sliding_window":null,"tie_word_embeddings":false,"use_sliding_window":false,
        "vocab_size":151936}"#,
    ),
    (
        "gemma2-9b",
        r#"{"model_type":"gemma2","head_dim":256,"hidden_size":3584,"intermediate_size":14336,
        "num_attention_heads":16,"num_hidden_layers":42,"num_key_value_heads":8,
        "sliding_window":4096,"vocab_size":256000,"hidden_act":"gelu_pytorch_tanh"}"#,
    ),
    (
        "gemma3-4b",
        r#"{"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3",
        "text_config":{"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text",
        "num_hidden_layers":34,"sliding_window":1024},
        "vision_config":{"hidden_size":1152,"image_size":896,"patch_size":14}}"#,
    ),
    (
        "deepseek-v3",
        r#"{"model_type":"deepseek_v3","first_k_dense_replace":3,"hidden_size":7168,
        "intermediate_size":18432,"kv_lora_rank":512,"moe_intermediate_size":2048,
        "moe_layer_freq":1,"n_routed_experts":256,"n_shared_experts":1,"num_attention_heads":128,
        "num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":128,
        "num_nextn_predict_layers":1,"q_lora_rank":1536,"qk_nope_head_dim":128,
        "qk_rope_head_dim":64,"tie_word_embeddings":false,"v_head_dim":128,"vocab_size":129280,
        "quantization_config":{"fmt":"e4m3","quant_method":"fp8"}}"#,
    ),
    (
        "deepseek-v2-lite",
        r#"{"model_type":"deepseek_v2","first_k_dense_replace":1,"hidden_size":2048,
        "intermediate_size":10944,"kv_lora_rank":512,"moe_intermediate_size":1408,
        "moe_layer_freq":1,"n_routed_experts":64,"n_shared_experts":2,"num_attention_heads":16,
        "num_experts_per_tok":6,"num_hidden_layers":27,"num_key_value_heads":16,
        "q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
        "tie_word_embeddings":false,"vocab_size":102400}"#,
    ),
    (
        "gpt-oss-120b",
        r#"{"model_type":"gpt_oss","attention_bias":true,"experts_per_token":4,"head_dim":64,
        "hidden_size":2880,"intermediate_size":2880,"num_attention_heads":64,
        "num_experts_per_tok":4,"num_hidden_layers":36,"num_key_value_heads":8,
        "num_local_experts":128,"sliding_window":128,"tie_word_embeddings":false,
        "vocab_size":201088}"#,
    ),
    (
        "llama4-maverick",
        r#"{"model_type":"llama4","text_config":{"model_type":"llama4_text",
        "attention_chunk_size":8192,"head_dim":128,"hidden_size":5120,
        "interleave_moe_layer_step":2,"intermediate_size":8192,"intermediate_size_mlp":16384,
        "num_attention_heads":40,"num_experts_per_tok":1,"num_hidden_layers":48,
        "num_key_value_heads":8,"num_local_experts":128,"tie_word_embeddings":false,
        "vocab_size":202048},"vision_config":{"patch_size":14}}"#,
    ),
    (
        "glm-4.5-air",
        r#"{"model_type":"glm4_moe","attention_bias":true,"head_dim":128,"hidden_size":4096,
        "intermediate_size":10944,"moe_intermediate_size":1408,"first_k_dense_replace":1,
        "n_routed_experts":128,"n_shared_experts":1,"num_experts_per_tok":8,
        "num_attention_heads":96,"num_hidden_layers":46,"num_key_value_heads":8,
        "num_nextn_predict_layers":1,"tie_word_embeddings":false,"vocab_size":151552}"#,
    ),
    (
        "falcon-7b",
        r#"{"model_type":"falcon","bias":false,"hidden_size":4544,"multi_query":true,
        "new_decoder_architecture":false,"num_attention_heads":71,"num_hidden_layers":32,
        "num_kv_heads":71,"parallel_attn":true,"vocab_size":65024}"#,
    ),
    (
        "falcon-40b",
        r#"{"model_type":"falcon","bias":false,"hidden_size":8192,"new_decoder_architecture":true,
        "num_attention_heads":128,"num_hidden_layers":60,"num_kv_heads":8,"vocab_size":65024}"#,
    ),
    (
        "starcoder2-7b",
        r#"{"model_type":"starcoder2","hidden_size":4608,"intermediate_size":18432,
        "num_attention_heads":36,"num_hidden_layers":32,"num_key_value_heads":4,
        "sliding_window":4096,"use_bias":true,"vocab_size":49152,"hidden_act":"gelu_pytorch_tanh"}"#,
    ),
    (
        "phi3-mini",
        r#"{"model_type":"phi3","hidden_size":3072,"intermediate_size":8192,
        "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,
        "sliding_window":2047,"tie_word_embeddings":false,"vocab_size":32064}"#,
    ),
    (
        "olmo2-7b",
        r#"{"model_type":"olmo2","hidden_size":4096,"intermediate_size":11008,
        "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,
        "tie_word_embeddings":false,"vocab_size":100352}"#,
    ),
    (
        "nemotron4-15b",
        r#"{"model_type":"nemotron","hidden_size":6144,"intermediate_size":24576,"head_dim":128,
        "num_attention_heads":48,"num_hidden_layers":32,"num_key_value_heads":8,
        "hidden_act":"relu2","tie_word_embeddings":false,"vocab_size":256000}"#,
    ),
    (
        "minimax-m2",
        r#"{"model_type":"minimax_m2","head_dim":128,"hidden_act":"silu","hidden_size":3072,
        "intermediate_size":1536,"num_attention_heads":48,"num_experts_per_tok":8,
        "num_hidden_layers":62,"num_key_value_heads":8,"num_local_experts":256,
        "tie_word_embeddings":false,"vocab_size":200064}"#,
    ),
];

#[test]
fn real_configs_match_the_built_in_models() {
    for (name, file) in FILES {
        let record = builtin::by_name(name).unwrap_or_else(|| panic!("no model {name}"));
        let parsed = parse(file).unwrap_or_else(|err| panic!("{name}: {err}"));
        let total = ParameterCounts::new(&parsed.model).total / 1e9;
        let error = total / record.params_b - 1.0;
        assert!(error.abs() < 0.01, "{name}: {total:.3} B, published {} B", record.params_b);
        let expected = record.model();
        assert_eq!(parsed.model.attention, expected.attention, "{name}");
        assert_eq!(parsed.model.experts, expected.experts, "{name}");
        assert_eq!(parsed.model.window, expected.window, "{name}");
        assert_eq!(parsed.model.mtp_layers, expected.mtp_layers, "{name}");
        assert_eq!(parsed.model.tied, expected.tied, "{name}");
    }
}

#[test]
fn older_config_formats_are_parsed() {
    let total = |file: &str| ParameterCounts::new(&parse(file).unwrap().model).total;
    // Published number of parameters: 124,439,808.
    let gpt2 = total(
        r#"{"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,
        "vocab_size":50257,"n_inner":null}"#,
    );
    assert!((gpt2 / 124.44e6 - 1.0).abs() < 0.01, "{gpt2}");
    // Published number of parameters: 20.55 billion.
    let neox = total(
        r#"{"model_type":"gpt_neox","hidden_size":6144,"intermediate_size":24576,
        "num_attention_heads":64,"num_hidden_layers":44,"vocab_size":50432,
        "tie_word_embeddings":false}"#,
    );
    assert!((neox / 20.55e9 - 1.0).abs() < 0.01, "{neox}");
    // Published number of parameters: 6.649 billion.
    let mpt = parse(
        r#"{"model_type":"mpt","d_model":4096,"n_layers":32,"n_heads":32,"expansion_ratio":4,
        "vocab_size":50432,"no_bias":true,"learned_pos_emb":true,"max_seq_len":2048,
        "attn_config":{"alibi":true}}"#,
    );
    let mpt = mpt.unwrap().model;
    assert_eq!(mpt.learned_positions, 0);
    assert!((ParameterCounts::new(&mpt).total / 6.649e9 - 1.0).abs() < 0.01);
}

#[test]
fn assumptions_are_reported() {
    let assumed = |model: &str| {
        let (_, file) = FILES.iter().find(|(name, _)| *name == model).unwrap();
        parse(file).unwrap().assumed
    };
    assert!(assumed("llama2-70b").is_empty());
    assert!(assumed("deepseek-v3").is_empty());
    let gemma = assumed("gemma3-4b").join("; ");
    assert!(gemma.contains("`num_attention_heads` 8"), "{gemma}");
    assert!(gemma.contains("the vision encoder is ignored"), "{gemma}");
    let other = assumed("minimax-m2").join("; ");
    assert!(other.contains("unknown family `minimax_m2`"), "{other}");
    let qwen = parse(
        r#"{"model_type":"qwen2_moe","hidden_size":2048,"intermediate_size":5632,
        "moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"num_experts":60,
        "num_experts_per_tok":4,"num_attention_heads":16,"num_hidden_layers":24,
        "num_key_value_heads":16,"decoder_sparse_step":1,"mlp_only_layers":[5, 7, 5],
        "vocab_size":151936}"#,
    );
    let qwen = qwen.unwrap();
    assert_eq!(qwen.model.experts.map(|experts| experts.dense_layers), Some(2));
    assert!(qwen.assumed.join("; ").contains("mlp_only_layers"));
}

#[test]
fn unsupported_architectures_are_rejected() {
    for (file, part) in [
        (r#"{"model_type":"t5","d_model":512}"#, "`t5` is an encoder-decoder model"),
        (r#"{"model_type":"bert","hidden_size":768}"#, "`bert` is an encoder"),
        (r#"{"model_type":"whisper"}"#, "`whisper` is an audio model"),
        (r#"{"model_type":"clip","text_config":{"hidden_size":512}}"#, "`clip` is an image"),
        (r#"{"model_type":"vit"}"#, "`vit` is an image or video model"),
        (r#"{"_class_name":"UNet2DConditionModel","_diffusers_version":"0.8"}"#, "diffusion"),
        (r#"{"model_type":"mamba2"}"#, "`mamba2` is a state-space"),
        (r#"{"model_type":"nemotron_h","hidden_size":4096}"#, "`nemotron_h` is a state-space"),
        (r#"{"model_type":"x","layer_types":["linear_attention"]}"#, "`x` is a state-space"),
        (r#"{"model_type":"y","is_encoder_decoder":true}"#, "`y` is an encoder-decoder model"),
        (r#"{"model_type":"deepseek_v32","index_topk":2048}"#, "sparse or compressed attention"),
    ] {
        let message = parse(file).unwrap_err().to_string();
        assert!(message.contains(part), "{file}: {message}");
        assert!(message.contains("supported: decoder-only transformers"), "{message}");
    }
}

#[test]
fn layer_types_must_list_every_layer() {
    let window = |types: &[&str]| {
        let (_, text) = FILES.iter().find(|(name, _)| *name == "gpt-oss-120b").unwrap();
        let mut config: Value = serde_json::from_str(text).unwrap();
        config["layer_types"] = types.into();
        from_value(&config).map(|parsed| parsed.model.window).map_err(|err| err.to_string())
    };
    let third = ["sliding_attention", "sliding_attention", "full_attention"];
    assert_eq!(window(&third.repeat(12)), Ok(AttentionWindow::with_global_every(128, 3)));
    // A truncated last period still matches the pattern; the reversed order does not.
    let fifth = ["sliding_attention"; 4].iter().chain(&["full_attention"]).copied();
    let fifth: Vec<&str> = fifth.cycle().take(36).collect();
    assert_eq!(window(&fifth), Ok(AttentionWindow::with_global_every(128, 5)));
    let mut reversed = fifth;
    reversed.reverse();
    assert_eq!(window(&reversed), Ok(AttentionWindow { tokens: 128, global: 7, period: 36 }));
    let message = window(&third).unwrap_err();
    assert!(
        message.contains("a list of 3") && message.contains("each of the 36 layers"),
        "{message}"
    );
}

#[test]
fn bloom_ffn_is_four_times_hidden() {
    let bloom = parse(
        r#"{"model_type":"bloom","hidden_size":4096,"n_layer":30,"n_head":32,
        "vocab_size":250880}"#,
    );
    let bloom = bloom.unwrap();
    assert_eq!((bloom.model.ffn, bloom.model.learned_positions), (16_384, 0));
    assert!(bloom.assumed.is_empty(), "{:?}", bloom.assumed);
    // The model card states 7.069 billion parameters.
    assert!((crate::model::ParameterCounts::new(&bloom.model).total / 7.069e9 - 1.0).abs() < 0.01);
    let untyped = parse(
        r#"{"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":100,
        "intermediate_size":128}"#,
    );
    let assumed = untyped.unwrap().assumed.join("; ");
    assert!(assumed.contains("the config has no `model_type`"), "{assumed}");
}

#[test]
fn invalid_fields_are_named_with_the_accepted_values() {
    let parse_with = |field: &str, value: &str| {
        let mut config: Value = serde_json::from_str(FILES[5].1).unwrap();
        config[field] = serde_json::from_str(value).unwrap();
        if field == "hidden_size" {
            config["head_dim"] = Value::Null;
            config["model_type"] = "llama".into();
        }
        from_value(&config).map(|_| ()).map_err(|err| err.to_string())
    };
    for (field, value, part) in [
        ("num_hidden_layers", "0", "from 1 to 10000"),
        ("num_hidden_layers", "-4", "`num_hidden_layers` is `-4`"),
        ("num_hidden_layers", "20000", "from 1 to 10000"),
        ("num_hidden_layers", "1.5", "an integer"),
        ("num_hidden_layers", "\"32\"", "an integer"),
        ("num_hidden_layers", "null", "no `num_hidden_layers`"),
        ("hidden_size", "1000001", "from 1 to 1000000"),
        ("hidden_size", "2049", "32 heads do not divide the hidden width 2049"),
        ("num_experts_per_tok", "129", "from 1 to 128"),
        ("num_key_value_heads", "5", "a divisor of the 32 heads"),
        ("mlp_only_layers", "[99]", "a list of layer indices, 0 to 47"),
        ("tie_word_embeddings", "\"no\"", "`true` or `false`"),
        ("vocab_size", "1e300", "from 1 to 100000000"),
    ] {
        let message = parse_with(field, value).unwrap_err();
        assert!(message.contains(part), "{field} {value}: {message}");
    }
    assert_eq!(parse_with("num_hidden_layers", "32.0"), Ok(()));
    for text in ["", "{", "[]", "3", r#"{"hidden_size": NaN}"#, "null"] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains("expected"), "{text}: {message}");
    }
    let missing = parse(r#"{"model_type":"llama"}"#).unwrap_err().to_string();
    assert!(missing.contains("no `num_hidden_layers`; `n_layer`"), "{missing}");
}

/// Models whose published parameter count is rounded by more than 1 %, and the exact count.
const ROUGH: &[(&str, &str)] = &[
    ("gpt3-5b", "5.05 B, published with one digit"),
    ("gpt-1.7b", "1.65 B, published with two digits"),
    ("gpt-3.6b", "3.56 B, published with two digits"),
    ("megatron-gpt-1.7b", "1.75 B, published with two digits"),
    ("megatron-gpt-32b", "31.5 B, published with two digits"),
];

#[test]
fn built_in_models_have_their_published_parameter_count() {
    let mut wrong = Vec::new();
    for record in builtin::all() {
        let total = ParameterCounts::new(&record.model()).total / 1e9;
        let error = 100.0 * (total / record.params_b - 1.0);
        let rough = ROUGH.iter().any(|(name, _)| *name == record.name);
        if (error.abs() > 1.0) != rough {
            wrong.push(format!("{} {total:.4} B, published {}", record.name, record.params_b));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u32..200).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9_]{0,8}".prop_map(Value::from),
        proptest::sample::select(vec!["full_attention", "sliding_attention"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        proptest::collection::vec(inner, 0..4).prop_map(Value::from)
    })
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC*") {
        let _ = parse(&text);
    }

    #[test]
    fn mutated_config_does_not_panic(
        file in 0..FILES.len(),
        key in any::<proptest::sample::Index>(),
        value in any_value(),
        cut in 0_usize..2000,
    ) {
        let text = FILES[file].1;
        let _ = parse(text.get(..cut).unwrap_or(text));
        let mut config: Value = serde_json::from_str(text).unwrap();
        if let Some(object) = config.as_object_mut() {
            let keys: Vec<String> = object.keys().cloned().collect();
            object.insert(key.get(&keys).clone(), value.clone());
        }
        if let Ok(parsed) = from_value(&config) {
            let parameters = ParameterCounts::new(&parsed.model);
            prop_assert!(parameters.total.is_finite() && parameters.total > 0.0);
            prop_assert!(parameters.active <= parameters.total);
        }
    }
}
