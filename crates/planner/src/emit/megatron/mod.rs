//! Flags of Megatron-LM's `pretrain_gpt.py`.

mod model;
mod parallelism;

use super::error::EmitError;
use super::flags::{ENVIRONMENT, FlagGroup, LaunchCommand};
use super::model_flags::ModelSupport;
use super::nodes::Nodes;
use super::{steps_between_checkpoints, to_u64};
use crate::gpu::Generation;
use crate::parallelism::Sharding;
use crate::plan::TrainingPlan;
use crate::precision::Precision;
use crate::run::{Framework, TrainingRun};

/// Display name.
pub(super) const FRAMEWORK: &str = "`pretrain_gpt.py`";

/// Source of the flags.
const VERSION: &str = "Megatron-LM, megatron-core 0.20.0, commit \
                       d98e8a64ddf34856e74b24714e3bedb2f5a39553";

/// The launch command of a run.
pub(super) fn command(
    plan: &TrainingPlan,
    run: &TrainingRun,
    nodes: Nodes,
) -> Result<LaunchCommand, EmitError> {
    if run.model.window.global > 1 {
        return Err(EmitError::Model {
            framework: FRAMEWORK,
            model: run.model.name.clone(),
            what: "the order of the full-attention layers",
            possible: "a hand-written script with its own `--window-attn-skip-freq` list",
        });
    }
    let (flags, is_complete) = match ModelSupport::for_model(&run.model) {
        ModelSupport::Full(flags) => (flags, true),
        ModelSupport::ShapeOnly(flags) => (flags, false),
        ModelSupport::Unsupported(what) => {
            return Err(EmitError::Model {
                framework: FRAMEWORK,
                model: run.model.name.clone(),
                what,
                possible: "custom model code next to `pretrain_gpt.py`, with the parallelism of this \
                           plan; torchtitan (stack `fsdp-compiled`) if it has the model",
            });
        }
    };
    let mut command = LaunchCommand {
        entry: "\"$MEGATRON_DIR/pretrain_gpt.py\"",
        framework: VERSION,
        groups: Vec::new(),
        environment: environment(run),
        unset: Vec::new(),
        required_variables: vec![
            ("MEGATRON_DIR", "a checkout of Megatron-LM"),
            ("DATA_PATH", "the dataset, without .bin and .idx, as written by preprocess_data.py"),
        ],
        notes: Vec::new(),
    };
    if is_fully_sharded(run) {
        let reason = "Megatron-FSDP rejects 1, which container images may set";
        command.unset.push(("CUDA_DEVICE_MAX_CONNECTIONS", reason));
    }
    if !is_complete {
        command.notes.push(
            "the plan knows only the shape of the model. Compare the rest to its config.json: norm \
             epsilon, query and key norms, activation function, RoPE scaling, routing."
                .to_owned(),
        );
    }
    let model = model::model(run, &flags, &mut command);
    let experts = model::experts(run, &flags);
    let parallelism = parallelism::parallelism(run, nodes, &mut command)?;
    let recompute = parallelism::recompute(run, &mut command)?;
    let precision = precision(run, &mut command)?;
    let training = training(plan, run, &mut command);
    let data = data(plan, run);
    command.groups = vec![model, experts, parallelism, recompute, precision, training, data];
    Ok(command)
}

/// Whether gradients or weights are sharded, which needs Megatron-FSDP.
fn is_fully_sharded(run: &TrainingRun) -> bool {
    run.parallelism.sharding >= Sharding::Gradients
}

fn environment(run: &TrainingRun) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut environment = ENVIRONMENT.to_vec();
    environment.push((
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "a hanging collective dumps the last operations of each rank",
    ));
    environment.push((
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "2000",
        "the dump needs a ring buffer; one entry per collective",
    ));
    // Megatron's `validate_args` requires this variable before Blackwell, and Megatron-FSDP rejects
    // it.
    let has_tp_or_cp = run.parallelism.tp > 1 || run.parallelism.cp > 1;
    if has_tp_or_cp && !is_fully_sharded(run) && run.gpu.generation < Generation::Blackwell {
        environment.push((
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "1",
            "collectives launch before the GEMMs that they overlap with (required by Megatron)",
        ));
    }
    environment
}

