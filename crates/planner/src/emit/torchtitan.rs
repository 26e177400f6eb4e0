//! Flags of torchtitan.

use super::error::EmitError;
use super::flags::{ENVIRONMENT, FlagGroup, LaunchCommand};
use super::{steps_between_checkpoints, to_u64};
use crate::layer_assignment::LayerAssignment;
use crate::model::{Attention, TransformerConfig, builtin};
use crate::parallelism::{ParallelConfig, Recompute, Schedule, Sharding};
use crate::plan::TrainingPlan;
use crate::precision::Precision;
use crate::run::{Framework, TrainingRun};

/// Display name.
pub(super) const FRAMEWORK: &str = "torchtitan 0.2.2";

/// Source of the flags: the last release that is configured by flags alone.
const VERSION: &str = "torchtitan v0.2.2, commit 73a0e6979dd10b6b1904098eb3c8f62c18ab87ce: \
                       pip install torchtitan==0.2.2 (later releases are configured in Python)";

/// A model of torchtitan's registry (`torchtitan/models/*/__init__.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flavor {
    builtin: &'static str,
    model: &'static str,
    size: &'static str,
    /// Whether it supports pipeline parallelism (`pipelining_fn`).
    supports_pp: bool,
    /// Whether it supports context parallelism (SDPA attention).
    supports_cp: bool,
}

const fn flavor(builtin: &'static str, model: &'static str, size: &'static str) -> Flavor {
    Flavor { builtin, model, size, supports_pp: true, supports_cp: true }
}

const fn qwen(builtin: &'static str, size: &'static str) -> Flavor {
    Flavor { supports_pp: false, ..flavor(builtin, "qwen3", size) }
}

const fn flex(builtin: &'static str, model: &'static str, size: &'static str) -> Flavor {
    Flavor { supports_cp: false, ..flavor(builtin, model, size) }
}

const FLAVORS: [Flavor; 20] = [
    flavor("llama3-8b", "llama3", "8B"),
    flavor("llama3-70b", "llama3", "70B"),
    flavor("llama3.3-70b", "llama3", "70B"),
    flavor("llama3.1-405b", "llama3", "405B"),
    qwen("qwen3-0.6b", "0.6B"),
    qwen("qwen3-1.7b", "1.7B"),
    qwen("qwen3-4b", "4B"),
    qwen("qwen3-8b", "8B"),
    qwen("qwen3-14b", "14B"),
    qwen("qwen3-32b", "32B"),
    qwen("qwen3-30b-a3b", "30B-A3B"),
    qwen("qwen3-235b-a22b", "235B-A22B"),
    flex("deepseek-v2-lite", "deepseek_v3", "16B"),
    flex("deepseek-v2", "deepseek_v3", "236B"),
    flex("deepseek-v3", "deepseek_v3", "671B"),
    flex("deepseek-v3-no-mtp", "deepseek_v3", "671B"),
    flex("llama4-scout", "llama4", "17bx16e_irope"),
    flex("llama4-maverick", "llama4", "17bx128e_irope"),
    Flavor { supports_pp: false, ..flex("gpt-oss-20b", "gpt_oss", "20b") },
    Flavor { supports_pp: false, ..flex("gpt-oss-120b", "gpt_oss", "120b") },
];

impl Flavor {
    /// A model counts as built-in only if its shape matches, not just its name.
    fn for_model(model: &TransformerConfig) -> Option<Self> {
        let record = builtin::by_name(&model.name)?;
        let builtin = record.model();
        let has_same_shape =
            TransformerConfig { name: builtin.name.clone(), ..model.clone() } == builtin;
        FLAVORS.into_iter().find(|flavor| has_same_shape && flavor.builtin == record.name)
    }
}

/// The launch command of a run.
pub(super) fn command(plan: &TrainingPlan, run: &TrainingRun) -> Result<LaunchCommand, EmitError> {
    let flavor = Flavor::for_model(&run.model);
    let mut command = LaunchCommand {
        entry: "-m torchtitan.train",
        framework: VERSION,
        groups: Vec::new(),
        environment: ENVIRONMENT.to_vec(),
        unset: Vec::new(),
        required_variables: vec![(
            "DATA_PATH",
            "path of the dataset that DATASET names (default c4), for Hugging Face load_dataset",
        )],
        notes: Vec::new(),
    };
    let model = model(run, flavor, &mut command)?;
    let parallelism = parallelism(run, flavor)?;
    let training = training(plan, run, &mut command)?;
    let checkpoints = activations(run)?;
    let mut rest = FlagGroup::new("REST");
    rest.set_if(run.framework == Framework::FsdpCompiled, "--compile.enable");
    rest.variable("--job.dump_folder", "CHECKPOINT_DIR");
    rest.set("--checkpoint.enable");
    let steps = steps_between_checkpoints(plan);
    rest.put("--checkpoint.interval", format!("\"${{SAVE_INTERVAL:-{steps}}}\""));
    rest.put("--checkpoint.async_mode", "async");
    rest.put("--metrics.log_freq", 10);
    command.groups = vec![model, parallelism, training, checkpoints, rest];
    Ok(command)
}

