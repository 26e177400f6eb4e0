//! What a person asks for, as a run.

use std::path::Path;

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::gpu::Accelerator;
use farrier_planner::parallelism::{ADAPTER_RANK, ParallelConfig, Recompute, Schedule, Sharding};
use farrier_planner::model::{TransformerConfig, builtin, config};
use farrier_planner::plan::{GpuPrice, default_framework};
use farrier_planner::precision::Precision;
use farrier_planner::run::{TrainingRun, Framework, TrainingTask};
use farrier_planner::search::Constraints;

use super::value_parsers::{
    self, count, gbit, gradients, moments, precision, recompute, schedule, seq_len, framework,
};
use crate::failure::Hinted;

/// The work: what is trained, on which data.
#[derive(Debug, clap::Args)]
pub(super) struct WorkloadArgs {
    /// A model by name (`llama3-70b`), or a `config.json` of Hugging Face
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) model: String,
    /// Tokens of a sequence, such as 8192, 8k or 1M
    #[arg(long, value_name = "TOKENS", value_parser = seq_len, allow_negative_numbers = true)]
    pub(super) seq_len: u32,
    /// Sequences of a step, over all GPUs
    #[arg(long, value_name = "SEQUENCES", value_parser = count, allow_negative_numbers = true)]
    pub(super) global_batch: u32,
    /// What products are computed in: fp16, bf16, fp8, fp8-row, fp8-block, mxfp8, nvfp4 [default: bf16; `compare`: what
    /// each generation is usually trained in]
    #[arg(long, value_parser = precision)]
    pub(super) precision: Option<Precision>,
    /// Train low-rank adapters beside frozen weights: of attention and dense feed-forward, not of routed experts
    #[arg(long)]
    pub(super) lora: bool,
    /// Width of the adapters [default: 32]
    #[arg(long, value_name = "N", requires = "lora", value_parser = count, allow_negative_numbers = true)]
    lora_rank: Option<u32>,
    /// Tokens to train on, such as 15.6T or 300e9
    #[arg(long, value_parser = value_parsers::tokens, allow_negative_numbers = true)]
    pub(super) tokens: Option<f64>,
    /// By what program: megatron-bridge, megatron, megatron-early, fsdp-compiled, fsdp, llm-foundry, tuned [default:
    /// megatron-bridge, or fsdp-compiled where weights are shared (`--zero 3`)]
    #[arg(long, value_parser = framework)]
    pub(super) framework: Option<Framework>,
}

impl WorkloadArgs {
    /// Which weights learn.
    pub(super) fn task(&self) -> TrainingTask {
        if self.lora { TrainingTask::Lora } else { TrainingTask::Full }
    }

    /// Width of adapters.
    pub(super) fn adapter_rank(&self) -> u32 {
        self.lora_rank.unwrap_or(ADAPTER_RANK)
    }
}

/// The GPUs.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// The GPU, by any of its names (`farrier facts gpu` lists them)
    #[arg(long, value_name = "SKU")]
    pub(super) gpu: String,
    /// How many; several numbers, separated by commas, are for `--search`
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        required = true,
        value_parser = count,
        allow_negative_numbers = true
    )]
    pub(super) gpus: Vec<u32>,
    #[command(flatten)]
    pub(super) links: LinkArgs,
}

