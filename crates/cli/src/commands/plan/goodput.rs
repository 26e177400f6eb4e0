//! `farrier plan goodput`

mod faults;
mod print;

pub(super) use faults::Faults;

use farrier_planner::Planner;
use farrier_planner::goodput::{Conditions, Report, Training};
use farrier_planner::layout::Layout;
use farrier_planner::plan::{self, Plan};
use farrier_planner::run::Run;
use serde::Serialize;

use super::advice::check_run;
use super::calibrate::Calibrated;
use super::request::{self, Asked, Cluster, Split, Work};
use super::searched::{Goal, Search};
use super::train::{TooLarge, best};
use super::values::up_to;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::printer::Printer;

/// Which run, under which faults.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    split: Split,
    #[command(flatten)]
    search: Search,
    /// Tokens a second of the whole run, where they are measured and not to be estimated
    #[arg(long, value_name = "TOKENS/S", value_parser = up_to(1e12), allow_negative_numbers = true)]
    tokens_per_s: Option<f64>,
    #[command(flatten)]
    calibrated: Calibrated,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    // Last, as its heading holds for what follows.
    #[command(flatten)]
    faults: Faults,
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct Answer {
    v: u32,
    model: String,
    gpu: String,
    gpus: u32,
    layout: Layout,
    assumed: Vec<String>,
    /// Whether memory suffices with little doubt; none where the run was measured, and so had room.
    fits: Option<bool>,
    memory: Option<Memory>,
    tokens: Option<f64>,
    tokens_per_s: f64,
    conditions: Conditions,
    #[serde(flatten)]
    report: Report,
}

/// What the fullest GPU needs.
#[derive(Debug, Clone, Copy, Serialize)]
struct Memory {
    p50_gib: f64,
    p95_gib: f64,
    capacity_gib: f64,
    tight: bool,
}

impl Memory {
    fn of(plan: &Plan) -> Self {
        Self {
            p50_gib: plan.memory.p50_gib,
            p95_gib: plan.memory.p95_gib,
            capacity_gib: plan.capacity_gib,
            tight: plan.tight,
        }
    }
}

impl Answer {
    /// Nothing ever stops the run.
    fn is_faultless(&self) -> bool {
        self.report.best.mtbf_s.is_infinite()
    }
}

/// The run that is meant, and what was assumed of it.
fn chosen(
    args: &Args,
    asked: &Asked,
    planner: &Planner,
) -> anyhow::Result<Result<(Run, Vec<String>), TooLarge>> {
    let mut assumed = asked.assumed.clone();
    let numbers = &args.cluster.gpus;
    let axes = args.split.axes(&args.work);
    if !args.search.search {
        check_run(&asked.run, &axes, args.cluster.one_number()?)?;
        return Ok(Ok((asked.run.clone(), assumed)));
    }
    let goal = args.search.goal;
    let run = match best(planner, asked, &axes, numbers, goal, args.work.tokens, &args.faults)? {
        Ok(best) => best.run,
        Err(large) => return Ok(Err(large)),
    };
    if numbers.len() > 1 {
        let why = match goal {
            Goal::Speed => {
                "the fastest of the numbers given; `--for goodput` weighs cost and faults too"
            }
            Goal::Cost => "of the numbers given the one with the least cost for a token",
            Goal::Goodput => {
                "of the numbers given the one with most tokens for the money, faults counted"
            }
        };
        assumed.push(format!("{} GPUs, {why}", run.layout.gpus()));
    }
    Ok(Ok((run, assumed)))
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let tokens = args.work.tokens;
    let asked = request::asked(&facts, &args.work, &args.cluster, &args.split)?;
    let planner = args.calibrated.planner(&asked.run.gpu)?;
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
    let answer = Answer {
        v: 1,
        model: run.model.name.clone(),
        gpu: run.gpu.id.clone(),
        gpus: run.layout.gpus(),
        layout: run.layout,
        assumed,
        fits: (!is_measured).then_some(faultless.fits),
        memory: (!is_measured).then(|| Memory::of(&faultless)),
        tokens,
        tokens_per_s,
        conditions,
        report,
    };
    match args.output {
        Output::Json => printer.json(&answer)?,
        Output::Table => print::answer(&answer, printer)?,
    }
    Ok(Outcome::finding_if(answer.report.no_headway.is_some() || answer.fits == Some(false)))
}
