//! Comparison of GPUs for a model: at an equal number of GPUs, equal cost or equal time.

use serde::Serialize;

use crate::bound::Bound;
use crate::estimate::Planner;
use crate::flops::FlopsPerToken;
use crate::gpu::{Accelerator, Generation};
use crate::parallelism::ParallelConfig;
use crate::precision::Precision;
use crate::published::PublishedRun;
use crate::run::{Framework, TrainingRun};
use crate::search::{self, Constraints, SearchError};

/// What is equal between the compared GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Basis {
    Gpus(u32),
    /// Equal cost, in dollars per hour. Each GPU gets the number of whole nodes that has the
    /// highest throughput within this budget.
    UsdPerHour(f64),
    /// An equal deadline. Each GPU gets the fewest whole nodes that meet it.
    Days {
        days: f64,
        tokens: f64,
    },
}

/// Criteria that apply to every compared GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Criteria {
    /// `None` stands for the default precision of each generation.
    pub precision: Option<Precision>,
    /// `None` stands for the default framework of each parallelism config.
    pub framework: Option<Framework>,
    pub tokens: Option<f64>,
    pub basis: Basis,
}

/// A GPU in its best parallelism config.
#[derive(Debug, Clone, Serialize)]
pub struct GpuOption {
    pub gpu: String,
    pub gpus: u32,
    pub precision: &'static str,
    #[serde(rename = "layout")]
    pub parallelism: ParallelConfig,
    pub tokens_per_s_per_gpu: f64,
    pub tokens_per_s_per_gpu_p10: f64,
    pub tokens_per_s_per_gpu_p90: f64,
    /// Throughput of the whole cluster.
    pub tokens_per_s: f64,
    /// Training time for the requested tokens; `None` if none were requested.
    pub days: Option<f64>,
    /// MFU with causal attention FLOPs.
    pub mfu_causal: f64,
    /// The bound with the largest share of the step.
    pub bound: Bound,
    /// Whether GPUs of this SKU have `NVLink`. GPUs without `NVLink` communicate over `PCIe`.
    pub has_nvlink: bool,
    /// `None` if no price is known.
    pub usd_per_gpu_hour: Option<f64>,
    /// Set by the caller, which knows where the price is from.
    pub price_source: Option<String>,
    /// Price of the whole cluster.
    pub usd_per_hour: Option<f64>,
    pub cost_per_million_tokens_usd: Option<f64>,
    /// Published runs of the model on this GPU or a variant of it.
    pub published: Vec<PublishedResult>,
}

/// A published run of the compared model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PublishedResult {
    /// Name of the model in the source.
    pub model: String,
    /// Name of the GPU in the source.
    pub gpu: String,
    /// Whether the run used the compared SKU, and not a variant with other power, memory or links.
    #[serde(rename = "is_same_part")]
    pub is_same_sku: bool,
    pub precision: &'static str,
    pub gpus: u32,
    /// Tokens per sequence.
    pub seq_len: u32,
    /// Measured throughput.
    pub tokens_per_s_per_gpu: f64,
    pub date: String,
    pub source: String,
}

/// Why a GPU is excluded from a comparison.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The basis is cost, and the GPU has no price.
    #[error("no price is known; set one with `--prices`")]
    NoPrice,
    /// The budget does not cover one node.
    #[error("${usd} per hour do not cover a node of {node} GPUs at ${price} each")]
    BudgetTooSmall { usd: f64, node: u32, price: f64 },
    /// No number of GPUs meets the deadline.
    #[error(
        "no number of GPUs reaches {required_tokens_per_s:.0} tokens/s; the maximum is {rate:.0} on {gpus}"
    )]
    TooSlow { required_tokens_per_s: f64, rate: f64, gpus: u32 },
    /// The deadline needs more GPUs than the batch can be divided over.
    #[error(
        "no number of GPUs reaches {required_tokens_per_s:.0} tokens/s with a global batch of {global_batch} sequences"
    )]
    BatchTooSmall { required_tokens_per_s: f64, global_batch: u32 },
    /// No parallelism config is possible.
    #[error(transparent)]
    Search(#[from] SearchError),
}

/// A GPU that could not be compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExcludedGpu {
    pub gpu: String,
    #[serde(rename = "why")]
    pub reason: String,
}