impl ClusterArgs {
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
pub(super) struct LinkArgs {
    /// Network of each GPU in Gbit/s [default: 200 for Ampere, 400 for Hopper and Blackwell, 800 for B300]
    #[arg(long, value_name = "GBIT/S", value_parser = gbit, allow_negative_numbers = true)]
    pub(super) network: Option<f64>,
    /// GPUs that NVLink joins [default: 8 on a board, 72 where the switch is in the rack, 2 of PCIe cards with a bridge,
    /// 1 of GH200; without NVLink, the GPUs of a node, which PCIe joins]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) nvlink_domain: Option<u32>,
    /// Dollars for one GPU and hour [default: a dated list price]
    #[arg(long, value_name = "USD", value_parser = value_parsers::price, allow_negative_numbers = true)]
    pub(super) price: Option<f64>,
}

/// The split. What is left out is 1, or searched for with `--search`.
#[derive(Debug, clap::Args)]
pub(super) struct ParallelismArgs {
    /// Tensor parallelism: GPUs that share each product
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) tp: Option<u32>,
    /// Pipeline parallelism: stages
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) pp: Option<u32>,
    /// Virtual pipeline: pieces that each stage holds
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) vp: Option<u32>,
    /// Context parallelism: GPUs that share a sequence
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) cp: Option<u32>,
    /// Expert parallelism: GPUs that share the experts of a block
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) ep: Option<u32>,
    /// Data parallelism: copies [default: what the rest leaves]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) dp: Option<u32>,
    /// What copies keep once: 0 nothing, 1 the optimizer, 2 and gradients, 3 and weights (FSDP) [default: 1; 3 with
    /// `--stack fsdp`, `fsdp-compiled` or `llm-foundry`]
    #[arg(long, value_name = "0-3", value_parser = clap::value_parser!(u8).range(0..=3), allow_negative_numbers = true)]
    pub(super) zero: Option<u8>,
    /// Sequences that a GPU takes at once [default: 1]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) micro_batch: Option<u32>,
    /// What is computed again: none, attention, modules, operators, every-second, layers:N, full [default: none]
    #[arg(long, value_parser = recompute)]
    pub(super) recompute: Option<Recompute>,
    /// The order of passes in the pipeline: 1f1b, zero-bubble, dual-pipe
    #[arg(long, value_parser = schedule)]
    pub(super) schedule: Option<Schedule>,
    /// What gradients are reduced in: bf16, fp32 [default: bf16, or fp32 with FSDP and megatron-early]
    #[arg(long, value_name = "DTYPE", value_parser = gradients)]
    grad_dtype: Option<u8>,
    /// What the optimizer's two moments are kept in, beside weights of 32 bits: fp32, bf16, 8bit [default: fp32]
    #[arg(long, value_name = "DTYPE", value_parser = moments)]
    optimizer_dtype: Option<u8>,
}

impl ParallelismArgs {
    /// What was asked for; `--dp` is what the others leave.
    pub(super) fn constraints(&self, work: &WorkloadArgs) -> Constraints {
        Constraints {
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
            framework: work.framework,
            reduce_bytes: self.grad_dtype,
        }
    }

    /// The layout on so many GPUs, and the program.
    fn parallelism(&self, gpus: u32, work: &WorkloadArgs) -> (ParallelConfig, Framework) {
        let one = |number: Option<u32>| number.unwrap_or(1);
        let (tp, pp, cp) = (one(self.tp), one(self.pp), one(self.cp));
        let shared = u64::from(tp) * u64::from(pp) * u64::from(cp);
        // Where they do not divide, the check says what would.
        let whole = u64::from(gpus).checked_div(shared).unwrap_or(1).max(1);
        let dp = self.dp.unwrap_or_else(|| u32::try_from(whole).unwrap_or(u32::MAX));
        let usual = work.framework.map_or(Sharding::Optimizer, Framework::default_sharding);
        let sharding = self.zero.map_or(usual, |stage| Sharding::ALL[usize::from(stage)]);
        let copies = ParallelConfig { sharding, ..ParallelConfig::data_parallel(dp, one(self.micro_batch)) };
        let framework = work.framework.unwrap_or_else(|| default_framework(&copies));
        let parallelism = ParallelConfig {
            dp,
            tp,
            pp,
            vp: one(self.vp),
            cp,
            ep: one(self.ep),
            recompute: self.recompute.unwrap_or(Recompute::None),
            schedule: self.schedule.unwrap_or(Schedule::OneForwardOneBackward),
            tensor_overlap: framework.overlaps_tp(),
            reduce_bytes: self.grad_dtype.unwrap_or(framework.reduce_bytes()),
            moment_bytes: self.optimizer_dtype.unwrap_or(copies.moment_bytes),
            adapter_rank: work.adapter_rank(),
            ..copies
        };
        (parallelism, framework)
    }
}

