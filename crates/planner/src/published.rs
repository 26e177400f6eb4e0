//! Runs that others published: rows of a table, and what each says of itself.

use farrier_facts::FactSet;
use serde::Deserialize;

use crate::flops::FlopsPerToken;
use crate::gpu::{Accelerator, Generation};
use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::model::{Attention, Bias, Experts, Model, Norm, Parameters, Window, builtin};
use crate::precision::Precision;
use crate::run::{Run, Stack, Task};

/// A row as it stands in the table. Cells may be empty.
#[derive(Debug, Clone, Deserialize)]
#[expect(missing_docs, reason = "the columns are described in data/planner/README.md")]
#[expect(non_snake_case, reason = "the columns' own names")]
pub struct Cells {
    pub source: String,
    #[serde(default)]
    pub date: String,
    pub model: String,
    #[serde(default)]
    pub task: String,
    #[serde(default)]
    pub params_b: String,
    #[serde(default)]
    pub layers: String,
    #[serde(default)]
    pub hidden: String,
    #[serde(default)]
    pub heads: String,
    #[serde(default)]
    pub kv_heads: String,
    #[serde(default)]
    pub ffn: String,
    #[serde(default)]
    pub vocab: String,
    #[serde(default)]
    pub experts: String,
    #[serde(default)]
    pub topk: String,
    pub gpu: String,
    #[serde(default)]
    pub n_gpus: String,
    #[serde(default)]
    pub precision: String,
    #[serde(default)]
    pub seq_len: String,
    #[serde(default)]
    pub global_batch_seqs: String,
    #[serde(default)]
    pub micro_batch: String,
    #[serde(default)]
    pub TP: String,
    #[serde(default)]
    pub PP: String,
    #[serde(default)]
    pub VP: String,
    #[serde(default)]
    pub CP: String,
    #[serde(default)]
    pub EP: String,
    #[serde(default)]
    pub sharding: String,
    #[serde(default)]
    pub recompute: String,
    #[serde(default)]
    pub tokens_per_s_per_gpu: String,
    #[serde(default)]
    pub tflops_per_gpu: String,
    #[serde(default)]
    pub mfu_pct: String,
    #[serde(default)]
    pub step_time_s: String,
    #[serde(default)]
    pub peak_mem_gib: String,
    #[serde(default)]
    pub notes: String,
    #[serde(default)]
    pub fused_experts: String,
    #[serde(default)]
    pub caution: String,
}

/// A row that says enough to be estimated.
#[derive(Debug, Clone)]
pub struct Published {
    /// Where it is from.
    pub source: String,
    /// When, as the source says.
    pub date: String,
    /// What the source calls the GPU.
    pub gpu: String,
    /// The run.
    pub run: Run,
    /// What it took, seconds a step.
    pub step_s: f64,
    /// The most memory that a GPU had in use, if published, GiB.
    pub peak_gib: Option<f64>,
    /// Why it is not to be learned from, if it is not.
    pub caution: Option<String>,
    /// What the row leaves open, and was assumed: empty for one that states all.
    pub assumed: Vec<&'static str>,
}

/// A row that cannot be estimated, and why.
#[derive(Debug, Clone)]
pub struct Uncovered {
    /// Where it is from.
    pub source: String,
    /// What was trained.
    pub model: String,
    /// Whether it states its whole configuration all the same.
    pub complete: bool,
    /// Why it cannot be estimated.
    pub why: String,
}

/// Why a table cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Not such a table.
    #[error(
        "the table cannot be read; its columns are those of data/planner/published_training.csv"
    )]
    Unreadable(#[from] csv::Error),
    /// No rows.
    #[error("the table has no rows")]
    Empty,
}

/// The rows of a table: a run, or why not.
pub fn read(
    facts: &FactSet,
    table: &[u8],
) -> Result<Vec<Result<Published, Uncovered>>, TableError> {
    let mut reader = csv::Reader::from_reader(table);
    let rows = reader.deserialize::<Cells>().collect::<Result<Vec<_>, _>>()?;
    if rows.is_empty() {
        return Err(TableError::Empty);
    }
    Ok(rows.iter().map(|cells| row(facts, cells)).collect())
}

/// The rows that Farrier ships with, from which its coefficients are fitted.
pub fn embedded() -> &'static [u8] {
    include_bytes!("../../../data/planner/published_training.csv")
}