fn unsupported(what: impl Into<String>, possible: impl Into<String>) -> EmitError {
    EmitError::Setting { framework: FRAMEWORK, what: what.into(), possible: possible.into() }
}

fn model(
    run: &TrainingRun,
    flavor: Option<Flavor>,
    command: &mut LaunchCommand,
) -> Result<FlagGroup, EmitError> {
    let mut group = FlagGroup::new("MODEL");
    if let Some(flavor) = flavor {
        group.put("--model.name", flavor.model);
        group.put("--model.flavor", flavor.size);
    } else {
        command.notes.push(
            "torchtitan has no flavor of this model: add one to the registry of a similar model \
             (torchtitan/models/*/__init__.py) and set MODEL_NAME and MODEL_FLAVOR. \
             Its shape:"
                .to_owned(),
        );
        command.notes.push(shape(&run.model));
        command
            .required_variables
            .push(("MODEL_NAME", "a model of torchtitan's registry, such as llama3"));
        command.required_variables.push(("MODEL_FLAVOR", "the flavor added for this model"));
        group.variable("--model.name", "MODEL_NAME");
        group.variable("--model.flavor", "MODEL_FLAVOR");
    }
    if run.model.mtp_layers > 0 {
        command.notes.push("torchtitan has no MTP layers; the plan includes them.".to_owned());
    }
    group.variable("--model.hf_assets_path", "TOKENIZER_MODEL");
    precision(&mut group, run, command)?;
    Ok(group)
}

fn shape(model: &TransformerConfig) -> String {
    let attention = match model.attention {
        Attention::Grouped { heads, kv_heads, head_dim } => {
            format!("{heads} heads of {head_dim}, {kv_heads} KV heads")
        }
        Attention::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim } => format!(
            "{heads} heads of {nope_dim} + {rope_dim} and {v_dim}, latents of {q_rank} and \
             {kv_rank}"
        ),
    };
    let experts = model.experts.map_or_else(String::new, |experts| {
        format!(
            ", {} experts of {} (top-{}, {} shared, {} dense layers first)",
            experts.count, experts.ffn, experts.per_token, experts.shared_ffn, experts.dense_layers
        )
    });
    format!(
        "{} layers, width {}, {attention}, feed-forward {}{experts}, vocabulary {}{}.",
        model.layers,
        model.hidden,
        model.ffn,
        model.vocab,
        if model.tied { ", tied" } else { "" }
    )
}

/// Combinations that torchtitan's converters reject (`components/quantization/`).
fn check_converters(run: &TrainingRun) -> Result<(), EmitError> {
    let ParallelConfig { tp, pp, cp, .. } = run.parallelism;
    let is_float8 = matches!(run.precision, Precision::Fp8 | Precision::Fp8Row);
    if is_float8 && run.model.experts.is_some() && (pp > 1 || cp > 1) {
        return Err(unsupported(
            format!("`{}` experts with PP {pp} and CP {cp}", run.precision.name()),
            "PP 1 and CP 1, or `bf16` or `mxfp8`",
        ));
    }
    if run.precision == Precision::Mxfp8 && tp > 1 && run.framework == Framework::FsdpCompiled {
        return Err(unsupported("`mxfp8` with TP when compiled", "TP 1, or stack `fsdp`"));
    }
    Ok(())
}