/// A run as asked for, what was assumed of the model's file, and the price.
#[derive(Debug)]
pub(super) struct PlanRequest {
    pub(super) run: TrainingRun,
    pub(super) assumed: Vec<String>,
    pub(super) price: Option<GpuPrice>,
}

/// The run that flags describe. Not yet checked.
pub(super) fn asked(
    facts: &FactSet,
    work: &WorkloadArgs,
    cluster: &ClusterArgs,
    split: &ParallelismArgs,
) -> anyhow::Result<PlanRequest> {
    let (model, mut assumed) = model(&work.model)?;
    let gpu = accelerator(facts, &cluster.gpu, &cluster.links)?;
    assumed.extend(taken_for(facts, &cluster.gpu));
    let price = price(facts, &gpu, cluster.links.price);
    let (parallelism, framework) = split.parallelism(cluster.gpus[0], work);
    let mut run = TrainingRun {
        model,
        gpu,
        seq_len: work.seq_len,
        global_batch: work.global_batch,
        precision: work.precision.unwrap_or(Precision::Bf16),
        parallelism,
        task: work.task(),
        framework,
        fused_experts: false,
    };
    run.fused_experts = run.fuses_experts();
    Ok(PlanRequest { run, assumed, price })
}

/// A model by name or from its file, and what was assumed of it.
pub(super) fn model(name: &str) -> anyhow::Result<(TransformerConfig, Vec<String>)> {
    let path = Path::new(name);
    let path = if path.is_dir() { &path.join("config.json") } else { path };
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    if is_json || path.is_file() {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read the model's configuration `{name}`"))?;
        let read = config::parse(&text).with_context(|| format!("`{name}` cannot be planned"))?;
        let mut model = read.model;
        path.display().to_string().clone_into(&mut model.name);
        return Ok((model, read.assumed));
    }
    // `meta-llama/Llama-3.1-70B`: whose it is does not matter.
    let name = name.rsplit('/').next().unwrap_or(name);
    if let Some(record) = builtin::by_name(name) {
        return Ok((record.model(), Vec::new()));
    }
    let near = builtin::nearest(name);
    let hint = if near.is_empty() {
        let known: Vec<&str> =
            builtin::all().iter().map(|record| record.name.as_str()).collect();
        format!("a `config.json` of Hugging Face, or one of: {}", known.join(", "))
    } else {
        format!("did you mean `{}`? A `config.json` of Hugging Face does too", near.join("`, `"))
    };
    Err(Hinted::error(format!("no model is called `{name}`"), hint))
}

/// The part that is taken for the name of a family.
pub(super) fn taken_for(facts: &FactSet, name: &str) -> Option<String> {
    let named = facts.gpus.by_name(name).filter(|named| named.assumed)?;
    Some(format!("`{name}` is a family; {} is taken", named.gpu.id))
}

/// A GPU by name, joined and paid as asked for.
pub(super) fn accelerator(
    facts: &FactSet,
    name: &str,
    links: &LinkArgs,
) -> anyhow::Result<Accelerator> {
    let mut gpu = Accelerator::by_name(facts, name)
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
pub(super) fn price(facts: &FactSet, gpu: &Accelerator, asked: Option<f64>) -> Option<GpuPrice> {
    if let Some(usd) = asked {
        return Some(GpuPrice { usd_per_gpu_hour: usd, source: "as asked for".to_owned() });
    }
    let listed = facts.gpus.by_name(&gpu.id)?.gpu.price.as_ref()?;
    Some(GpuPrice {
        usd_per_gpu_hour: listed.usd_per_gpu_hour,
        source: format!(
            "on demand, {}, {} ({})",
            listed.instance,
            listed.origin.source.join(", "),
            listed.origin.retrieved
        ),
    })
}
