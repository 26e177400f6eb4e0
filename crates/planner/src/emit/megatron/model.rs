//! Flags of the model: layers and experts.

use super::super::flags::{FlagGroup, LaunchCommand};
use super::super::model_flags::{FlagValue, ModelFlags};
use crate::model::{Attention, AttentionWindow, Bias, Experts, Norm};
use crate::run::TrainingRun;

/// Megatron pads the vocabulary to a multiple of this times TP (`--make-vocab-size-divisible-by`).
const VOCABULARY_UNIT: u32 = 128;

/// Flags of the layers.
pub(super) fn model(
    run: &TrainingRun,
    flags: &ModelFlags,
    command: &mut LaunchCommand,
) -> FlagGroup {
    let model = &run.model;
    let mut group = FlagGroup::new("MODEL");
    group.put("--num-layers", model.layers);
    group.put("--hidden-size", model.hidden);
    group.put("--ffn-hidden-size", model.ffn);
    attention(&mut group, model.attention);
    group.put("--seq-length", run.seq_len);
    group.put("--max-position-embeddings", run.seq_len.max(model.learned_positions));
    positions(&mut group, run, flags, command);
    let has = |flag: &str| flags.blocks.iter().any(|(name, _)| *name == flag);
    let latent = matches!(model.attention, Attention::Latent { .. });
    add_flags(&mut group, flags.blocks);
    group.set_if(latent && !has("--qk-layernorm"), "--qk-layernorm");
    group.set_if(model.gated && !has("--quick-geglu"), "--swiglu");
    group.put(
        "--normalization",
        match model.norm {
            Norm::Rms => "RMSNorm",
            Norm::Layer => "LayerNorm",
        },
    );
    group.set_if(model.bias != Bias::All, "--disable-bias-linear");
    group.set_if(model.bias == Bias::Qkv, "--add-qkv-bias");
    group.set_if(!model.tied, "--untie-embeddings-and-output-weights");
    let AttentionWindow { tokens, global, period } = model.window;
    if tokens > 0 && global < period {
        // The window contains tokens before the current token, and no tokens after it.
        group.quote("--window-size", &format!("{},0", tokens - 1));
        if global > 0 {
            group.put("--window-attn-skip-freq", period);
        }
    }
    let unit = VOCABULARY_UNIT * run.parallelism.tp;
    group.put("--padded-vocab-size", model.vocab.div_ceil(unit) * unit);
    if model.mtp_layers > 0 {
        group.put("--mtp-num-layers", model.mtp_layers);
        group.put("--mtp-loss-scaling-factor", "0.1");
    }
    group
}

pub(super) fn add_flags(group: &mut FlagGroup, flags: &[FlagValue]) {
    for (name, value) in flags {
        if value.is_empty() {
            group.set(name);
        } else {
            group.put(name, value);
        }
    }
}

fn attention(group: &mut FlagGroup, attention: Attention) {
    group.put("--num-attention-heads", attention.heads());
    match attention {
        Attention::Grouped { heads, kv_heads, head_dim } => {
            if kv_heads < heads {
                group.set("--group-query-attention");
                group.put("--num-query-groups", kv_heads);
            }
            group.put("--kv-channels", head_dim);
        }
        Attention::Latent { q_rank, kv_rank, nope_dim, rope_dim, v_dim, .. } => {
            group.set("--multi-latent-attention");
            group.put("--kv-channels", v_dim);
            if q_rank > 0 {
                group.put("--q-lora-rank", q_rank);
            }
            group.put("--kv-lora-rank", kv_rank);
            group.put("--qk-head-dim", nope_dim);
            group.put("--qk-pos-emb-head-dim", rope_dim);
            group.put("--v-head-dim", v_dim);
        }
    }
}

fn positions(
    group: &mut FlagGroup,
    run: &TrainingRun,
    flags: &ModelFlags,
    command: &mut LaunchCommand,
) {
    if run.model.learned_positions > 0 {
        group.put("--position-embedding-type", "learned_absolute");
        return;
    }
    group.put("--position-embedding-type", flags.positions);
    if let Some(base) = flags.rotary_base {
        group.put("--rotary-base", base);
    } else {
        command
            .required_variables
            .push(("ROTARY_BASE", "rope_theta of the config.json, an integer"));
        group.variable("--rotary-base", "ROTARY_BASE");
    }
    if let Some(percent) = flags.rotary_percent {
        group.put("--rotary-percent", percent);
    } else {
        command.required_variables.push((
            "ROTARY_PERCENT",
            "partial_rotary_factor of the config.json, or 1.0 if it has none",
        ));
        group.variable("--rotary-percent", "ROTARY_PERCENT");
    }
}

/// Flags of experts and router; empty for a dense model.
pub(super) fn experts(run: &TrainingRun, flags: &ModelFlags) -> FlagGroup {
    let mut group = FlagGroup::new("EXPERTS");
    let Some(experts) = run.model.experts else { return group };
    group.put("--num-experts", experts.count);
    group.put("--moe-ffn-hidden-size", experts.ffn);
    group.put("--moe-router-topk", experts.per_token);
    if experts.dense_layers > 0 || experts.every > 1 {
        group.quote("--moe-layer-freq", &pattern(run.model.layers, experts));
    }
    if experts.shared_ffn > 0 {
        group.put("--moe-shared-expert-intermediate-size", experts.shared_ffn);
    }
    add_flags(&mut group, flags.router);
    group.put("--moe-token-dispatcher-type", "alltoall");
    group.set("--moe-grouped-gemm");
    group.set("--moe-permute-fusion");
    group.set_if(run.fused_experts, "--use-transformer-engine-op-fuser");
    group
}

/// `--moe-layer-freq` as a Python list expression: 1 marks a `MoE` layer.
fn pattern(layers: u32, experts: Experts) -> String {
    let every = experts.every.max(1);
    let after = layers.saturating_sub(experts.dense_layers);
    let mut parts = Vec::new();
    if experts.dense_layers > 0 {
        parts.push(format!("[0]*{}", experts.dense_layers));
    }
    match every {
        1 => parts.push(format!("[1]*{after}")),
        every => parts.push(format!("([0]*{}+[1])*{}", every - 1, after / every)),
    }
    if !after.is_multiple_of(every) {
        parts.push(format!("[0]*{}", after % every));
    }
    format!("({})", parts.join("+"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_covers_every_layer() {
        let experts = |dense_layers, every| Experts {
            count: 8,
            per_token: 2,
            ffn: 1024,
            shared_ffn: 0,
            dense_layers,
            every,
        };
        assert_eq!(pattern(61, experts(3, 1)), "([0]*3+[1]*58)");
        assert_eq!(pattern(48, experts(0, 2)), "(([0]*1+[1])*24)");
        assert_eq!(pattern(12, experts(1, 3)), "([0]*1+([0]*2+[1])*3+[0]*2)");
    }
}
