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
use super::request::{self, PlanRequest, ClusterArgs, ParallelismArgs, WorkloadArgs};
use super::search_args::{SearchGoal, SearchArgs};
use super::train::{NothingFits, best};
use super::value_parsers::up_to;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::printer::Printer;
use crate::sets;

/// Which run, under which faults.
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
    /// Tokens a second of the whole run, where they are measured and not to be estimated
    #[arg(long, value_name = "TOKENS/S", value_parser = up_to(1e12), allow_negative_numbers = true)]
    tokens_per_s: Option<f64>,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    // Last, as its heading holds for what follows.
    #[command(flatten)]
    faults: FaultArgs,
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct GoodputAnswer {
    v: u32,
    model: String,
    gpu: String,
    gpus: u32,
    parallelism: ParallelConfig,
    assumed: Vec<String>,
    /// Whether memory suffices with little doubt; none where the run was measured, and so had room.
    fits: Option<bool>,
    memory: Option<MemorySummary>,
    tokens: Option<f64>,
    tokens_per_s: f64,
    conditions: Conditions,
    #[serde(flatten)]
    report: GoodputReport,
}

/// What the fullest GPU needs.
#[derive(Debug, Clone, Copy, Serialize)]
struct MemorySummary {
    p50_gib: f64,
    p95_gib: f64,
    capacity_gib: f64,
    tight: bool,
}

impl MemorySummary {
    fn of(plan: &TrainingPlan) -> Self {
        Self {
            p50_gib: plan.memory.p50_gib,
            p95_gib: plan.memory.p95_gib,
            capacity_gib: plan.capacity_gib,
            tight: plan.tight,
        }
    }
}

impl GoodputAnswer {
    /// Nothing ever stops the run.
    fn is_faultless(&self) -> bool {
        self.report.best.mtbf_s.is_infinite()
    }
}

/// The run that is meant, and what was assumed of it.
fn chosen(
    args: &Args,
    asked: &PlanRequest,
    planner: &Planner,
) -> anyhow::Result<Result<(TrainingRun, Vec<String>), NothingFits>> {
    let mut assumed = asked.assumed.clone();
    let numbers = &args.cluster.gpus;
    let constraints = args.split.constraints(&args.work);
    if !args.search.search {
        check_run(&asked.run, &constraints, args.cluster.one_number()?)?;
        return Ok(Ok((asked.run.clone(), assumed)));
    }
    let goal = args.search.goal;
    let run = match best(planner, asked, &constraints, numbers, goal, args.work.tokens, &args.faults)? {
        Ok(best) => best.run,
        Err(large) => return Ok(Err(large)),
    };
    if numbers.len() > 1 {
        let why = match goal {
            SearchGoal::Speed => {
                "the fastest of the numbers given; `--for goodput` weighs cost and faults too"
            }
            SearchGoal::Cost => "of the numbers given the one with the least cost for a token",
            SearchGoal::Goodput => {
                "of the numbers given the one with most tokens for the money, faults counted"
            }
        };
        assumed.push(format!("{} GPUs, {why}", run.parallelism.gpus()));
    }
    Ok(Ok((run, assumed)))
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = sets::active();
    let tokens = args.work.tokens;
    let asked = request::asked(&facts, &args.work, &args.cluster, &args.split)?;
    let planner = args.calibration.planner(&asked.run.gpu)?;
    let (run, assumed) = match chosen(args, &asked, planner)? {
        Ok(chosen) => chosen,
        Err(large) => return large.print(args.output, printer),
    };
    let faultless = plan::plan(planner, &run, tokens, asked.price.clone());
    let is_measured = args.tokens_per_s.is_some();
    let tokens_per_s = args.tokens_per_s.unwrap_or(faultless.tokens_per_s);
    let conditions = args.faults.conditions(&run, run.tokens_per_step() / tokens_per_s)?;
    let training = Training {
        tokens,
        tokens_per_s,
        tokens_per_s_p10_p90: (!is_measured).then(|| faultless.tokens_per_s_p10_p90()),
        usd_per_gpu_hour: asked.price.as_ref().map(|price| price.usd_per_gpu_hour),
    };
    let report = args.faults.report(&conditions, &training)?;
    let answer = GoodputAnswer {
        v: 1,
        model: run.model.name.clone(),
        gpu: run.gpu.id.clone(),
        gpus: run.parallelism.gpus(),
        parallelism: run.parallelism,
        assumed,
        fits: (!is_measured).then_some(faultless.fits),
        memory: (!is_measured).then(|| MemorySummary::new(&faultless)),
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
