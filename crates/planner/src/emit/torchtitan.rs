//! torchtitan.

use super::error::EmitError;
use super::flags::{Command, ENVIRONMENT, Group};
use super::{steps_between_checkpoints, whole};
use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::model::{Attention, Model, builtin};
use crate::pieces::Pieces;
use crate::plan::Plan;
use crate::precision::Precision;
use crate::run::{Run, Stack};

/// The program, as it is called in messages.
pub(super) const PROGRAM: &str = "torchtitan 0.2.2";

/// The source that the flags were read in: the last release that is configured by flags alone.
const VERSION: &str = "torchtitan v0.2.2, commit 73a0e6979dd10b6b1904098eb3c8f62c18ab87ce: \
                       pip install torchtitan==0.2.2 (later ones are configured in Python)";

/// A model of torchtitan's registry (`torchtitan/models/*/__init__.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flavor {
    ours: &'static str,
    model: &'static str,
    size: &'static str,
    /// Whether it can be cut into stages (`pipelining_fn`).
    pipelines: bool,
    /// Whether a sequence can be shared (attention by SDPA).
    shares_sequence: bool,
}

const fn flavor(ours: &'static str, model: &'static str, size: &'static str) -> Flavor {
    Flavor { ours, model, size, pipelines: true, shares_sequence: true }
}

const fn qwen(ours: &'static str, size: &'static str) -> Flavor {
    Flavor { pipelines: false, ..flavor(ours, "qwen3", size) }
}

const fn flex(ours: &'static str, model: &'static str, size: &'static str) -> Flavor {
    Flavor { shares_sequence: false, ..flavor(ours, model, size) }
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
    Flavor { pipelines: false, ..flex("gpt-oss-20b", "gpt_oss", "20b") },
    Flavor { pipelines: false, ..flex("gpt-oss-120b", "gpt_oss", "120b") },
];

impl Flavor {
    /// Of a model. One that only has the name of another is not taken for it.
    fn of(model: &Model) -> Option<Self> {
        let record = builtin::named(&model.name)?;
        let known = record.model();
        let same = Model { name: known.name.clone(), ..model.clone() } == known;
        FLAVORS.into_iter().find(|flavor| same && flavor.ours == record.name)
    }
}

/// A whole command for a run.
pub(super) fn command(plan: &Plan, run: &Run) -> Result<Command, EmitError> {
    let flavor = Flavor::of(&run.model);
    let mut command = Command {
        entry: "-m torchtitan.train",
        program: VERSION,
        groups: Vec::new(),
        environment: ENVIRONMENT.to_vec(),
        unset: Vec::new(),
        asks: vec![("DATA_PATH", "the data, as Hugging Face load_dataset reads DATASET (c4)")],
        notes: Vec::new(),
    };
    let model = model(run, flavor, &mut command)?;
    let parallelism = parallelism(run, flavor)?;
    let training = training(plan, run, &mut command)?;
    let checkpoints = activations(run)?;
    let mut rest = Group::new("REST");
    rest.set_if(run.stack == Stack::FsdpCompiled, "--compile.enable");
    rest.variable("--job.dump_folder", "CHECKPOINT_DIR");
    rest.set("--checkpoint.enable");
    let steps = steps_between_checkpoints(plan);
    rest.put("--checkpoint.interval", format!("\"${{SAVE_INTERVAL:-{steps}}}\""));
    rest.put("--checkpoint.async_mode", "async");
    rest.put("--metrics.log_freq", 10);
    command.groups = vec![model, parallelism, training, checkpoints, rest];
    Ok(command)
}

fn lacks(what: impl Into<String>, possible: impl Into<String>) -> EmitError {
    EmitError::Setting { program: PROGRAM, what: what.into(), possible: possible.into() }
}