fn precision(
    group: &mut FlagGroup,
    run: &TrainingRun,
    command: &mut LaunchCommand,
) -> Result<(), EmitError> {
    check_converters(run)?;
    let is_moe = run.model.experts.is_some();
    let converters = |linear: &str, grouped: &str| {
        if is_moe { format!("{linear},{grouped}") } else { linear.to_owned() }
    };
    match run.precision {
        Precision::Bf16 => return Ok(()),
        Precision::Fp16 | Precision::Fp8Block | Precision::Nvfp4 => {
            return Err(unsupported(
                format!("training in `{}`", run.precision.name()),
                "`bf16`, `fp8`, `fp8-row` or `mxfp8`",
            ));
        }
        Precision::Fp8 | Precision::Fp8Row => {
            let names = converters("quantize.linear.float8", "quantize.grouped_mm.float8");
            group.quote("--model.converters", &names);
            group.put("--quantize.linear.float8.filter_fqns", "output");
            if run.precision == Precision::Fp8Row {
                group.put("--quantize.linear.float8.recipe_name", "rowwise");
            } else {
                group.set("--quantize.linear.float8.enable_fsdp_float8_all_gather");
                group.set("--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp");
            }
            if is_moe {
                group.put("--quantize.grouped_mm.float8.fqns", "experts");
            }
        }
        Precision::Mxfp8 => {
            let names = converters("quantize.linear.mx", "quantize.grouped_mm.mx");
            group.quote("--model.converters", &names);
            group.put("--quantize.linear.mx.filter_fqns", "output");
            if is_moe {
                group.put("--quantize.grouped_mm.mx.fqns", "experts");
            }
        }
    }
    command.notes.push("FP8 needs torchao; FP8 experts need a nightly build of it.".to_owned());
    Ok(())
}

fn parallelism(run: &TrainingRun, flavor: Option<Flavor>) -> Result<FlagGroup, EmitError> {
    let parallelism = &run.parallelism;
    let mut group = FlagGroup::new("PARALLELISM");
    data_parallel(&mut group, parallelism)?;
    group.put("--parallelism.tensor_parallel_degree", parallelism.tp);
    if parallelism.tp > 1 {
        if !parallelism.sequence_parallel {
            return Err(unsupported(
                "tensor parallelism without sequence parallelism",
                "sequence parallelism, or TP 1",
            ));
        }
        group.set_if(
            parallelism.tensor_overlap && run.framework == Framework::FsdpCompiled,
            "--parallelism.enable_async_tensor_parallel",
        );
    }
    if parallelism.cp > 1 && flavor.is_some_and(|flavor| !flavor.supports_cp) {
        return Err(unsupported(
            format!("context parallelism for `{}`", run.model.name),
            "CP 1, or Megatron (stack `megatron-bridge`)",
        ));
    }
    group.put("--parallelism.context_parallel_degree", parallelism.cp);
    pipeline(&mut group, run, flavor)?;
    if run.model.experts.is_some() {
        group.put("--parallelism.expert_parallel_degree", parallelism.ep);
        group.put("--parallelism.expert_tensor_parallel_degree", 1);
    }
    Ok(group)
}

fn data_parallel(group: &mut FlagGroup, parallelism: &ParallelConfig) -> Result<(), EmitError> {
    let ParallelConfig { dp, cp, shard_group, .. } = *parallelism;
    let (replicas, shards) = match parallelism.sharding {
        Sharding::None => (dp, 1),
        Sharding::Optimizer => {
            return Err(unsupported(
                "sharding of the optimizer alone (ZeRO-1)",
                "sharding of weights (ZeRO-3) or gradients (ZeRO-2), or Megatron",
            ));
        }
        Sharding::Gradients | Sharding::Weights if shard_group == 0 => (1, dp),
        Sharding::Gradients | Sharding::Weights => {
            let shards = shard_group / cp;
            if !shard_group.is_multiple_of(cp) || shards == 0 || !dp.is_multiple_of(shards) {
                return Err(unsupported(
                    format!("a sharding group of {shard_group} with DP {dp} and CP {cp}"),
                    format!("a multiple of CP {cp} that divides DP × CP"),
                ));
            }
            (dp / shards, shards)
        }
    };
    group.put("--parallelism.data_parallel_replicate_degree", replicas);
    group.put("--parallelism.data_parallel_shard_degree", shards);
    if parallelism.sharding == Sharding::Gradients {
        group.put("--parallelism.fsdp_reshard_after_forward", "never");
    } else if parallelism.sharding == Sharding::Weights {
        group.put("--parallelism.fsdp_reshard_after_forward", "always");
    }
    Ok(())
}

