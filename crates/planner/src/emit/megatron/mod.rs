//! Megatron-LM's `pretrain_gpt.py`.

mod shape;
mod split;

use super::error::EmitError;
use super::flags::{Command, ENVIRONMENT, Group};
use super::known::Blocks;
use super::nodes::Nodes;
use super::{steps_between_checkpoints, whole};
use crate::gpu::Generation;
use crate::layout::Sharding;
use crate::plan::Plan;
use crate::precision::Precision;
use crate::run::{Run, Stack};

/// The program, as it is called in messages.
pub(super) const PROGRAM: &str = "`pretrain_gpt.py`";

/// The source that the flags were read in.
const VERSION: &str = "Megatron-LM, megatron-core 0.20.0, commit \
                       d98e8a64ddf34856e74b24714e3bedb2f5a39553";

/// A whole command for a run.
pub(super) fn command(plan: &Plan, run: &Run, nodes: Nodes) -> Result<Command, EmitError> {
    if run.model.window.global > 1 {
        return Err(EmitError::Model {
            program: PROGRAM,
            model: run.model.name.clone(),
            what: "the order of the blocks that see all",
            possible: "`--window-attn-skip-freq` with a list of its own, in a launch file by hand",
        });
    }
    let (details, known) = match Blocks::of(&run.model) {
        Blocks::Known(details) => (details, true),
        Blocks::Shape(details) => (details, false),
        Blocks::Not(what) => {
            return Err(EmitError::Model {
                program: PROGRAM,
                model: run.model.name.clone(),
                what,
                possible: "the model in code beside `pretrain_gpt.py`, with the split of this \
                           plan; torchtitan (stack `fsdp-compiled`) where that has the model",
            });
        }
    };
    let mut command = Command {
        entry: "\"$MEGATRON_DIR/pretrain_gpt.py\"",
        program: VERSION,
        groups: Vec::new(),
        environment: environment(run),
        unset: Vec::new(),
        asks: vec![
            ("MEGATRON_DIR", "a checkout of Megatron-LM"),
            ("DATA_PATH", "the data, without .bin and .idx, as preprocess_data.py writes it"),
        ],
        notes: Vec::new(),
    };
    if is_fully_sharded(run) {
        let why = "Megatron-FSDP refuses 1, which images may set";
        command.unset.push(("CUDA_DEVICE_MAX_CONNECTIONS", why));
    }
    if !known {
        command.notes.push(
            "the plan knows the shape of the model only. Hold the rest against its config.json: \
             norm epsilon, norms of queries and keys, activation, scaling of positions, routing."
                .to_owned(),
        );
    }
    let model = shape::model(run, &details, &mut command);
    let experts = shape::experts(run, &details);
    let split = split::split(run, nodes, &mut command)?;
    let recompute = split::recompute(run, &mut command)?;
    let precision = precision(run, &mut command)?;
    let training = training(plan, run, &mut command);
    let data = data(plan, run);
    command.groups = vec![model, experts, split, recompute, precision, training, data];
    Ok(command)
}

/// Whether the copies keep gradients or weights once: Megatron-FSDP.
fn is_fully_sharded(run: &Run) -> bool {
    run.layout.sharding >= Sharding::Gradients
}

fn environment(run: &Run) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut environment = ENVIRONMENT.to_vec();
    environment.push((
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "a collective that hangs leaves behind what each rank did last",
    ));
    environment.push((
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "2000",
        "the dump needs a ring buffer; an entry is one collective",
    ));
    // `validate_args` asks for it before Blackwell, and Megatron-FSDP refuses it.
    let shares_products = run.layout.tp > 1 || run.layout.cp > 1;
    if shares_products && !is_fully_sharded(run) && run.gpu.generation < Generation::Blackwell {
        environment.push((
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "1",
            "collectives start before the products that they run beside (Megatron asks for it)",
        ));
    }
    environment
}

fn precision(run: &Run, command: &mut Command) -> Result<Group, EmitError> {
    let mut group = Group::new("PRECISION");
    group.set(if run.precision == Precision::Fp16 { "--fp16" } else { "--bf16" });
    match run.precision {
        Precision::Fp16 | Precision::Bf16 => {}
        Precision::Fp8 => {
            group.put("--fp8-format", "hybrid");
            group.put("--fp8-recipe", "tensorwise");
        }
        Precision::Fp8Row => {
            return Err(split::lacks("8 bits with a scale for each row", "`fp8` or `fp8-block`"));
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
    // As the plan counts memory: Megatron Bridge keeps weights in these formats only.
    let keeps = run.stack == Stack::Bridge && run.layout.sharding != Sharding::None;
    if keeps && matches!(run.precision, Precision::Fp8 | Precision::Mxfp8) {
        group.set("--fp8-param-gather");
        let reuses = run.precision == Precision::Mxfp8 && !is_fully_sharded(run);
        group.set_if(reuses, "--reuse-grad-buf-for-mxfp8-param-ag");
    }
    group.set_if(
        run.layout.reduce_bytes == 2 && run.precision != Precision::Fp16,
        "--grad-reduce-in-bf16",
    );
    group.set_if(
        run.layout.reduce_bytes == 4 && run.precision == Precision::Fp16,
        "--accumulate-allreduce-grads-in-fp32",
    );
    moments(&mut group, run)?;
    if run.precision.is_scaled() {
        command.notes.push("8 and 4 bits need Transformer Engine with that recipe.".to_owned());
    }
    Ok(group)
}

/// Moments of fewer bits: Transformer Engine's Adam, over the distributed optimizer.
fn moments(group: &mut Group, run: &Run) -> Result<(), EmitError> {
    let kind = match run.layout.moment_bytes {
        4 => return Ok(()),
        2 => "bf16",
        _ => "fp8",
    };
    if run.layout.sharding == Sharding::None {
        return Err(split::lacks(
            "moments of fewer than 32 bits without the distributed optimizer",
            "ZeRO 1 or more, or moments of 32 bits",
        ));
    }
    group.set("--use-precision-aware-optimizer");
    group.put("--exp-avg-dtype", kind);
    group.put("--exp-avg-sq-dtype", kind);
    Ok(())
}

fn training(plan: &Plan, run: &Run, command: &mut Command) -> Group {
    let mut group = Group::new("TRAINING");
    group.put("--micro-batch-size", run.layout.micro_batch);
    group.put("--global-batch-size", run.global_batch);
    if let Some(tokens) = plan.tokens {
        let sequences = (tokens / f64::from(run.seq_len)).ceil().max(1.0);
        group.put("--train-samples", whole(sequences));
    } else {
        command.asks.push(("TRAIN_SAMPLES", "sequences to train on"));
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

fn data(plan: &Plan, run: &Run) -> Group {
    let mut group = Group::new("DATA");
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