fn model(run: &Run, flavor: Option<Flavor>, command: &mut Command) -> Result<Group, EmitError> {
    let mut group = Group::new("MODEL");
    if let Some(flavor) = flavor {
        group.put("--model.name", flavor.model);
        group.put("--model.flavor", flavor.size);
    } else {
        command.notes.push(
            "torchtitan has no flavor of this model: add one to the registry of a model like it \
             (torchtitan/models/*/__init__.py) and name both by MODEL_NAME and MODEL_FLAVOR. \
             Its shape:"
                .to_owned(),
        );
        command.notes.push(shape(&run.model));
        command.asks.push(("MODEL_NAME", "a model of the registry of torchtitan, such as llama3"));
        command.asks.push(("MODEL_FLAVOR", "the flavor that was added for this model"));
        group.variable("--model.name", "MODEL_NAME");
        group.variable("--model.flavor", "MODEL_FLAVOR");
    }
    if run.model.mtp_layers > 0 {
        command.notes.push(
            "torchtitan has no blocks that predict further tokens; the plan counts them."
                .to_owned(),
        );
    }
    group.variable("--model.hf_assets_path", "TOKENIZER_MODEL");
    precision(&mut group, run, command)?;
    Ok(group)
}

fn shape(model: &Model) -> String {
    let attention = match model.attention {
        Attention::Grouped { heads, kv_heads, head_dim } => {
            format!("{heads} heads of {head_dim}, {kv_heads} of keys and values")
        }
        Attention::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim } => format!(
            "{heads} heads of {nope_dim} + {rope_dim} and {v_dim}, latents of {q_rank} and \
             {kv_rank}"
        ),
    };
    let experts = model.experts.map_or_else(String::new, |experts| {
        format!(
            ", {} experts of {} ({} for a token, {} shared, {} dense blocks first)",
            experts.count, experts.ffn, experts.per_token, experts.shared_ffn, experts.dense_layers
        )
    });
    format!(
        "{} blocks, width {}, {attention}, feed-forward {}{experts}, vocabulary {}{}.",
        model.layers,
        model.hidden,
        model.ffn,
        model.vocab,
        if model.tied { ", tied" } else { "" }
    )
}

/// What the converters of torchtitan refuse (`components/quantization/`).
fn converts(run: &Run) -> Result<(), EmitError> {
    let Layout { tp, pp, cp, .. } = run.layout;
    let is_float8 = matches!(run.precision, Precision::Fp8 | Precision::Fp8Row);
    if is_float8 && run.model.experts.is_some() && (pp > 1 || cp > 1) {
        return Err(lacks(
            format!("`{}` for experts with PP {pp} and CP {cp}", run.precision.name()),
            "PP 1 and CP 1, or `bf16` or `mxfp8`",
        ));
    }
    if run.precision == Precision::Mxfp8 && tp > 1 && run.stack == Stack::FsdpCompiled {
        return Err(lacks("`mxfp8` with TP when compiled", "TP 1, or stack `fsdp`"));
    }
    Ok(())
}

fn precision(group: &mut Group, run: &Run, command: &mut Command) -> Result<(), EmitError> {
    converts(run)?;
    let mixture = run.model.experts.is_some();
    let converters = |linear: &str, grouped: &str| {
        if mixture { format!("{linear},{grouped}") } else { linear.to_owned() }
    };
    match run.precision {
        Precision::Bf16 => return Ok(()),
        Precision::Fp16 | Precision::Fp8Block | Precision::Nvfp4 => {
            return Err(lacks(
                format!("training in `{}`", run.precision.name()),
                "`bf16`, `fp8`, `fp8-row` or `mxfp8`",
            ));
        }
        Precision::Fp8 | Precision::Fp8Row => {
            let named = converters("quantize.linear.float8", "quantize.grouped_mm.float8");
            group.quote("--model.converters", &named);
            group.put("--quantize.linear.float8.filter_fqns", "output");
            if run.precision == Precision::Fp8Row {
                group.put("--quantize.linear.float8.recipe_name", "rowwise");
            } else {
                group.set("--quantize.linear.float8.enable_fsdp_float8_all_gather");
                group.set("--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp");
            }
            if mixture {
                group.put("--quantize.grouped_mm.float8.fqns", "experts");
            }
        }
        Precision::Mxfp8 => {
            let named = converters("quantize.linear.mx", "quantize.grouped_mm.mx");
            group.quote("--model.converters", &named);
            group.put("--quantize.linear.mx.filter_fqns", "output");
            if mixture {
                group.put("--quantize.grouped_mm.mx.fqns", "experts");
            }
        }
    }
    command.notes.push("8 bits need torchao; those of experts a nightly build of it.".to_owned());
    Ok(())
}