fn pipeline(
    group: &mut FlagGroup,
    run: &TrainingRun,
    flavor: Option<Flavor>,
) -> Result<(), EmitError> {
    let ParallelConfig { pp, vp, micro_batch, schedule, .. } = run.parallelism;
    group.put("--parallelism.pipeline_parallel_degree", pp);
    if pp == 1 {
        return Ok(());
    }
    if flavor.is_some_and(|flavor| !flavor.supports_pp) {
        return Err(unsupported(
            format!("pipeline parallelism for `{}`", run.model.name),
            "PP 1, or Megatron (stack `megatron-bridge`)",
        ));
    }
    if schedule != Schedule::OneForwardOneBackward {
        return Err(unsupported("the schedule of the plan", "1F1B, interleaved with VP above 1"));
    }
    let name = if vp > 1 { "Interleaved1F1B" } else { "1F1B" };
    group.put("--parallelism.pipeline_parallel_schedule", name);
    group.put("--parallelism.pipeline_parallel_microbatch_size", micro_batch);
    let virtual_stages = pp * vp;
    let layers = run.model.layers;
    // Only the first and the last stage may have fewer layers.
    let LayerAssignment { layers_max, first_missing, last_missing, .. } =
        LayerAssignment::new(layers, virtual_stages);
    if last_missing > layers_max.max(2) - 1 {
        return Err(unsupported(
            format!("{layers} layers in {virtual_stages} virtual stages"),
            "a PP × VP that leaves a layer for the last virtual stage",
        ));
    }
    group.put("--parallelism.pipeline_parallel_layers_per_stage", layers_max);
    group.put("--parallelism.pipeline_parallel_first_stage_less_layers", first_missing);
    group.put("--parallelism.pipeline_parallel_last_stage_less_layers", last_missing);
    Ok(())
}

fn training(
    plan: &TrainingPlan,
    run: &TrainingRun,
    command: &mut LaunchCommand,
) -> Result<FlagGroup, EmitError> {
    if run.parallelism.reduce_bytes != 4 {
        return Err(unsupported("16-bit gradient reduction", "`--grad-dtype fp32`"));
    }
    if run.parallelism.moment_bytes != 4 {
        return Err(unsupported("optimizer moments below 32 bits", "`--optimizer-dtype fp32`"));
    }
    let mut group = FlagGroup::new("TRAINING");
    // With a pipeline, torchtitan takes the whole batch of a replica and splits it itself.
    let local = if run.parallelism.pp > 1 {
        run.global_batch / run.parallelism.dp.max(1)
    } else {
        run.parallelism.micro_batch
    };
    group.put("--training.local_batch_size", local);
    group.put("--training.global_batch_size", run.global_batch);
    group.put("--training.seq_len", run.seq_len);
    group.put("--training.mixed_precision_param", "bfloat16");
    group.put("--training.mixed_precision_reduce", "float32");
    if let Some(tokens) = plan.tokens {
        let steps = (tokens / run.tokens_per_step()).ceil().max(1.0);
        group.put("--training.steps", to_u64(steps));
    } else {
        command.required_variables.push(("TRAIN_STEPS", "number of training steps"));
        group.variable("--training.steps", "TRAIN_STEPS");
    }
    group.put("--training.dataset", "\"${DATASET:-c4}\"");
    group.variable("--training.dataset_path", "DATA_PATH");
    group.variable("--optimizer.lr", "LR");
    group.put("--lr_scheduler.warmup_steps", "\"${LR_WARMUP_STEPS:-200}\"");
    Ok(group)
}

fn activations(run: &TrainingRun) -> Result<FlagGroup, EmitError> {
    let mut group = FlagGroup::new("ACTIVATIONS");
    let layers_per_stage = run.model.layers.div_ceil(run.parallelism.pp);
    let selective = |group: &mut FlagGroup, option: String| {
        group.put("--activation_checkpoint.mode", "selective");
        group.put("--activation_checkpoint.selective_ac_option", option);
    };
    match run.parallelism.recompute {
        // Flash attention does not store the intermediates of the attention core anyway.
        Recompute::None | Recompute::Attention | Recompute::Layers(0) => {
            group.put("--activation_checkpoint.mode", "none");
        }
        Recompute::Operators => selective(&mut group, "op".to_owned()),
        Recompute::EverySecond => selective(&mut group, "2".to_owned()),
        Recompute::Full => group.put("--activation_checkpoint.mode", "full"),
        Recompute::Layers(count) if layers_per_stage.is_multiple_of(count) => {
            selective(&mut group, (layers_per_stage / count).to_string());
        }
        Recompute::Layers(_) | Recompute::Modules => {
            return Err(unsupported(
                format!("recompute `{}`", run.parallelism.recompute.name()),
                "`none`, `operators`, `every-second` or `full`",
            ));
        }
    }
    Ok(group)
}
