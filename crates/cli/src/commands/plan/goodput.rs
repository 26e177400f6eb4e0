//! `farrier plan goodput`

mod fault_args;
mod output;

pub(super) use fault_args::FaultArgs;

use farrier_planner::Planner;
use farrier_planner::goodput::{Conditions, GoodputReport, Training};
use farrier_planner::parallelism::ParallelConfig;
use farrier_planner::plan::{self, TrainingPlan};
use farrier_planner::run::TrainingRun;
use serde::Serialize;

use super::advice::check_run;
use super::calibrate::CalibrationArgs;
use super::request::{self, ClusterArgs, ParallelismArgs, PlanRequest, WorkloadArgs};
use super::search_args::{SearchArgs, SearchGoal};
use super::train::{NothingFits, best};
use super::value_parsers::up_to;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::printer::Printer;

/// A run and its failure model.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    work: WorkloadArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    split: ParallelismArgs,
    #[command(flatten)]
    search: SearchArgs,
    /// Measured tokens per second of the whole run, instead of the estimate
    #[arg(long, value_name = "TOKENS/S", value_parser = up_to(1e12), allow_negative_numbers = true)]
    tokens_per_s: Option<f64>,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    // Last, because its help heading applies to all following flags.
    #[command(flatten)]
    faults: FaultArgs,
}

/// Result of `farrier plan goodput`.
#[derive(Debug, Serialize)]
struct GoodputAnswer {
    v: u32,
    model: String,
    gpu: String,
    gpus: u32,
    #[serde(rename = "layout")]
    parallelism: ParallelConfig,
    assumed: Vec<String>,
    /// Whether P95 memory fits. `None` if the speed was measured, because that run did fit.
    fits: Option<bool>,
    memory: Option<MemorySummary>,
    tokens: Option<f64>,
    tokens_per_s: f64,
    conditions: Conditions,
    #[serde(flatten)]
    report: GoodputReport,
}

/// Memory of the fullest GPU.
#[derive(Debug, Clone, Copy, Serialize)]
struct MemorySummary {
    p50_gib: f64,
    p95_gib: f64,
    capacity_gib: f64,
    tight: bool,
}

impl MemorySummary {
    fn new(plan: &TrainingPlan) -> Self {
        Self {
            p50_gib: plan.memory.p50_gib,
            p95_gib: plan.memory.p95_gib,
            capacity_gib: plan.capacity_gib,
            tight: plan.tight,
        }
    }
}

impl GoodputAnswer {
    /// Whether the failure rate is 0.
    fn is_failure_free(&self) -> bool {
        self.report.best.mtbf_s.is_infinite()
    }
}

/// The run to evaluate, and the assumptions made about it.
fn choose_run(
    args: &Args,
    request: &PlanRequest,
    planner: &Planner,
) -> anyhow::Result<Result<(TrainingRun, Vec<String>), NothingFits>> {
    let mut assumed = request.assumed.clone();
    let gpu_counts = &args.cluster.gpus;
    let constraints = args.split.constraints(&args.work);
    if !args.search.search {
        check_run(&request.run, &constraints, args.cluster.single_gpu_count()?)?;
        return Ok(Ok((request.run.clone(), assumed)));
    }
    let goal = args.search.goal;
    let run = match best(
        planner,
        request,
        &constraints,
        gpu_counts,
        goal,
        args.work.tokens,
        &args.faults,
    )? {
        Ok(best) => best.run,
        Err(nothing_fits) => return Ok(Err(nothing_fits)),
    };
    if gpu_counts.len() > 1 {
        let reason = match goal {
            SearchGoal::Speed => {
                "the fastest of the given counts; `--for goodput` also considers cost and failures"
            }
            SearchGoal::Cost => "the lowest cost per token of the given counts",
            SearchGoal::Goodput => {
                "the most tokens per dollar of the given counts, including failures"
            }
        };
        assumed.push(format!("{} GPUs, {reason}", run.parallelism.gpus()));
    }
    Ok(Ok((run, assumed)))
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let tokens = args.work.tokens;
    let request = request::from_args(&facts, &args.work, &args.cluster, &args.split)?;
    let planner = args.calibration.planner(&request.run.gpu)?;
    let (run, assumed) = match choose_run(args, &request, planner)? {
        Ok(chosen) => chosen,
        Err(nothing_fits) => return nothing_fits.print(args.output, printer),
    };
    let plan = plan::plan(planner, &run, tokens, request.price.clone());
    let is_measured = args.tokens_per_s.is_some();
    let tokens_per_s = args.tokens_per_s.unwrap_or(plan.tokens_per_s);
    let conditions = args.faults.conditions(&run, run.tokens_per_step() / tokens_per_s)?;
    let training = Training {
        tokens,
        tokens_per_s,
        tokens_per_s_p10_p90: (!is_measured).then(|| plan.tokens_per_s_p10_p90()),
        usd_per_gpu_hour: request.price.as_ref().map(|price| price.usd_per_gpu_hour),
    };
    let report = args.faults.report(&conditions, &training)?;
    let answer = GoodputAnswer {
        v: 1,
        model: run.model.name.clone(),
        gpu: run.gpu.id.clone(),
        gpus: run.parallelism.gpus(),
        parallelism: run.parallelism,
        assumed,
        fits: (!is_measured).then_some(plan.fits),
        memory: (!is_measured).then(|| MemorySummary::new(&plan)),
        tokens,
        tokens_per_s,
        conditions,
        report,
    };
    match args.output {
        Output::Json => printer.json(&answer)?,
        Output::Table => output::print(&answer, printer)?,
    }
    Ok(Outcome::finding_if(answer.report.no_progress.is_some() || answer.fits == Some(false)))
}