/// Result of a comparison.
#[derive(Debug, Clone, Serialize)]
pub struct GpuComparison {
    /// Version of this JSON document.
    pub v: u32,
    /// Cheapest first, or fastest first if no price is known.
    #[serde(rename = "offers")]
    pub options: Vec<GpuOption>,
    #[serde(rename = "not_offered")]
    pub excluded: Vec<ExcludedGpu>,
}

/// Default training precision of a generation.
pub fn default_precision(generation: Generation) -> Precision {
    match generation {
        Generation::Ampere | Generation::Ada => Precision::Bf16,
        Generation::Hopper => Precision::Fp8,
        Generation::Blackwell => Precision::Mxfp8,
    }
}

/// Compares GPUs for the model, sequence length and batch of `run`. Each GPU gets its best
/// parallelism config and, unless `criteria` sets one, its default precision.
pub fn compare(
    planner: &Planner,
    run: &TrainingRun,
    gpus: &[Accelerator],
    criteria: &Criteria,
) -> GpuComparison {
    let constraints = Constraints { framework: criteria.framework, ..Constraints::default() };
    let (mut options, mut excluded) = (Vec::new(), Vec::new());
    for gpu in gpus {
        let mut candidate = run.clone();
        candidate.gpu = gpu.clone();
        candidate.precision =
            criteria.precision.unwrap_or_else(|| default_precision(gpu.generation));
        let context = CompareContext {
            planner,
            run: &candidate,
            constraints: &constraints,
            tokens: criteria.tokens,
        };
        match context.evaluate(criteria.basis) {
            Ok(option) => options.push(option),
            Err(err) => {
                excluded.push(ExcludedGpu { gpu: gpu.id.clone(), reason: err.to_string() });
            }
        }
    }
    options.sort_by(|left, right| {
        let cost = |option: &GpuOption| option.cost_per_million_tokens_usd.unwrap_or(f64::INFINITY);
        cost(left).total_cmp(&cost(right)).then(right.tokens_per_s.total_cmp(&left.tokens_per_s))
    });
    GpuComparison { v: 1, options, excluded }
}

/// Upper bound on how much faster each GPU is with fewer nodes: fewer nodes communicate less, and
/// some larger GPU counts have no good config. With a bound of 1.1, the search missed the best
/// option in one case of three. With 1.5, it missed none in 120 cases (eight models and batches,
/// three GPUs, five budgets).
const FEWER_NODES_GAIN_MAX: f64 = 1.5;
/// Upper bound on how much faster each GPU is with more nodes: each GPU then has more free memory.
const MORE_NODES_GAIN_MAX: f64 = 2.0;
/// If memory is short, more nodes may gain even more, so the next count to try is larger by at most
/// this factor.
const NEXT_COUNT_FACTOR_MAX: f64 = 1.5;
/// Upper bound on how much faster the result of a full search is than the result of a quick search.
const QUICK_SEARCH_GAP: f64 = 1.03;
/// More GPUs than any run has used.
const MAX_GPUS: u32 = 1 << 18;
const DAY_S: f64 = 86_400.0;

/// Inputs of the evaluation of one GPU.
struct CompareContext<'a> {
    planner: &'a Planner,
    run: &'a TrainingRun,
    constraints: &'a Constraints,
    tokens: Option<f64>,
}

