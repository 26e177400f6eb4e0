//! What a person asks for, as a run.

use std::path::Path;

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::gpu::Accelerator;
use farrier_planner::layout::{Layout, Recompute, Schedule, Sharding};
use farrier_planner::model::{Model, builtin, config};
use farrier_planner::plan::{Price, usual_stack};
use farrier_planner::precision::Precision;
use farrier_planner::run::{Run, Stack, Task, fuses_experts};
use farrier_planner::search::{Axes, reduce_bytes};

use crate::failure::Hinted;

/// The work: what is trained, on which data.
#[derive(Debug, clap::Args)]
pub(super) struct Work {
    /// A model by name (`llama3-70b`), or a `config.json` of Hugging Face
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) model: String,
    /// Tokens of a sequence
    #[arg(long, value_name = "TOKENS")]
    pub(super) seq_len: u32,
    /// Sequences of a step, over all GPUs
    #[arg(long, value_name = "SEQUENCES")]
    pub(super) global_batch: u32,
    /// What products are computed in: fp16, bf16, fp8, fp8-block, mxfp8, nvfp4
    #[arg(long, value_parser = precision)]
    pub(super) precision: Option<Precision>,
    /// Train low-rank adapters beside frozen weights
    #[arg(long)]
    pub(super) lora: bool,
    /// Tokens to train on, such as 15.6T or 300e9
    #[arg(long, value_parser = amount)]
    pub(super) tokens: Option<f64>,
    /// By what program: megatron-bridge, megatron, fsdp-compiled, fsdp, tuned
    #[arg(long, value_parser = stack)]
    pub(super) stack: Option<Stack>,
}

/// The GPUs.
#[derive(Debug, clap::Args)]
pub(super) struct Cluster {
    /// The GPU, by any of its names (`farrier facts gpu` lists them)
    #[arg(long, value_name = "SKU")]
    pub(super) gpu: String,
    /// How many; several numbers, separated by commas, are for `--search`
    #[arg(long, value_name = "N", value_delimiter = ',', required = true)]
    pub(super) gpus: Vec<u32>,
    #[command(flatten)]
    pub(super) links: Links,
}

impl Cluster {
    /// The number of GPUs where nothing is searched for.
    pub(super) fn one_number(&self) -> anyhow::Result<u32> {
        match self.gpus[..] {
            [gpus] => Ok(gpus),
            _ => Err(Hinted::error(
                "several numbers of GPUs are for a search",
                "add `--search`, or give one number",
            )),
        }
    }
}

/// How GPUs are joined and paid, where that is not the usual.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Links {
    /// Network of each GPU in Gbit/s [default: 200 for Ampere, 400 for Hopper and Blackwell, 800 for B300]
    #[arg(long, value_name = "GBIT/S", value_parser = gbit)]
    pub(super) network: Option<f64>,
    /// GPUs that NVLink joins [default: 8, or 72 where the switch is in the rack]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) nvlink_domain: Option<u32>,
    /// Dollars for one GPU and hour [default: a dated list price]
    #[arg(long, value_name = "USD", value_parser = positive)]
    pub(super) price: Option<f64>,
}

/// The split. What is left out is 1, or searched for with `--search`.
#[derive(Debug, clap::Args)]
pub(super) struct Split {
    /// Tensor parallelism: GPUs that share each product
    #[arg(long)]
    pub(super) tp: Option<u32>,
    /// Pipeline parallelism: stages
    #[arg(long)]
    pub(super) pp: Option<u32>,
    /// Virtual pipeline: pieces that each stage holds
    #[arg(long)]
    pub(super) vp: Option<u32>,
    /// Context parallelism: GPUs that share a sequence
    #[arg(long)]
    pub(super) cp: Option<u32>,
    /// Expert parallelism: GPUs that share the experts of a block
    #[arg(long)]
    pub(super) ep: Option<u32>,
    /// Data parallelism: copies [default: what the rest leaves]
    #[arg(long)]
    pub(super) dp: Option<u32>,
    /// What copies keep once: 0 nothing, 1 the optimizer, 2 and gradients, 3 and weights (FSDP) [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub(super) zero: Option<u8>,
    /// Sequences that a GPU takes at once [default: 1]
    #[arg(long)]
    pub(super) micro_batch: Option<u32>,
    /// What is computed again: none, attention, modules, operators, every-second, layers:N, full [default: none]
    #[arg(long, value_parser = recompute)]
    pub(super) recompute: Option<Recompute>,
    /// The order of passes in the pipeline: 1f1b, zero-bubble, dual-pipe
    #[arg(long, value_parser = schedule)]
    pub(super) schedule: Option<Schedule>,
}

