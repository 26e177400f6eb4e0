//! Command-line flags of a run, and their conversion to a planner run.

use std::path::Path;

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::gpu::{Accelerator, Generation};
use farrier_planner::model::{TransformerConfig, builtin, config};
use farrier_planner::parallelism::{ADAPTER_RANK, ParallelConfig, Recompute, Schedule, Sharding};
use farrier_planner::plan::{GpuPrice, default_framework};
use farrier_planner::precision::Precision;
use farrier_planner::run::{Framework, TrainingRun, TrainingTask};
use farrier_planner::search::Constraints;

use super::value_parsers::{
    self, count, framework, gbit, gradients, moments, precision, recompute, schedule, seq_len,
};
use crate::failure::Hinted;

/// The workload: model, data and framework.
#[derive(Debug, clap::Args)]
pub(super) struct WorkloadArgs {
    /// Model by name (`llama3-70b`), or a Hugging Face `config.json`
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) model: String,
    /// Sequence length in tokens, for example 8192, 8k or 1M
    #[arg(long, value_name = "TOKENS", value_parser = seq_len, allow_negative_numbers = true)]
    pub(super) seq_len: u32,
    /// Global batch in sequences per step
    #[arg(long, value_name = "SEQUENCES", value_parser = count, allow_negative_numbers = true)]
    pub(super) global_batch: u32,
    /// GEMM precision: fp16, bf16, fp8, fp8-row, fp8-block, mxfp8, nvfp4 [default: bf16; `compare`:
    /// the default of each generation]
    #[arg(long, value_parser = precision)]
    pub(super) precision: Option<Precision>,
    /// Train LoRA adapters on attention and dense feed-forward layers, not on routed experts
    #[arg(long)]
    pub(super) lora: bool,
    /// LoRA rank [default: 32]
    #[arg(long, value_name = "N", requires = "lora", value_parser = count, allow_negative_numbers = true)]
    lora_rank: Option<u32>,
    /// Tokens to train on, for example 15.6T or 300e9
    #[arg(long, value_parser = value_parsers::tokens, allow_negative_numbers = true)]
    pub(super) tokens: Option<f64>,
    /// Framework: megatron-bridge, megatron, megatron-early, fsdp-compiled, fsdp, llm-foundry,
    /// tuned [default: megatron-bridge, or fsdp-compiled with sharded weights (`--zero 3`)]
    #[arg(long = "stack", value_name = "FRAMEWORK", value_parser = framework)]
    pub(super) framework: Option<Framework>,
}

impl WorkloadArgs {
    pub(super) fn task(&self) -> TrainingTask {
        if self.lora { TrainingTask::Lora } else { TrainingTask::Full }
    }

    pub(super) fn adapter_rank(&self) -> u32 {
        self.lora_rank.unwrap_or(ADAPTER_RANK)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// GPU by any of its names (`farrier facts gpu` lists them)
    #[arg(long, value_name = "SKU")]
    pub(super) gpu: String,
    /// Number of GPUs; several counts, separated by commas, need `--search`
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
    /// The number of GPUs without a search.
    pub(super) fn single_gpu_count(&self) -> anyhow::Result<u32> {
        match self.gpus[..] {
            [gpus] => Ok(gpus),
            _ => Err(Hinted::error(
                "several GPU counts need a search",
                "add `--search`, or give one count",
            )),
        }
    }
}

/// Interconnect and price.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LinkArgs {
    /// Network bandwidth per GPU in Gbit/s [default: 200 for Ampere, 400 for Hopper and Blackwell,
    /// 800 for B300]
    #[arg(long, value_name = "GBIT/S", value_parser = gbit, allow_negative_numbers = true)]
    pub(super) network: Option<f64>,
    /// GPUs per NVLink domain [default: 8 on a board, 72 with a rack-scale switch, 2 for PCIe cards
    /// with a bridge, 1 for GH200; without NVLink, the GPUs of a node]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) nvlink_domain: Option<u32>,
    /// Dollars per GPU-hour [default: a dated list price]
    #[arg(long, value_name = "USD", value_parser = value_parsers::price, allow_negative_numbers = true)]
    pub(super) price: Option<f64>,
}

/// The parallelism config. Omitted values are 1, or searched with `--search`.
#[derive(Debug, clap::Args)]
pub(super) struct ParallelismArgs {
    /// Tensor-parallel degree
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) tp: Option<u32>,
    /// Pipeline stages
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) pp: Option<u32>,
    /// Virtual stages per pipeline stage
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) vp: Option<u32>,
    /// Context-parallel degree
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) cp: Option<u32>,
    /// Expert-parallel degree
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) ep: Option<u32>,
    /// Data-parallel replicas [default: from the number of GPUs and the other degrees]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) dp: Option<u32>,
    /// ZeRO stage: 0 none, 1 optimizer, 2 also gradients, 3 also weights (FSDP) [default: 1; 3 with
    /// `--stack fsdp`, `fsdp-compiled` or `llm-foundry`]
    #[arg(long, value_name = "0-3", value_parser = clap::value_parser!(u8).range(0..=3), allow_negative_numbers = true)]
    pub(super) zero: Option<u8>,
    /// Sequences per micro-batch [default: 1]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(super) micro_batch: Option<u32>,
    /// Recompute mode: none, attention, modules, operators, every-second, layers:N, full [default:
    /// none]
    #[arg(long, value_parser = recompute)]
    pub(super) recompute: Option<Recompute>,
    /// Pipeline schedule: 1f1b, zero-bubble, dual-pipe
    #[arg(long, value_parser = schedule)]
    pub(super) schedule: Option<Schedule>,
    /// Gradient reduction precision: bf16, fp32 [default: bf16, or fp32 with FSDP and
    /// megatron-early]
    #[arg(long, value_name = "DTYPE", value_parser = gradients)]
    grad_dtype: Option<u8>,
    /// Precision of Adam's moments, next to 32-bit master weights: fp32, bf16, 8bit [default: fp32]
    #[arg(long, value_name = "DTYPE", value_parser = moments)]
    optimizer_dtype: Option<u8>,
}