fn number(cell: &str) -> Option<f64> {
    cell.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above zero")]
fn count(cell: &str) -> Option<u32> {
    number(cell).filter(|number| number.fract() == 0.0 && *number < 4e9).map(|number| number as u32)
}

fn row(facts: &FactSet, cells: &Cells) -> Result<Published, Uncovered> {
    let complete = stated(cells).is_ok();
    let refuse = |why: String| Uncovered {
        source: cells.source.clone(),
        model: cells.model.clone(),
        complete,
        why,
    };
    let mut assumed = Vec::new();
    let model = model(cells).map_err(refuse)?;
    let gpu = accelerator(facts, &cells.gpu).map_err(refuse)?;
    let need = |cell: &str, what: &str| count(cell).ok_or_else(|| refuse(format!("no {what}")));
    let gpus = need(&cells.n_gpus, "number of GPUs")?;
    let seq_len = need(&cells.seq_len, "sequence length")?;
    let global_batch = need(&cells.global_batch_seqs, "global batch")?;
    let precision = Precision::named(&cells.precision)
        .ok_or_else(|| refuse(format!("precision `{}` is not known", cells.precision)))?;
    let (tp, pp, cp) = (
        count(&cells.TP).unwrap_or(1),
        count(&cells.PP).unwrap_or(1),
        count(&cells.CP).unwrap_or(1),
    );
    if !gpus.is_multiple_of(tp * pp * cp) {
        return Err(refuse(format!("{gpus} GPUs do not divide by TP × PP × CP")));
    }
    let dp = gpus / (tp * pp * cp);
    let micro_batch = count(&cells.micro_batch).unwrap_or_else(|| {
        assumed.push("micro-batch");
        let of_copy = global_batch / dp.max(1);
        let whole = |size: &u32| of_copy.is_multiple_of(*size) && of_copy > 0;
        // Where there is no pipeline to fill, larger ones are the rule.
        if pp > 1 { 1 } else { [4, 2].into_iter().find(whole).unwrap_or(1) }
    });
    let stack = stack(cells);
    let recompute = recompute(&cells.recompute).unwrap_or_else(|| {
        assumed.push("recomputation");
        Recompute::None
    });
    // Large runs interleave their stages, and say so no more than that they have a pipeline.
    let interleaves = matches!(stack, Stack::Megatron | Stack::Tuned) && pp > 1;
    let pieces = if cells.VP.is_empty() && interleaves && !cells.notes.contains("DualPipe") {
        assumed.push("pieces of each stage");
        model.layers.div_ceil(pp)
    } else {
        1
    };
    let (sharding, shard_group) = sharding(cells, stack);
    let experts = model.experts.is_some();
    let layout = Layout {
        dp,
        tp,
        pp,
        vp: count(&cells.VP).unwrap_or(pieces),
        cp,
        ep: if experts { count(&cells.EP).unwrap_or(1) } else { 1 },
        etp: 1,
        sharding,
        shard_group,
        micro_batch,
        recompute,
        sequence_parallel: stack != Stack::MegatronEarly || cells.recompute.contains("SP"),
        tensor_overlap: stack.is_megatron() && stack != Stack::MegatronEarly
            || cells.notes.to_ascii_lowercase().replace(' ', "").contains("asynctp"),
        schedule: if cells.notes.contains("DualPipe") {
            Schedule::DualPipe
        } else {
            Schedule::OneForwardOneBackward
        },
        reduce_bytes: if cells.sharding.ends_with("/DEFAULT") || stack == Stack::MegatronEarly {
            4
        } else {
            2
        },
    };
    let fused_experts = experts
        && gpu.generation == Generation::Blackwell
        && cells.date.as_str() >= "2026-06"
        // The recipes of models with latent attention do not have them.
        && matches!(model.attention, Attention::Grouped { .. })
        && stack == Stack::Bridge;
    let task = if cells.task.contains("lora") { Task::Lora } else { Task::Full };
    let run =
        Run { model, gpu, seq_len, global_batch, precision, layout, task, stack, fused_experts };
    let step_s = if let Some(step_s) = measured(cells, &run) {
        step_s
    } else {
        assumed.push("convention of FLOPs");
        by_flops(cells, &run)
            .ok_or_else(|| refuse("no step time, tokens a second or FLOPs".to_owned()))?
    };
    Ok(Published {
        source: cells.source.clone(),
        date: cells.date.clone(),
        gpu: cells.gpu.clone(),
        run,
        step_s,
        peak_gib: number(&cells.peak_mem_gib),
        caution: Some(cells.caution.clone()).filter(|caution| !caution.is_empty()),
        assumed,
    })
}

/// What a step took, where the row says so.
fn measured(cells: &Cells, run: &Run) -> Option<f64> {
    number(&cells.step_time_s).or_else(|| {
        let rate = number(&cells.tokens_per_s_per_gpu)?;
        Some(run.tokens_per_step() / (rate * f64::from(run.layout.gpus())))
    })
}

/// What a step took by the FLOP/s or the MFU that the row has in the place of a time. Megatron's own
/// table and that of Llama 3 count attention in full, as their long sequences show.
fn by_flops(cells: &Cells, run: &Run) -> Option<f64> {
    let flops = FlopsPerToken::of(run);
    let per_token = if cells.source.contains("MegaScale") { flops.causal } else { flops.full };
    let by_mfu = || Some(number(&cells.mfu_pct)? / 100.0 * run.gpu.half_flops);
    let reached = number(&cells.tflops_per_gpu).map(|tflops| tflops * 1e12).or_else(by_mfu)?;
    Some(run.tokens_per_step() * per_token / (reached * f64::from(run.layout.gpus())))
}

/// Whether a row states its whole configuration and what it took; else what it lacks.
fn stated(cells: &Cells) -> Result<(), &'static str> {
    let given = |cell: &str, what| if cell.trim().is_empty() { Err(what) } else { Ok(()) };
    if cells.layers.trim().is_empty() && builtin::named(&cells.model).is_none() {
        return Err("shape of the model");
    }
    given(&cells.n_gpus, "number of GPUs")?;
    given(&cells.precision, "precision")?;
    given(&cells.seq_len, "sequence length")?;
    given(&cells.global_batch_seqs, "global batch")?;
    given(&cells.micro_batch, "micro-batch")?;
    given(&cells.recompute, "recomputation")?;
    given(&cells.TP, "TP")?;
    given(&cells.PP, "PP")?;
    given(&format!("{}{}", cells.tokens_per_s_per_gpu, cells.step_time_s), "speed")
}