impl CompareContext<'_> {
    fn evaluate(&self, basis: Basis) -> Result<GpuOption, CompareError> {
        match basis {
            Basis::Gpus(gpus) => self.with_gpus(gpus),
            Basis::UsdPerHour(usd) => self.within_budget(usd),
            Basis::Days { days, tokens } => self.within_deadline(tokens / (days * DAY_S)),
        }
    }

    /// The number of whole nodes within the budget with the highest throughput.
    fn within_budget(&self, usd: f64) -> Result<GpuOption, CompareError> {
        let gpu = &self.run.gpu;
        let price = gpu.usd_per_hour.ok_or(CompareError::NoPrice)?;
        let node = gpu.gpus_per_node;
        let max_gpus = whole_nodes(usd / price, node);
        if max_gpus == 0 {
            return Err(CompareError::BudgetTooSmall { usd, node, price });
        }
        let gpu_counts = gpu_counts(self.run, node, max_gpus);
        let mut found: Vec<(u32, f64)> = Vec::new();
        let (mut best, mut fastest) = (0.0_f64, 0.0_f64);
        for gpus in gpu_counts.iter().rev().copied() {
            if FEWER_NODES_GAIN_MAX * fastest * f64::from(gpus) < best {
                break;
            }
            let Some(rate) = self.tokens_per_s(gpus) else { continue };
            fastest = fastest.max(rate / f64::from(gpus));
            best = best.max(rate);
            found.push((gpus, rate));
        }
        // A full search decides between the near-best counts.
        let near = found.iter().filter(|(_, rate)| rate * QUICK_SEARCH_GAP >= best);
        let options = near.filter_map(|(gpus, _)| self.with_gpus(*gpus).ok());
        let fastest_option =
            options.max_by(|left, right| left.tokens_per_s.total_cmp(&right.tokens_per_s));
        // If no count works, report the error of the largest count.
        fastest_option
            .map_or_else(|| self.with_gpus(gpu_counts.last().copied().unwrap_or(max_gpus)), Ok)
    }

    /// The fewest whole nodes that reach a throughput.
    fn within_deadline(&self, required_tokens_per_s: f64) -> Result<GpuOption, CompareError> {
        let run = self.run;
        // Lower bound on the number of GPUs: all at peak FLOP/s.
        let peak = run.gpu.peak_flops(run.precision) / FlopsPerToken::new(run).causal;
        let mut min_gpus = required_tokens_per_s / peak;
        let mut fastest = 0.0_f64;
        let mut best: Option<(u32, f64)> = None;
        let gpu_counts = gpu_counts(run, run.gpu.gpus_per_node, MAX_GPUS);
        let mut skipped = Vec::new();
        for gpus in gpu_counts.iter().copied() {
            if f64::from(gpus) < min_gpus {
                skipped.push(gpus);
                continue;
            }
            let Some(rate) = self.tokens_per_s(gpus) else { continue };
            if let Some(option) = self.meets_rate(gpus, rate, required_tokens_per_s) {
                // If memory is short, a skipped smaller count may also reach the throughput.
                let fewer = skipped.iter().find_map(|gpus| {
                    self.meets_rate(*gpus, self.tokens_per_s(*gpus)?, required_tokens_per_s)
                });
                return Ok(fewer.unwrap_or(option));
            }
            skipped.clear();
            // A count without a good config says nothing about the next count, so use the highest
            // rate per GPU so far.
            fastest = fastest.max(rate / f64::from(gpus));
            min_gpus = (required_tokens_per_s / (fastest * MORE_NODES_GAIN_MAX))
                .min(f64::from(gpus) * NEXT_COUNT_FACTOR_MAX);
            if best.is_none_or(|(_, best)| rate > best) {
                best = Some((gpus, rate));
            }
        }
        match best {
            Some((gpus, rate)) => Err(CompareError::TooSlow { required_tokens_per_s, rate, gpus }),
            None => match gpu_counts.last() {
                // No count is possible: report the error of the largest count.
                Some(last) if f64::from(*last) >= min_gpus => self.with_gpus(*last),
                _ => Err(CompareError::BatchTooSmall {
                    required_tokens_per_s,
                    global_batch: run.global_batch,
                }),
            },
        }
    }

    /// The option with this many GPUs, if it reaches the throughput. A quick search found `rate`;
    /// the full search may find slightly more.
    fn meets_rate(&self, gpus: u32, rate: f64, required_tokens_per_s: f64) -> Option<GpuOption> {
        let may_reach = rate * QUICK_SEARCH_GAP >= required_tokens_per_s;
        may_reach
            .then(|| self.with_gpus(gpus).ok())
            .flatten()
            .filter(|option| option.tokens_per_s >= required_tokens_per_s)
    }

    /// Throughput of this many GPUs by a quick search; `None` if no config fits.
    fn tokens_per_s(&self, gpus: u32) -> Option<f64> {
        let best = search::quick(self.planner, self.run, gpus, self.constraints)?;
        Some(self.run.tokens_per_step() / best.step_s)
    }

    fn with_gpus(&self, gpus: u32) -> Result<GpuOption, CompareError> {
        let Self { planner, run, constraints, .. } = self;
        let found = search::search(planner, run, gpus, constraints)?;
        let mut best = (*run).clone();
        constraints.apply(&mut best, found.best[0].parallelism);
        let estimate = planner.estimate(&best);
        let price = run.gpu.usd_per_hour;
        let tokens_per_s = estimate.tokens_per_s_per_gpu * f64::from(gpus);
        Ok(GpuOption {
            gpu: run.gpu.id.clone(),
            gpus,
            precision: run.precision.name(),
            parallelism: best.parallelism,
            tokens_per_s_per_gpu: estimate.tokens_per_s_per_gpu,
            tokens_per_s_per_gpu_p10: estimate.tokens_per_s_per_gpu_p10,
            tokens_per_s_per_gpu_p90: estimate.tokens_per_s_per_gpu_p90,
            tokens_per_s,
            days: self.tokens.map(|tokens| tokens / tokens_per_s / DAY_S),
            mfu_causal: estimate.mfu_causal,
            bound: estimate.bound,
            has_nvlink: run.gpu.has_nvlink,
            usd_per_gpu_hour: price,
            price_source: None,
            usd_per_hour: price.map(|usd| usd * f64::from(gpus)),
            cost_per_million_tokens_usd: price
                .map(|usd| usd / 3600.0 / estimate.tokens_per_s_per_gpu * 1e6),
            published: published_results(planner, run),
        })
    }
}

