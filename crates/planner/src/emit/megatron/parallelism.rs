//! Flags of parallelism and recompute.

use super::super::error::EmitError;
use super::super::flags::{FlagGroup, LaunchCommand};
use super::super::nodes::Nodes;
use super::FRAMEWORK;
use crate::layer_assignment::LayerAssignment;
use crate::model::Attention;
use crate::parallelism::{ParallelConfig, Recompute, Schedule, Sharding};
use crate::run::{Framework, TrainingRun};

/// Flags of the parallelism config.
pub(super) fn parallelism(
    run: &TrainingRun,
    nodes: Nodes,
    command: &mut LaunchCommand,
) -> Result<FlagGroup, EmitError> {
    let parallelism = &run.parallelism;
    let mut group = FlagGroup::new("PARALLELISM");
    group.put("--tensor-model-parallel-size", parallelism.tp);
    group.put("--pipeline-model-parallel-size", parallelism.pp);
    group.put("--context-parallel-size", parallelism.cp);
    tensor_parallel(&mut group, run, nodes, command)?;
    if run.model.experts.is_some() {
        group.put("--expert-model-parallel-size", parallelism.ep);
        group.put("--expert-tensor-parallel-size", 1);
    }
    pipeline(&mut group, run)?;
    data_parallel(&mut group, run)?;
    Ok(group)
}

pub(super) fn unsupported(what: impl Into<String>, possible: impl Into<String>) -> EmitError {
    EmitError::Setting { framework: FRAMEWORK, what: what.into(), possible: possible.into() }
}

fn tensor_parallel(
    group: &mut FlagGroup,
    run: &TrainingRun,
    nodes: Nodes,
    command: &mut LaunchCommand,
) -> Result<(), EmitError> {
    let parallelism = &run.parallelism;
    if parallelism.tp == 1 {
        return Ok(());
    }
    if run.model.experts.is_some() && !parallelism.sequence_parallel {
        return Err(unsupported(
            format!("experts with TP {} but without sequence parallelism", parallelism.tp),
            "sequence parallelism, or TP 1",
        ));
    }
    group.set_if(parallelism.sequence_parallel, "--sequence-parallel");
    let overlaps = parallelism.tensor_overlap && run.framework != Framework::MegatronEarly;
    if overlaps && parallelism.sequence_parallel && parallelism.tp <= nodes.gpus_used {
        group.set("--tp-comm-overlap");
        group.put("--tp-comm-bootstrap-backend", "nccl");
    } else if overlaps {
        command.notes.push(
            "the plan overlaps tensor-parallel communication with GEMMs; --tp-comm-overlap needs \
             sequence parallelism and TP within a node, and is omitted."
                .to_owned(),
        );
    }
    Ok(())
}

fn pipeline(group: &mut FlagGroup, run: &TrainingRun) -> Result<(), EmitError> {
    let ParallelConfig { pp, vp, schedule, .. } = run.parallelism;
    if pp == 1 {
        return Ok(());
    }
    if schedule != Schedule::OneForwardOneBackward {
        let what = match schedule {
            Schedule::DualPipe => "the DualPipe schedule",
            _ => "the zero-bubble schedule",
        };
        return Err(unsupported(what, "1F1B, interleaved with VP above 1"));
    }
    let (layers, virtual_stages) = (run.model.layers, pp * vp);
    let LayerAssignment { first_missing, last_missing, .. } =
        LayerAssignment::new(layers, virtual_stages);
    if last_missing <= 1 {
        group.set_if(first_missing == 1, "--account-for-embedding-in-pipeline-split");
        group.set_if(last_missing == 1, "--account-for-loss-in-pipeline-split");
        if vp > 1 {
            group.put("--num-virtual-stages-per-pipeline-rank", vp);
        }
    } else {
        group.quote(
            "--pipeline-model-parallel-layout",
            &pipeline_layout(layers, virtual_stages, run),
        );
    }
    Ok(())
}