impl ParallelismArgs {
    /// The values that a search must keep.
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

    /// The parallelism config and framework on this many GPUs.
    fn parallelism(&self, gpus: u32, work: &WorkloadArgs) -> (ParallelConfig, Framework) {
        let one = |number: Option<u32>| number.unwrap_or(1);
        let (tp, pp, cp) = (one(self.tp), one(self.pp), one(self.cp));
        let ranks = u64::from(tp) * u64::from(pp) * u64::from(cp);
        // If `ranks` does not divide the number of GPUs, `check_run` reports possible values.
        let whole = u64::from(gpus).checked_div(ranks).unwrap_or(1).max(1);
        let dp = self.dp.unwrap_or_else(|| u32::try_from(whole).unwrap_or(u32::MAX));
        let default = work.framework.map_or(Sharding::Optimizer, Framework::default_sharding);
        let sharding = self.zero.map_or(default, |stage| Sharding::ALL[usize::from(stage)]);
        let base =
            ParallelConfig { sharding, ..ParallelConfig::data_parallel(dp, one(self.micro_batch)) };
        let framework = work.framework.unwrap_or_else(|| default_framework(&base));
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
            moment_bytes: self.optimizer_dtype.unwrap_or(base.moment_bytes),
            adapter_rank: work.adapter_rank(),
            ..base
        };
        (parallelism, framework)
    }
}

/// A requested run, the assumptions made about it, and the GPU price.
#[derive(Debug)]
pub(super) struct PlanRequest {
    pub(super) run: TrainingRun,
    pub(super) assumed: Vec<String>,
    pub(super) price: Option<GpuPrice>,
}

/// Builds the requested run without checking it.
pub(super) fn from_args(
    facts: &FactSet,
    work: &WorkloadArgs,
    cluster: &ClusterArgs,
    split: &ParallelismArgs,
) -> anyhow::Result<PlanRequest> {
    let (model, mut assumed) = model(&work.model)?;
    let gpu = accelerator(facts, &cluster.gpu, &cluster.links)?;
    assumed.extend(resolved_family(facts, &cluster.gpu));
    assumed.extend(assumed_rates(&gpu));
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

/// A model by name or from its config file, and the assumptions made about it.
pub(super) fn model(name: &str) -> anyhow::Result<(TransformerConfig, Vec<String>)> {
    let path = Path::new(name);
    let path = if path.is_dir() { &path.join("config.json") } else { path };
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    if is_json || path.is_file() {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read the model's configuration `{name}`"))?;
        let parsed = config::parse(&text).with_context(|| format!("`{name}` cannot be planned"))?;
        let mut model = parsed.model;
        path.display().to_string().clone_into(&mut model.name);
        return Ok((model, parsed.assumed));
    }
    // `meta-llama/Llama-3.1-70B`: the organization does not matter.
    let name = name.rsplit('/').next().unwrap_or(name);
    if let Some(builtin) = builtin::by_name(name) {
        return Ok((builtin.model(), Vec::new()));
    }
    let near = builtin::nearest(name);
    let hint = if near.is_empty() {
        let names: Vec<&str> = builtin::all().iter().map(|model| model.name.as_str()).collect();
        format!("use a Hugging Face `config.json`, or one of: {}", names.join(", "))
    } else {
        format!("did you mean `{}`? A Hugging Face `config.json` works too", near.join("`, `"))
    };
    Err(Hinted::error(format!("unknown model `{name}`"), hint))
}

/// Note on the SKU that a family name resolves to.
pub(super) fn resolved_family(facts: &FactSet, name: &str) -> Option<String> {
    let found = facts.gpus.by_name(name).filter(|found| found.assumed)?;
    Some(format!("`{name}` is a family; using {}", found.gpu.id))
}

/// States whose rates a GPU is assumed to have, if no run on its generation is published.
pub(super) fn assumed_rates(gpu: &Accelerator) -> Option<String> {
    let assumed = || {
        format!(
            "no run on a GPU like {} is published; GEMMs and attention reach the shares of the peak of Ampere",
            gpu.id
        )
    };
    (gpu.generation == Generation::Ada).then(assumed)
}

/// A GPU by name, with the requested interconnect and price.
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

/// Price of a GPU: as requested, or from the dated list.
pub(super) fn price(
    facts: &FactSet,
    gpu: &Accelerator,
    requested: Option<f64>,
) -> Option<GpuPrice> {
    if let Some(usd) = requested {
        return Some(GpuPrice { usd_per_gpu_hour: usd, source: "as requested".to_owned() });
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