fn precision(run: &TrainingRun, command: &mut LaunchCommand) -> Result<FlagGroup, EmitError> {
    let mut group = FlagGroup::new("PRECISION");
    group.set(if run.precision == Precision::Fp16 { "--fp16" } else { "--bf16" });
    match run.precision {
        Precision::Fp16 | Precision::Bf16 => {}
        Precision::Fp8 => {
            group.put("--fp8-format", "hybrid");
            group.put("--fp8-recipe", "tensorwise");
        }
        Precision::Fp8Row => {
            return Err(parallelism::unsupported(
                "FP8 with one scale per row",
                "`fp8` or `fp8-block`",
            ));
        }
        Precision::Fp8Block => {
            group.put("--fp8-format", "e4m3");
            group.put("--fp8-recipe", "blockwise");
        }
        Precision::Mxfp8 => {
            group.put("--fp8-format", "e4m3");
            group.put("--fp8-recipe", "mxfp8");
        }
        Precision::Nvfp4 => {
            group.put("--fp4-format", "e2m1");
            group.put("--fp4-recipe", "nvfp4");
        }
    }
    // Megatron Bridge stores FP8 and MXFP8 weights without a 16-bit copy. The memory estimate
    // assumes the same.
    let keeps_fp8 =
        run.framework == Framework::Bridge && run.parallelism.sharding != Sharding::None;
    if keeps_fp8 && matches!(run.precision, Precision::Fp8 | Precision::Mxfp8) {
        group.set("--fp8-param-gather");
        let reuses_buffer = run.precision == Precision::Mxfp8 && !is_fully_sharded(run);
        group.set_if(reuses_buffer, "--reuse-grad-buf-for-mxfp8-param-ag");
    }
    group.set_if(
        run.parallelism.reduce_bytes == 2 && run.precision != Precision::Fp16,
        "--grad-reduce-in-bf16",
    );
    group.set_if(
        run.parallelism.reduce_bytes == 4 && run.precision == Precision::Fp16,
        "--accumulate-allreduce-grads-in-fp32",
    );
    moments(&mut group, run)?;
    if run.precision.is_scaled() {
        command.notes.push("FP8 and FP4 need a Transformer Engine with that recipe.".to_owned());
    }
    Ok(group)
}

/// Low-precision moments: Transformer Engine's Adam with the distributed optimizer.
fn moments(group: &mut FlagGroup, run: &TrainingRun) -> Result<(), EmitError> {
    let dtype = match run.parallelism.moment_bytes {
        4 => return Ok(()),
        2 => "bf16",
        _ => "fp8",
    };
    if run.parallelism.sharding == Sharding::None {
        return Err(parallelism::unsupported(
            "optimizer moments below 32 bits without the distributed optimizer",
            "ZeRO-1 or above, or 32-bit moments",
        ));
    }
    group.set("--use-precision-aware-optimizer");
    group.put("--exp-avg-dtype", dtype);
    group.put("--exp-avg-sq-dtype", dtype);
    Ok(())
}

fn training(plan: &TrainingPlan, run: &TrainingRun, command: &mut LaunchCommand) -> FlagGroup {
    let mut group = FlagGroup::new("TRAINING");
    group.put("--micro-batch-size", run.parallelism.micro_batch);
    group.put("--global-batch-size", run.global_batch);
    if let Some(tokens) = plan.tokens {
        let sequences = (tokens / f64::from(run.seq_len)).ceil().max(1.0);
        group.put("--train-samples", to_u64(sequences));
    } else {
        command.required_variables.push(("TRAIN_SAMPLES", "number of training sequences"));
        group.variable("--train-samples", "TRAIN_SAMPLES");
    }
    group.variable("--lr", "LR");
    group.put("--min-lr", "\"${MIN_LR:-0}\"");
    group.put("--lr-decay-style", "cosine");
    group.put("--lr-warmup-fraction", "\"${LR_WARMUP_FRACTION:-0.01}\"");
    group.put("--weight-decay", "0.1");
    group.put("--clip-grad", "1.0");
    group.put("--adam-beta1", "0.9");
    group.put("--adam-beta2", "0.95");
    group.put("--attention-dropout", "0.0");
    group.put("--hidden-dropout", "0.0");
    group.set("--cross-entropy-loss-fusion");
    group.set("--manual-gc");
    group.put("--manual-gc-interval", 100);
    group
}

fn data(plan: &TrainingPlan, run: &TrainingRun) -> FlagGroup {
    let mut group = FlagGroup::new("DATA");
    group.variable("--data-path", "DATA_PATH");
    group.quote("--split", "100,0,0");
    group.put("--eval-iters", 0);
    group.set("--no-create-attention-mask-in-dataloader");
    group.put("--tokenizer-type", "HuggingFaceTokenizer");
    group.variable("--tokenizer-model", "TOKENIZER_MODEL");
    group.variable("--save", "CHECKPOINT_DIR");
    group.variable("--load", "CHECKPOINT_DIR");
    let steps = steps_between_checkpoints(plan);
    group.put("--save-interval", format!("\"${{SAVE_INTERVAL:-{steps}}}\""));
    group.put("--ckpt-format", if is_fully_sharded(run) { "fsdp_dtensor" } else { "torch_dist" });
    group.put("--log-interval", 10);
    group.set("--log-throughput");
    group.put("--distributed-timeout-minutes", 60);
    group
}
