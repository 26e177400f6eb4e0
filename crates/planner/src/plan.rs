//! The answer to `plan train`: fit, speed, bound, time and cost of one run.

use serde::Serialize;

use crate::estimate::{Estimate, Planner};
use crate::layout::{Layout, Sharding};
use crate::memory::{self, Memory};
use crate::model::{Parameters, adapters};
use crate::roofline::Roofline;
use crate::run::{Run, Stack, Task};

/// Seconds of a day and of an hour.
const DAY_S: f64 = 86_400.0;
const HOUR_S: f64 = 3_600.0;

/// What a GPU costs, and who says so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Price {
    /// Dollars for one GPU and hour.
    pub usd_per_gpu_hour: f64,
    /// Whose price: a dated list, or the person who asks.
    pub source: String,
}

/// Everything about one run.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The form of this document.
    pub v: u32,
    /// What is trained.
    pub model: About,
    /// On what.
    pub gpu: String,
    /// Whether `NVLink` joins GPUs of this kind; `PCIe` does where not.
    pub has_nvlink: bool,
    /// On how many.
    pub gpus: u32,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// Sequences of a step.
    pub global_batch: u32,
    /// Micro-batches that each GPU passes in a step.
    pub micro_batches: u32,
    /// What products are computed in.
    pub precision: &'static str,
    /// By what program.
    pub stack: &'static str,
    /// Which weights learn.
    pub task: Task,
    /// Split how.
    pub layout: Layout,
    /// What is not as the program has it unless it is told: gradients or moments of other bits.
    pub unusual: Vec<String>,
    /// Speed, its doubt and its bounds.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Memory of each stage.
    pub memory: Memory,
    /// What each kind of work reaches under the GPU's roofs.
    pub roofline: Roofline,
    /// Memory that a program can have of a GPU, GiB.
    pub capacity_gib: f64,
    /// Whether the fullest GPU has room with little doubt.
    pub fits: bool,
    /// Whether it has room more likely than not, but not beyond doubt.
    pub tight: bool,
    /// Of the whole cluster.
    pub tokens_per_s: f64,
    /// What a GPU costs, if that is known.
    pub price: Option<Price>,
    /// Dollars for a million tokens.
    pub cost_per_million_tokens_usd: Option<f64>,
    /// Tokens to be trained on, if that was said.
    pub tokens: Option<f64>,
    /// Days that they take, without faults.
    pub time_days: Option<f64>,
    /// Dollars that they cost, without faults.
    pub cost_usd: Option<f64>,
}

/// What a model weighs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Weights.
    pub parameters: f64,
    /// Weights that a token meets.
    pub active_parameters: f64,
    /// Those of all that are in blocks which predict further tokens.
    pub further_parameters: f64,
    /// Decimal gigabytes of the weights in 16 bits.
    pub weights_gb: f64,
    /// Decimal gigabytes of weights, gradients and the optimizer's state, wherever they are.
    pub states_gb: f64,
}

impl About {
    /// Of a run.
    pub fn of(run: &Run) -> Self {
        let parameters = Parameters::of(&run.model);
        let weights = parameters.total + parameters.further;
        let states = match run.task {
            Task::Full => weights * memory::state_bytes_per_weight(run),
            Task::Lora => {
                let adapters = adapters(&run.model, run.layout.adapter_rank);
                2.0 * weights + adapters * memory::state_bytes_per_adapter(run)
            }
        };
        Self {
            name: run.model.name.clone(),
            parameters: weights,
            active_parameters: parameters.active,
            further_parameters: parameters.further,
            weights_gb: weights * 2.0 / 1e9,
            states_gb: states / 1e9,
        }
    }
}

/// Plans one run. The run must have passed [`crate::check::check`].
pub fn plan(planner: &Planner, run: &Run, tokens: Option<f64>, price: Option<Price>) -> Plan {
    let estimate = planner.estimate(run);
    let memory = memory::of(run);
    let capacity_gib = memory::usable_gib(&run.gpu);
    let gpus = run.layout.gpus();
    let tokens_per_s = estimate.tokens_per_s_per_gpu * f64::from(gpus);
    let usd_per_s = price.as_ref().map(|price| price.usd_per_gpu_hour * f64::from(gpus) / HOUR_S);
    let time_s = tokens.map(|tokens| tokens / tokens_per_s);
    Plan {
        v: 1,
        model: About::of(run),
        gpu: run.gpu.id.clone(),
        has_nvlink: run.gpu.has_nvlink,
        gpus,
        seq_len: run.seq_len,
        global_batch: run.global_batch,
        micro_batches: run.micro_batches(),
        precision: run.precision.name(),
        stack: run.stack.name(),
        task: run.task,
        layout: run.layout,
        unusual: unusual(run),
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
        roofline: Roofline::of(run, &planner.fitted),
    }
}

fn unusual(run: &Run) -> Vec<String> {
    let Layout { reduce_bytes, moment_bytes, .. } = run.layout;
    let told =
        [("gradients", reduce_bytes, run.stack.reduce_bytes()), ("moments", moment_bytes, 4)];
    told.into_iter()
        .filter(|(_, bytes, usual)| bytes != usual)
        .map(|(what, bytes, _)| format!("{what} of {} bits", 8 * u32::from(bytes)))
        .collect()
}

impl Plan {
    /// Tokens a second of the whole cluster that one run in ten is slower than, and one faster.
    pub fn tokens_per_s_p10_p90(&self) -> [f64; 2] {
        let Estimate { tokens_per_s_per_gpu_p10, tokens_per_s_per_gpu_p90, .. } = self.estimate;
        [tokens_per_s_per_gpu_p10, tokens_per_s_per_gpu_p90].map(|each| each * f64::from(self.gpus))
    }
}

/// The program that people use for a split, where none was asked for.
pub fn usual_stack(layout: &Layout) -> Stack {
    match layout.sharding {
        Sharding::Weights => Stack::FsdpCompiled,
        _ => Stack::Bridge,
    }
}
