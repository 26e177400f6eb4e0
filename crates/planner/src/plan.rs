//! The answer to `plan train`: memory fit, speed, bottleneck, time and cost of one run.

use serde::Serialize;

use crate::estimate::{Estimate, Planner};
use crate::memory::{self, MemoryEstimate};
use crate::model::{ParameterCounts, adapters};
use crate::parallelism::{ParallelConfig, Sharding};
use crate::roofline::Roofline;
use crate::run::{Framework, TrainingRun, TrainingTask};

const DAY_S: f64 = 86_400.0;
const HOUR_S: f64 = 3_600.0;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuPrice {
    pub usd_per_gpu_hour: f64,
    /// A dated price list, or "as requested" for a price given by the user.
    pub source: String,
}

/// Full result for one training run.
#[derive(Debug, Clone, Serialize)]
pub struct TrainingPlan {
    /// Version of this JSON document.
    pub v: u32,
    pub model: ModelSummary,
    pub gpu: String,
    /// Whether GPUs of this SKU have `NVLink`. GPUs without `NVLink` communicate over `PCIe`.
    pub has_nvlink: bool,
    pub gpus: u32,
    /// Tokens per sequence.
    pub seq_len: u32,
    /// Sequences per step, over all GPUs.
    pub global_batch: u32,
    /// Micro-batches per step and GPU.
    pub micro_batches: u32,
    pub precision: &'static str,
    #[serde(rename = "stack")]
    pub framework: &'static str,
    pub task: TrainingTask,
    #[serde(rename = "layout")]
    pub parallelism: ParallelConfig,
    /// Settings that differ from the framework's defaults, such as 8-bit optimizer moments.
    #[serde(rename = "unusual")]
    pub non_default: Vec<String>,
    #[serde(flatten)]
    pub estimate: Estimate,
    pub memory: MemoryEstimate,
    /// Achieved FLOP/s of each kind of operation against the GPU's roofline.
    pub roofline: Roofline,
    /// GPU memory usable by a process, GiB.
    pub capacity_gib: f64,
    /// Whether the P95 estimate of the fullest GPU fits.
    pub fits: bool,
    /// Whether P50 fits but P95 does not.
    pub tight: bool,
    /// Throughput of the whole cluster.
    pub tokens_per_s: f64,
    /// `None` if no price is known.
    pub price: Option<GpuPrice>,
    pub cost_per_million_tokens_usd: Option<f64>,
    /// Tokens to train on, if requested.
    pub tokens: Option<f64>,
    /// Training time for `tokens`, without failures.
    pub time_days: Option<f64>,
    /// Cost of `tokens`, without failures.
    pub cost_usd: Option<f64>,
}

/// Size of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    pub name: String,
    /// All parameters, including those of MTP layers.
    pub parameters: f64,
    /// Parameters used per token.
    pub active_parameters: f64,
    /// Parameters of the MTP layers, included in `parameters`.
    #[serde(rename = "further_parameters")]
    pub mtp_parameters: f64,
    /// Decimal GB of 16-bit weights.
    pub weights_gb: f64,
    /// Decimal GB of weights, gradients and optimizer state, summed over all GPUs.
    pub states_gb: f64,
}

impl ModelSummary {
    pub fn new(run: &TrainingRun) -> Self {
        let parameters = ParameterCounts::new(&run.model);
        let weights = parameters.total + parameters.mtp;
        let states = match run.task {
            TrainingTask::Full => weights * memory::state_bytes_per_weight(run),
            TrainingTask::Lora => {
                let adapters = adapters(&run.model, run.parallelism.adapter_rank);
                2.0 * weights + adapters * memory::state_bytes_per_adapter(run)
            }
        };
        Self {
            name: run.model.name.clone(),
            parameters: weights,
            active_parameters: parameters.active,
            mtp_parameters: parameters.mtp,
            weights_gb: weights * 2.0 / 1e9,
            states_gb: states / 1e9,
        }
    }
}

/// Plans one run, which must have passed [`crate::check::check`].
pub fn plan(
    planner: &Planner,
    run: &TrainingRun,
    tokens: Option<f64>,
    price: Option<GpuPrice>,
) -> TrainingPlan {
    let estimate = planner.estimate(run);
    let memory = memory::estimate(run);
    let capacity_gib = memory::usable_gib(&run.gpu);
    let gpus = run.parallelism.gpus();
    let tokens_per_s = estimate.tokens_per_s_per_gpu * f64::from(gpus);
    let usd_per_s = price.as_ref().map(|price| price.usd_per_gpu_hour * f64::from(gpus) / HOUR_S);
    let time_s = tokens.map(|tokens| tokens / tokens_per_s);
    TrainingPlan {
        v: 1,
        model: ModelSummary::new(run),
        gpu: run.gpu.id.clone(),
        has_nvlink: run.gpu.has_nvlink,
        gpus,
        seq_len: run.seq_len,
        global_batch: run.global_batch,
        micro_batches: run.micro_batches(),
        precision: run.precision.name(),
        framework: run.framework.name(),
        task: run.task,
        parallelism: run.parallelism,
        non_default: non_default(run),
        fits: memory.p95_gib <= capacity_gib,
        tight: memory.p50_gib <= capacity_gib && memory.p95_gib > capacity_gib,
        capacity_gib,
        tokens_per_s,
        cost_per_million_tokens_usd: usd_per_s.map(|usd| usd * 1e6 / tokens_per_s),
        tokens,
        time_days: time_s.map(|seconds| seconds / DAY_S),
        cost_usd: time_s.zip(usd_per_s).map(|(seconds, usd)| seconds * usd),
        price,
        estimate,
        memory,
        roofline: Roofline::new(run, &planner.coefficients),
    }
}

fn non_default(run: &TrainingRun) -> Vec<String> {
    let ParallelConfig { reduce_bytes, moment_bytes, .. } = run.parallelism;
    let settings =
        [("gradients", reduce_bytes, run.framework.reduce_bytes()), ("moments", moment_bytes, 4)];
    settings
        .into_iter()
        .filter(|(_, bytes, default)| bytes != default)
        .map(|(name, bytes, _)| format!("{}-bit {name}", 8 * u32::from(bytes)))
        .collect()
}

impl TrainingPlan {
    /// P10 and P90 of the cluster's tokens per second.
    pub fn tokens_per_s_p10_p90(&self) -> [f64; 2] {
        let Estimate { tokens_per_s_per_gpu_p10, tokens_per_s_per_gpu_p90, .. } = self.estimate;
        [tokens_per_s_per_gpu_p10, tokens_per_s_per_gpu_p90].map(|rate| rate * f64::from(self.gpus))
    }
}

/// The framework assumed for a parallelism config if none is requested.
pub fn default_framework(parallelism: &ParallelConfig) -> Framework {
    match parallelism.sharding {
        Sharding::Weights => Framework::FsdpCompiled,
        _ => Framework::Bridge,
    }
}