impl Split {
    /// What was asked for; `--dp` is what the others leave.
    pub(super) fn axes(&self, stack: Option<Stack>) -> Axes {
        Axes {
            tp: self.tp,
            pp: self.pp,
            vp: self.vp,
            cp: self.cp,
            ep: self.ep,
            sharding: self.zero.map(|stage| Sharding::ALL[usize::from(stage)]),
            recompute: self.recompute,
            micro_batch: self.micro_batch,
            dp: self.dp,
            schedule: self.schedule,
            stack,
        }
    }

    /// The layout on so many GPUs.
    fn layout(&self, gpus: u32) -> Layout {
        let one = |number: Option<u32>| number.unwrap_or(1);
        let (tp, pp, cp) = (one(self.tp), one(self.pp), one(self.cp));
        let shared = u64::from(tp) * u64::from(pp) * u64::from(cp);
        // Where they do not divide, the check says what would.
        let whole = u64::from(gpus).checked_div(shared).unwrap_or(1).max(1);
        let dp = self.dp.unwrap_or_else(|| u32::try_from(whole).unwrap_or(u32::MAX));
        let sharding = Sharding::ALL[usize::from(self.zero.unwrap_or(1))];
        Layout {
            dp,
            tp,
            pp,
            vp: one(self.vp),
            cp,
            ep: one(self.ep),
            sharding,
            micro_batch: one(self.micro_batch),
            recompute: self.recompute.unwrap_or(Recompute::None),
            schedule: self.schedule.unwrap_or(Schedule::OneForwardOneBackward),
            tensor_overlap: sharding != Sharding::Weights,
            reduce_bytes: reduce_bytes(sharding),
            ..Layout::copies(dp, 1)
        }
    }
}

/// A run as asked for, what was assumed of the model's file, and the price.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) run: Run,
    pub(super) assumed: Vec<String>,
    pub(super) price: Option<Price>,
}

/// The run that flags describe. Not yet checked.
pub(super) fn asked(
    facts: &FactSet,
    work: &Work,
    cluster: &Cluster,
    split: &Split,
) -> anyhow::Result<Asked> {
    let (model, mut assumed) = model(&work.model)?;
    let gpu = accelerator(facts, &cluster.gpu, &cluster.links)?;
    if let Some(named) = facts.gpus.by_name(&cluster.gpu).filter(|named| named.assumed) {
        assumed.push(format!("`{}` is a family; {} is taken", cluster.gpu, named.gpu.id));
    }
    let price = price(facts, &gpu, cluster.links.price);
    let layout = split.layout(cluster.gpus[0]);
    let stack = work.stack.unwrap_or_else(|| usual_stack(&layout));
    let run = Run {
        fused_experts: fuses_experts(&model, &gpu, stack),
        model,
        gpu,
        seq_len: work.seq_len,
        global_batch: work.global_batch,
        precision: work.precision.unwrap_or(Precision::Bf16),
        layout,
        task: if work.lora { Task::Lora } else { Task::Full },
        stack,
    };
    Ok(Asked { run, assumed, price })
}

/// A model by name or from its file, and what was assumed of it.
pub(super) fn model(name: &str) -> anyhow::Result<(Model, Vec<String>)> {
    let path = Path::new(name);
    let path = if path.is_dir() { &path.join("config.json") } else { path };
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    if is_json || path.is_file() {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read the model's configuration `{name}`"))?;
        let read = config::read(&text).with_context(|| format!("`{name}` cannot be planned"))?;
        let mut model = read.model;
        path.display().to_string().clone_into(&mut model.name);
        return Ok((model, read.assumed));
    }
    // `meta-llama/Llama-3.1-70B`: whose it is does not matter.
    let name = name.rsplit('/').next().unwrap_or(name);
    if let Some(record) = builtin::named(name) {
        return Ok((record.model(), Vec::new()));
    }
    let near = builtin::nearest(name);
    let hint = if near.is_empty() {
        let known: Vec<&str> =
            builtin::records().iter().map(|record| record.name.as_str()).collect();
        format!("a `config.json` of Hugging Face, or one of: {}", known.join(", "))
    } else {
        format!("did you mean `{}`? A `config.json` of Hugging Face does too", near.join("`, `"))
    };
    Err(Hinted::error(format!("no model is called `{name}`"), hint))
}