/// A model by name where that fits the row's own numbers, else from those.
fn model(cells: &Cells) -> Result<Model, String> {
    let layers = count(&cells.layers);
    let hidden = count(&cells.hidden);
    // Two papers have models of their own by names that others use too.
    let own = match () {
        () if cells.source.contains("MegaScale") => " (MegaScale)",
        () if cells.source.contains("Megatron-LM images") => " (Megatron-LM 2024)",
        () => "",
    };
    let by_name = builtin::named(&format!("{}{own}", cells.model)).map(builtin::Record::model);
    let fits = |model: &Model| {
        hidden.is_none_or(|hidden| hidden == model.hidden)
            && count(&cells.vocab).is_none_or(|vocab| vocab.abs_diff(model.vocab) < 2048)
    };
    if let Some(mut model) = by_name.filter(fits) {
        model.name.clone_from(&cells.model);
        if model.learned_positions > 0 {
            model.learned_positions = count(&cells.seq_len).unwrap_or(model.learned_positions);
        }
        return Ok(model);
    }
    let experts = count(&cells.experts);
    let (Some(layers), Some(hidden), Some(heads)) = (layers, hidden, count(&cells.heads)) else {
        return Err(format!("model `{}` is not known and the row lacks its shape", cells.model));
    };
    let kv_heads = count(&cells.kv_heads).ok_or("the row lacks heads of keys and values")?;
    let ffn = count(&cells.ffn).unwrap_or(4 * hidden);
    let vocab = count(&cells.vocab).ok_or("the row lacks a vocabulary")?;
    let gated = ffn != 4 * hidden || experts.is_some();
    let mut model = Model {
        name: cells.model.clone(),
        layers,
        hidden,
        attention: Attention::Grouped { heads, kv_heads, head_dim: hidden / heads },
        window: Window::NONE,
        ffn,
        gated,
        vocab,
        tied: !gated,
        bias: if gated { Bias::None } else { Bias::All },
        norm: if gated { Norm::Rms } else { Norm::Layer },
        learned_positions: 0,
        experts: experts.map(|experts| Experts {
            count: experts,
            per_token: count(&cells.topk).unwrap_or(1),
            ffn,
            shared_ffn: 0,
            dense_layers: 0,
            every: 1,
        }),
        mtp_layers: 0,
    };
    // A row whose layers contradict its weights is believed in its weights.
    if let Some(billions) = number(&cells.params_b).filter(|_| experts.is_none()) {
        let parameters = Parameters::of(&model);
        let ends = parameters.embedding + parameters.output;
        let block = (parameters.total - ends) / f64::from(layers);
        let by_weights = ((billions * 1e9 - ends) / block).round();
        if (by_weights / f64::from(layers) - 1.0).abs() > 0.1 && by_weights >= 1.0 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "≥ 1")]
            {
                model.layers = by_weights as u32;
            }
        }
    }
    Ok(model)
}