fn parallelism(run: &Run, flavor: Option<Flavor>) -> Result<Group, EmitError> {
    let layout = &run.layout;
    let mut group = Group::new("PARALLELISM");
    copies(&mut group, layout)?;
    group.put("--parallelism.tensor_parallel_degree", layout.tp);
    if layout.tp > 1 {
        if !layout.sequence_parallel {
            return Err(lacks(
                "tensor parallelism without sequence parallelism",
                "sequence parallelism, or TP 1",
            ));
        }
        group.set_if(
            layout.tensor_overlap && run.stack == Stack::FsdpCompiled,
            "--parallelism.enable_async_tensor_parallel",
        );
    }
    if layout.cp > 1 && flavor.is_some_and(|flavor| !flavor.shares_sequence) {
        return Err(lacks(
            format!("context parallelism for `{}`", run.model.name),
            "CP 1, or Megatron (stack `megatron-bridge`)",
        ));
    }
    group.put("--parallelism.context_parallel_degree", layout.cp);
    pipeline(&mut group, run, flavor)?;
    if run.model.experts.is_some() {
        group.put("--parallelism.expert_parallel_degree", layout.ep);
        group.put("--parallelism.expert_tensor_parallel_degree", 1);
    }
    Ok(group)
}

fn copies(group: &mut Group, layout: &Layout) -> Result<(), EmitError> {
    let Layout { dp, cp, shard_group, .. } = *layout;
    let (replicas, shards) = match layout.sharding {
        Sharding::None => (dp, 1),
        Sharding::Optimizer => {
            return Err(lacks(
                "sharding of the optimizer alone (ZeRO 1)",
                "sharding of weights (ZeRO 3) or gradients (ZeRO 2), or Megatron",
            ));
        }
        Sharding::Gradients | Sharding::Weights if shard_group == 0 => (1, dp),
        Sharding::Gradients | Sharding::Weights => {
            let shards = shard_group / cp;
            if !shard_group.is_multiple_of(cp) || shards == 0 || !dp.is_multiple_of(shards) {
                return Err(lacks(
                    format!("shard group of {shard_group} with DP {dp} and CP {cp}"),
                    format!("a multiple of CP {cp} that divides DP × CP"),
                ));
            }
            (dp / shards, shards)
        }
    };
    group.put("--parallelism.data_parallel_replicate_degree", replicas);
    group.put("--parallelism.data_parallel_shard_degree", shards);
    if layout.sharding == Sharding::Gradients {
        group.put("--parallelism.fsdp_reshard_after_forward", "never");
    } else if layout.sharding == Sharding::Weights {
        group.put("--parallelism.fsdp_reshard_after_forward", "always");
    }
    Ok(())
}