/// A GPU by name, joined and paid as asked for.
pub(super) fn accelerator(
    facts: &FactSet,
    name: &str,
    links: &Links,
) -> anyhow::Result<Accelerator> {
    let mut gpu = Accelerator::named(facts, name)
        .map_err(|err| Hinted::error(err.to_string(), "`farrier facts gpu` lists GPUs"))?;
    if let Some(gbit) = links.network {
        gpu.network_bytes_per_s = gbit * 1e9 / 8.0;
    }
    if let Some(domain) = links.nvlink_domain {
        gpu.domain = domain;
    }
    if let Some(price) = links.price {
        gpu.usd_per_hour = Some(price);
    }
    Ok(gpu)
}

/// What a GPU costs: as asked for, or by the dated list.
pub(super) fn price(facts: &FactSet, gpu: &Accelerator, asked: Option<f64>) -> Option<Price> {
    if let Some(usd) = asked {
        return Some(Price { usd_per_gpu_hour: usd, source: "as asked for".to_owned() });
    }
    let listed = facts.gpus.by_name(&gpu.id)?.gpu.price.as_ref()?;
    Some(Price {
        usd_per_gpu_hour: listed.usd_per_gpu_hour,
        source: format!(
            "on demand, {}, {} ({})",
            listed.instance,
            listed.origin.source.join(", "),
            listed.origin.retrieved
        ),
    })
}

fn precision(text: &str) -> Result<Precision, String> {
    Precision::named(text).ok_or_else(|| {
        let known: Vec<&str> = Precision::ALL.iter().map(|precision| precision.name()).collect();
        format!("possible: {}", known.join(", "))
    })
}

fn stack(text: &str) -> Result<Stack, String> {
    Stack::ALL.into_iter().find(|stack| stack.name() == text).ok_or_else(|| {
        let known: Vec<&str> = Stack::ALL.iter().map(|stack| stack.name()).collect();
        format!("possible: {}", known.join(", "))
    })
}

fn recompute(text: &str) -> Result<Recompute, String> {
    let layers = text.strip_prefix("layers:").map(str::parse);
    match (text, layers) {
        ("none", _) => Ok(Recompute::None),
        ("attention" | "selective", _) => Ok(Recompute::Attention),
        ("modules", _) => Ok(Recompute::Modules),
        ("operators", _) => Ok(Recompute::Operators),
        ("every-second", _) => Ok(Recompute::EverySecond),
        ("full", _) => Ok(Recompute::Full),
        (_, Some(Ok(count))) => Ok(Recompute::Layers(count)),
        _ => Err("possible: none, attention, modules, operators, every-second, layers:N, full"
            .to_owned()),
    }
}

fn schedule(text: &str) -> Result<Schedule, String> {
    match text {
        "1f1b" => Ok(Schedule::OneForwardOneBackward),
        "zero-bubble" => Ok(Schedule::ZeroBubble),
        "dual-pipe" => Ok(Schedule::DualPipe),
        _ => Err("possible: 1f1b, zero-bubble, dual-pipe".to_owned()),
    }
}

/// A number above zero.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// A rate that a network may have.
fn gbit(text: &str) -> Result<f64, String> {
    positive(text)
        .ok()
        .filter(|rate| (0.1..=1e6).contains(rate))
        .ok_or_else(|| "expected Gbit/s of one GPU, between 0.1 and 1000000".to_owned())
}

/// A number above zero, with K, M, B (or G), T behind it.
pub(super) fn amount(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], letter),
        _ => (text, ' '),
    };
    let factor = match unit.to_ascii_uppercase() {
        ' ' => 1.0,
        'K' => 1e3,
        'M' => 1e6,
        'B' | 'G' => 1e9,
        'T' => 1e12,
        _ => return Err("expected a number such as 300B or 15.6T".to_owned()),
    };
    positive(digits)
        .map(|number| number * factor)
        .and_then(|number| if number < 1e30 { Ok(number) } else { Err(String::new()) })
        .map_err(|_| "expected a number above 0, such as 300B or 15.6T".to_owned())
}