/// The part that a source means, with what it says of it: `H100-SXM-96GB-HBM2e(2.4TB/s,500W)`.
fn accelerator(facts: &FactSet, name: &str) -> Result<Accelerator, String> {
    let (plain, said) = name.split_once('(').unwrap_or((name, ""));
    let lacking = plain.contains("HBM2e");
    let plain = if lacking || plain.starts_with("H800") { "H100-SXM-80GB" } else { plain };
    let mut gpu = Accelerator::named(facts, plain).map_err(|err| err.to_string())?;
    if name.starts_with("H800") {
        gpu.link_bytes_per_s = 200e9;
    }
    if lacking {
        gpu.hbm_bytes = if name.contains("94GB") { 94e9 } else { 96e9 };
        gpu.hbm_bytes_per_s = 2.4e12;
        gpu.power_share = 500.0 / 700.0;
    }
    for said in said.trim_end_matches(')').split(',') {
        if let Some(watts) = said.strip_suffix('W').and_then(number) {
            gpu.power_share = watts / 700.0;
        }
    }
    Ok(gpu)
}

fn stack(cells: &Cells) -> Stack {
    let source = cells.source.as_str();
    let has = |part: &str| source.contains(part);
    if has("llm-foundry") {
        Stack::Fsdp
    } else if has("torchtitan") {
        let early = cells.date.as_str() < "2024-09" && !cells.notes.contains("compile");
        if early || cells.notes.starts_with("eager") { Stack::Fsdp } else { Stack::FsdpCompiled }
    } else if has("SC21") || has("Korthikanti") || has("MT-NLG") {
        Stack::MegatronEarly
    } else if has("Llama 3 Herd")
        || has("DeepSeek-V3")
        || (has("MegaScale") && !cells.notes.contains("framework=Megatron-LM"))
    {
        Stack::Tuned
    } else if has("NVIDIA/NeMo") || has("Megatron-LM") || has("MegaScale") {
        Stack::Megatron
    } else if has("Megatron-Bridge") || !cells.sharding.contains("FSDP") {
        Stack::Bridge
    } else {
        Stack::FsdpCompiled
    }
}

/// What is kept once, and among how many.
fn sharding(cells: &Cells, stack: Stack) -> (Sharding, u32) {
    let text = cells.sharding.to_ascii_uppercase();
    if text.starts_with("SHARD_GRAD_OP") || text.contains("ZERO-2") {
        (Sharding::Gradients, 0)
    } else if text.contains("ZERO-3") || text.contains("FULL_SHARD") || text.contains("FSDP") {
        let group: String = text.chars().filter(char::is_ascii_digit).collect();
        let named = text.starts_with("FSDP") && stack == Stack::Bridge;
        (Sharding::Weights, if named { group.parse().unwrap_or(0) } else { 0 })
    } else if stack == Stack::MegatronEarly {
        (Sharding::None, 0)
    } else {
        (Sharding::Optimizer, 0)
    }
}

/// What a cell says of recomputation; nothing where it is empty.
fn recompute(cell: &str) -> Option<Recompute> {
    let cell = cell.trim().to_ascii_lowercase();
    Some(match cell.as_str() {
        "" => return None,
        "full" => Recompute::Full,
        "selective+sp" => Recompute::Attention,
        "selective-op" | "selective" => Recompute::Operators,
        "selective-layer" => Recompute::EverySecond,
        other => match other.strip_prefix("layers:").and_then(|count| count.parse().ok()) {
            Some(layers) => Recompute::Layers(layers),
            None if other.starts_with("selective") => Recompute::Modules,
            None => Recompute::None,
        },
    })
}