/// The layer assignment in Megatron's syntax: `Et*3|(t*4|)*14,t*3,L`.
fn pipeline_layout(layers: u32, virtual_stages: u32, run: &TrainingRun) -> String {
    let counts: Vec<u32> = LayerAssignment::new(layers, virtual_stages).layer_counts().collect();
    let stage_layers = |count: u32| match count {
        0 => String::new(),
        1 => "t".to_owned(),
        count => format!("t*{count}"),
    };
    let (first, rest) = counts.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
    let (last, between) = rest.split_last().map_or((0, &[][..]), |(last, rest)| (*last, rest));
    let mut text = format!("E{}|", stage_layers(first));
    for same in between.chunk_by(|left, right| left == right) {
        let one = format!("{}|", stage_layers(same[0]));
        if same.len() > 1 {
            text.push_str(&format!("({one})*{},", same.len()));
        } else {
            text.push_str(&one);
        }
    }
    let mtp = "m".repeat(run.model.mtp_layers as usize);
    format!("{text}{}{mtp}L", stage_layers(last))
}

fn data_parallel(group: &mut FlagGroup, run: &TrainingRun) -> Result<(), EmitError> {
    let parallelism = &run.parallelism;
    let ranks = parallelism.dp * parallelism.cp;
    let groups =
        if parallelism.shard_group == 0 { 1 } else { ranks / parallelism.shard_group.max(1) };
    match parallelism.sharding {
        Sharding::None => group.set("--overlap-grad-reduce"),
        Sharding::Optimizer => {
            group.set("--use-distributed-optimizer");
            group.set("--overlap-grad-reduce");
            group.set("--overlap-param-gather");
        }
        Sharding::Gradients | Sharding::Weights => {
            if parallelism.pp > 1 {
                return Err(unsupported(
                    "a tested combination of pipeline and Megatron-FSDP",
                    "PP 1, or the distributed optimizer (ZeRO-1) with a pipeline",
                ));
            }
            let shards_weights = parallelism.sharding == Sharding::Weights;
            group.set("--use-distributed-optimizer");
            group.set("--overlap-grad-reduce");
            group.set("--overlap-param-gather");
            group.set("--use-megatron-fsdp");
            group.put(
                "--data-parallel-sharding-strategy",
                if shards_weights { "optim_grads_params" } else { "optim_grads" },
            );
            group.set("--no-gradient-accumulation-fusion");
            group.set("--calculate-per-token-loss");
            group.set("--init-model-with-meta-device");
        }
    }
    if groups > 1 && parallelism.sharding != Sharding::None {
        group.put("--num-distributed-optimizer-instances", groups);
    }
    Ok(())
}

/// Flags of recompute.
pub(super) fn recompute(
    run: &TrainingRun,
    command: &mut LaunchCommand,
) -> Result<FlagGroup, EmitError> {
    let mut group = FlagGroup::new("RECOMPUTE");
    let per_virtual_stage = run.model.layers.div_ceil(run.parallelism.pp * run.parallelism.vp);
    match run.parallelism.recompute {
        Recompute::None => {}
        Recompute::Attention => {
            group.put("--recompute-granularity", "selective");
            group.put("--recompute-modules", "core_attn");
        }
        Recompute::Modules => {
            let mut modules = vec!["layernorm"];
            if run.model.experts.is_some() {
                modules.push("moe_act");
            }
            if matches!(run.model.attention, Attention::Latent { .. }) {
                modules.push("mla_up_proj");
            }
            group.put("--recompute-granularity", "selective");
            group.put("--recompute-modules", modules.join(" "));
        }
        Recompute::Operators => {
            return Err(unsupported(
                "recompute of half of the GEMMs (`operators`)",
                "`none`, `attention`, `modules`, `every-second`, `layers:N` or `full`",
            ));
        }
        Recompute::EverySecond => {
            recompute_layers(&mut group, per_virtual_stage.div_ceil(2));
            command.notes.push(
                "instead of every second layer, the first half of each virtual stage is recomputed."
                    .to_owned(),
            );
        }
        Recompute::Layers(count) => {
            let layers = count.div_ceil(run.parallelism.vp).min(per_virtual_stage);
            if layers > 0 {
                recompute_layers(&mut group, layers);
            }
            if !count.is_multiple_of(run.parallelism.vp) {
                command.notes.push(format!(
                    "{count} layers of a stage do not divide into its {} virtual stages: {layers} of \
                     each are recomputed.",
                    run.parallelism.vp
                ));
            }
        }
        Recompute::Full => {
            group.put("--recompute-granularity", "full");
            group.put("--recompute-method", "uniform");
            group.put("--recompute-num-layers", 1);
        }
    }
    Ok(group)
}

fn recompute_layers(group: &mut FlagGroup, layers: u32) {
    group.put("--recompute-granularity", "full");
    group.put("--recompute-method", "block");
    group.put("--recompute-num-layers", layers);
}