fn pipeline(group: &mut Group, run: &Run, flavor: Option<Flavor>) -> Result<(), EmitError> {
    let Layout { pp, vp, micro_batch, schedule, .. } = run.layout;
    group.put("--parallelism.pipeline_parallel_degree", pp);
    if pp == 1 {
        return Ok(());
    }
    if flavor.is_some_and(|flavor| !flavor.pipelines) {
        return Err(lacks(
            format!("pipeline for `{}`", run.model.name),
            "PP 1, or Megatron (stack `megatron-bridge`)",
        ));
    }
    if schedule != Schedule::OneForwardOneBackward {
        return Err(lacks(
            "flag for the schedule of the plan",
            "one forward, one backward, interleaved with VP above 1",
        ));
    }
    let name = if vp > 1 { "Interleaved1F1B" } else { "1F1B" };
    group.put("--parallelism.pipeline_parallel_schedule", name);
    group.put("--parallelism.pipeline_parallel_microbatch_size", micro_batch);
    let pieces = pp * vp;
    let layers = run.model.layers;
    // Its two ends may lack some; those between are alike.
    let Pieces { most, at_first, at_end, .. } = Pieces::of(layers, pieces);
    if at_end > most.max(2) - 1 {
        return Err(lacks(
            format!("split of {layers} blocks into {pieces} pieces"),
            "PP × VP that leaves the last piece a block",
        ));
    }
    group.put("--parallelism.pipeline_parallel_layers_per_stage", most);
    group.put("--parallelism.pipeline_parallel_first_stage_less_layers", at_first);
    group.put("--parallelism.pipeline_parallel_last_stage_less_layers", at_end);
    Ok(())
}

fn training(plan: &Plan, run: &Run, command: &mut Command) -> Result<Group, EmitError> {
    if run.layout.reduce_bytes != 4 {
        return Err(lacks("reduction of gradients in 16 bits", "`--grad-dtype fp32`"));
    }
    if run.layout.moment_bytes != 4 {
        return Err(lacks("moments of fewer than 32 bits", "`--optimizer-dtype fp32`"));
    }
    let mut group = Group::new("TRAINING");
    // A pipeline takes all of a copy's sequences at once and cuts them itself.
    let local = if run.layout.pp > 1 {
        run.global_batch / run.layout.dp.max(1)
    } else {
        run.layout.micro_batch
    };
    group.put("--training.local_batch_size", local);
    group.put("--training.global_batch_size", run.global_batch);
    group.put("--training.seq_len", run.seq_len);
    group.put("--training.mixed_precision_param", "bfloat16");
    group.put("--training.mixed_precision_reduce", "float32");
    if let Some(tokens) = plan.tokens {
        let steps = (tokens / run.tokens_per_step()).ceil().max(1.0);
        group.put("--training.steps", whole(steps));
    } else {
        command.asks.push(("TRAIN_STEPS", "steps to train for"));
        group.variable("--training.steps", "TRAIN_STEPS");
    }
    group.put("--training.dataset", "\"${DATASET:-c4}\"");
    group.variable("--training.dataset_path", "DATA_PATH");
    group.variable("--optimizer.lr", "LR");
    group.put("--lr_scheduler.warmup_steps", "\"${LR_WARMUP_STEPS:-200}\"");
    Ok(group)
}

fn activations(run: &Run) -> Result<Group, EmitError> {
    let mut group = Group::new("ACTIVATIONS");
    let of_stage = run.model.layers.div_ceil(run.layout.pp);
    let selective = |group: &mut Group, option: String| {
        group.put("--activation_checkpoint.mode", "selective");
        group.put("--activation_checkpoint.selective_ac_option", option);
    };
    match run.layout.recompute {
        // The kernel of attention keeps nothing of its core anyway.
        Recompute::None | Recompute::Attention | Recompute::Layers(0) => {
            group.put("--activation_checkpoint.mode", "none");
        }
        Recompute::Operators => selective(&mut group, "op".to_owned()),
        Recompute::EverySecond => selective(&mut group, "2".to_owned()),
        Recompute::Full => group.put("--activation_checkpoint.mode", "full"),
        Recompute::Layers(count) if of_stage.is_multiple_of(count) => {
            selective(&mut group, (of_stage / count).to_string());
        }
        Recompute::Layers(_) | Recompute::Modules => {
            return Err(lacks(
                format!("recomputation of `{}`", run.layout.recompute.name()),
                "`none`, `operators`, `every-second` or `full`",
            ));
        }
    }
    Ok(group)
}
