//! The split over GPUs, and what is computed again.

use super::super::error::EmitError;
use super::super::flags::{Command, Group};
use super::super::nodes::Nodes;
use super::PROGRAM;
use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::model::Attention;
use crate::pieces::Pieces;
use crate::run::{Run, Stack};

/// How the ranks share the model and the data.
pub(super) fn split(run: &Run, nodes: Nodes, command: &mut Command) -> Result<Group, EmitError> {
    let layout = &run.layout;
    let mut group = Group::new("SPLIT");
    group.put("--tensor-model-parallel-size", layout.tp);
    group.put("--pipeline-model-parallel-size", layout.pp);
    group.put("--context-parallel-size", layout.cp);
    tensor(&mut group, run, nodes, command)?;
    if run.model.experts.is_some() {
        group.put("--expert-model-parallel-size", layout.ep);
        group.put("--expert-tensor-parallel-size", 1);
    }
    pipeline(&mut group, run)?;
    copies(&mut group, run)?;
    Ok(group)
}

pub(super) fn lacks(what: impl Into<String>, possible: impl Into<String>) -> EmitError {
    EmitError::Setting { program: PROGRAM, what: what.into(), possible: possible.into() }
}

fn tensor(
    group: &mut Group,
    run: &Run,
    nodes: Nodes,
    command: &mut Command,
) -> Result<(), EmitError> {
    let layout = &run.layout;
    if layout.tp == 1 {
        return Ok(());
    }
    if run.model.experts.is_some() && !layout.sequence_parallel {
        return Err(lacks(
            format!("experts with TP {} and without sequence parallelism", layout.tp),
            "sequence parallelism, or TP 1",
        ));
    }
    group.set_if(layout.sequence_parallel, "--sequence-parallel");
    let overlaps = layout.tensor_overlap && run.stack != Stack::MegatronEarly;
    if overlaps && layout.sequence_parallel && layout.tp <= nodes.gpus_each {
        group.set("--tp-comm-overlap");
        group.put("--tp-comm-bootstrap-backend", "nccl");
    } else if overlaps {
        command.notes.push(
            "the plan has tensor-parallel traffic beside products; --tp-comm-overlap needs \
             sequence parallelism and TP within a node, and is left out."
                .to_owned(),
        );
    }
    Ok(())
}

fn pipeline(group: &mut Group, run: &Run) -> Result<(), EmitError> {
    let Layout { pp, vp, schedule, .. } = run.layout;
    if pp == 1 {
        return Ok(());
    }
    if schedule != Schedule::OneForwardOneBackward {
        let what = match schedule {
            Schedule::DualPipe => "schedule with two streams (DualPipe)",
            _ => "zero-bubble schedule",
        };
        return Err(lacks(what, "one forward, one backward, interleaved with VP above 1"));
    }
    let (layers, pieces) = (run.model.layers, pp * vp);
    let Pieces { at_first, at_end, .. } = Pieces::of(layers, pieces);
    if at_end <= 1 {
        group.set_if(at_first == 1, "--account-for-embedding-in-pipeline-split");
        group.set_if(at_end == 1, "--account-for-loss-in-pipeline-split");
        if vp > 1 {
            group.put("--num-virtual-stages-per-pipeline-rank", vp);
        }
    } else {
        group.quote("--pipeline-model-parallel-layout", &stages(layers, pieces, run));
    }
    Ok(())
}

/// The pieces as Megatron writes them: `Et*3|(t*4|)*14,t*3,L`.
fn stages(layers: u32, pieces: u32, run: &Run) -> String {
    let blocks: Vec<u32> = Pieces::of(layers, pieces).sizes().collect();
    let piece = |count: u32| match count {
        0 => String::new(),
        1 => "t".to_owned(),
        count => format!("t*{count}"),
    };
    let (first, rest) = blocks.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
    let (last, between) = rest.split_last().map_or((0, &[][..]), |(last, rest)| (*last, rest));
    let mut text = format!("E{}|", piece(first));
    for same in between.chunk_by(|left, right| left == right) {
        let one = format!("{}|", piece(same[0]));
        if same.len() > 1 {
            text.push_str(&format!("({one})*{},", same.len()));
        } else {
            text.push_str(&one);
        }
    }
    let further = "m".repeat(run.model.mtp_layers as usize);
    format!("{text}{}{further}L", piece(last))
}

fn copies(group: &mut Group, run: &Run) -> Result<(), EmitError> {
    let layout = &run.layout;
    let ranks = layout.dp * layout.cp;
    let groups = if layout.shard_group == 0 { 1 } else { ranks / layout.shard_group.max(1) };
    match layout.sharding {
        Sharding::None => group.set("--overlap-grad-reduce"),
        Sharding::Optimizer => {
            group.set("--use-distributed-optimizer");
            group.set("--overlap-grad-reduce");
            group.set("--overlap-param-gather");
        }
        Sharding::Gradients | Sharding::Weights => {
            if layout.pp > 1 {
                return Err(lacks(
                    "tested pipeline with Megatron-FSDP",
                    "PP 1, or the distributed optimizer (ZeRO 1) with a pipeline",
                ));
            }
            let is_all = layout.sharding == Sharding::Weights;
            group.set("--use-distributed-optimizer");
            group.set("--overlap-grad-reduce");
            group.set("--overlap-param-gather");
            group.set("--use-megatron-fsdp");
            group.put(
                "--data-parallel-sharding-strategy",
                if is_all { "optim_grads_params" } else { "optim_grads" },
            );
            group.set("--no-gradient-accumulation-fusion");
            group.set("--calculate-per-token-loss");
            group.set("--init-model-with-meta-device");
        }
    }
    if groups > 1 && layout.sharding != Sharding::None {
        group.put("--num-distributed-optimizer-instances", groups);
    }
    Ok(())
}

/// What is computed again on the way back.
pub(super) fn recompute(run: &Run, command: &mut Command) -> Result<Group, EmitError> {
    let mut group = Group::new("RECOMPUTE");
    let of_piece = run.model.layers.div_ceil(run.layout.pp * run.layout.vp);
    match run.layout.recompute {
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
            return Err(lacks(
                "recomputation of half of the products (`operators`)",
                "`none`, `attention`, `modules`, `every-second`, `layers:N` or `full`",
            ));
        }
        Recompute::EverySecond => {
            block(&mut group, of_piece.div_ceil(2));
            command.notes.push(
                "every second block is recomputed as the first half of each piece.".to_owned(),
            );
        }
        Recompute::Layers(count) => {
            let each = count.div_ceil(run.layout.vp).min(of_piece);
            if each > 0 {
                block(&mut group, each);
            }
            if !count.is_multiple_of(run.layout.vp) {
                command.notes.push(format!(
                    "{count} blocks of a stage do not divide into its {} pieces: {each} of each \
                     are recomputed.",
                    run.layout.vp
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

fn block(group: &mut Group, blocks: u32) {
    group.put("--recompute-granularity", "full");
    group.put("--recompute-method", "block");
    group.put("--recompute-num-layers", blocks);
}