/// GPUs in whole nodes, at most `gpus`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by MAX_GPUS")]
fn whole_nodes(gpus: f64, node: u32) -> u32 {
    gpus.clamp(0.0, f64::from(MAX_GPUS)) as u32 / node * node
}

/// Candidate GPU counts in whole nodes, up to `max`: products of a data-parallel degree that
/// divides the batch, a number of pipeline stages, and a power of two for TP × CP.
fn gpu_counts(run: &TrainingRun, node: u32, max: u32) -> Vec<u32> {
    const TP_CP_MAX_LOG2: u32 = 10;
    let batch = run.global_batch;
    let replicas: Vec<u32> = (1..=batch.isqrt())
        .filter(|replicas| batch.is_multiple_of(*replicas))
        .flat_map(|replicas| [replicas, batch / replicas])
        .collect();
    let mut gpu_counts: Vec<u32> = (1..=search::MAX_STAGES.min(run.model.layers))
        .flat_map(|stages| (0..=TP_CP_MAX_LOG2).map(move |power| stages << power))
        .flat_map(|ranks| replicas.iter().filter_map(move |replicas| replicas.checked_mul(ranks)))
        .filter(|gpus| gpus.is_multiple_of(node) && *gpus <= max)
        .collect();
    gpu_counts.sort_unstable();
    gpu_counts.dedup();
    gpu_counts
}

/// Published runs of the model, those on the same SKU first, then those on variants.
fn published_results(planner: &Planner, run: &TrainingRun) -> Vec<PublishedResult> {
    let same_model = |row: &&PublishedRun| {
        let model = &row.run.model;
        row.run.gpu.id == run.gpu.id
            && model.layers == run.model.layers
            && model.hidden == run.model.hidden
            && model.experts.is_some() == run.model.experts.is_some()
            && row.run.task == run.task
    };
    let mut rows: Vec<&PublishedRun> = planner.published.iter().filter(same_model).collect();
    rows.sort_by(|left, right| {
        let same = |row: &PublishedRun| is_same_sku(&row.run.gpu, &run.gpu);
        same(right).cmp(&same(left)).then(right.date.cmp(&left.date))
    });
    rows.into_iter()
        .take(4)
        .map(|row| PublishedResult {
            model: row.run.model.name.clone(),
            gpu: row.gpu.clone(),
            is_same_sku: is_same_sku(&row.run.gpu, &run.gpu),
            precision: row.run.precision.name(),
            gpus: row.run.parallelism.gpus(),
            seq_len: row.run.seq_len,
            tokens_per_s_per_gpu: row.run.tokens_per_step()
                / row.step_s
                / f64::from(row.run.parallelism.gpus()),
            date: row.date.clone(),
            source: row.source.clone(),
        })
        .collect()
}

/// Whether two GPUs have the same SKU, power limit, memory and links.
fn is_same_sku(left: &Accelerator, right: &Accelerator) -> bool {
    let same = |value: fn(&Accelerator) -> f64| (value(left) / value(right) - 1.0).abs() < 0.01;
    left.id == right.id
        && same(|gpu| gpu.power_share)
        && same(|gpu| gpu.link_bytes_per_s)
        && same(|gpu| gpu.hbm_bytes)
        && same(|gpu| gpu.hbm_bytes_per_s)
}

#[cfg(test)]
mod tests;
