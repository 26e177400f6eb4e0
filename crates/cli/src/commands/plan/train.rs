//! `farrier plan train`

use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::goodput::Training;
use farrier_planner::plan::{TrainingPlan, plan};
use farrier_planner::run::TrainingRun;
use farrier_planner::search::{self, Constraints, SearchReport, SearchError};
use serde::Serialize;

use super::advice;
use super::train_output;
use super::calibrate::CalibrationArgs;
use super::goodput::FaultArgs;
use super::launch::{self, LauncherArg};
use super::html_report::{self, CostPoint};
use super::request::{self, PlanRequest, ClusterArgs, ParallelismArgs, WorkloadArgs};
use super::search_args::{SearchGoal, SearchArgs};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::{self, Hinted};
use crate::printer::Printer;
use crate::sets;

/// Which run, and how to answer.
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
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Print a file that starts the run, in place of the answer
    #[arg(long, value_name = "LAUNCHER", conflicts_with = "output")]
    emit: Option<LauncherArg>,
    /// Write a page with plots of memory, time, rates and cost
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    // Last, as its heading holds for what follows.
    #[command(flatten)]
    faults: FaultArgs,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = sets::active();
    let answer = match answer(&facts, args)? {
        Ok(answer) => answer,
        Err(large) => return nothing_fits(&large, args, printer),
    };
    if let Some(path) = &args.report {
        write(path, &report(&answer, args)?)?;
    }
    if let Some(launch) = args.emit {
        let constraints = args.split.constraints(&args.work);
        return launch::file(&answer, &constraints, launch, printer);
    }
    if args.output == Output::Json {
        let mut document = serde_json::to_value(&answer.plan)?;
        if let (Some(search_report), Some(document)) = (&answer.search_report, document.as_object_mut()) {
            document.insert("search".to_owned(), serde_json::to_value(search_report.summary())?);
            document.insert("counts".to_owned(), serde_json::to_value(&answer.counts)?);
        }
        if let Some(document) = document.as_object_mut() {
            document.insert("assumed".to_owned(), serde_json::to_value(&answer.assumed)?);
        }
        printer.json(&document)?;
    } else {
        train_output::print(&answer, printer)?;
    }
    Ok(Outcome::finding_if(!answer.plan.fits))
}

/// Whether faults are asked for only where they count.
fn check_faults(args: &Args) -> anyhow::Result<()> {
    let on_a_page = args.report.is_some() && args.work.tokens.is_some();
    match args.faults.first_set_flag() {
        Some(flag) if args.search.goal != SearchGoal::Goodput && !on_a_page => Err(Hinted::error(
            format!("`{flag}` is about faults, which this plan does not count"),
            "`--search --for goodput` counts them, `--report FILE` with `--tokens` too, and \
             `farrier plan goodput`",
        )),
        _ => Ok(()),
    }
}

/// Says that nothing fits, in the place of what was asked for.
fn nothing_fits(large: &NothingFits, args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if let Some(path) = &args.report {
        failure::warn(&anyhow::anyhow!(
            "no page was written to `{}`: nothing fits",
            path.display()
        ));
    }
    if args.emit.is_some() {
        failure::report(&Hinted::error(large.why.clone(), large.enough.clone()));
        return Ok(Outcome::Finding);
    }
    large.print(args.output, printer)
}

/// The answer about a run, and how it was found.
pub(super) struct TrainAnswer {
    planner: &'static Planner,
    pub(super) run: TrainingRun,
    pub(super) plan: TrainingPlan,
    pub(super) search_report: Option<SearchReport>,
    pub(super) counts: Vec<GpuCountResult>,
    pub(super) assumed: Vec<String>,
}

/// Nothing that was searched fits: a finding, not an error.
#[derive(Debug)]
pub(super) struct NothingFits {
    why: String,
    enough: String,
    assumed: Vec<String>,
}

impl NothingFits {
    pub(super) fn print(&self, output: Output, printer: &mut Printer) -> anyhow::Result<Outcome> {
        match output {
            Output::Json => printer.json(&serde_json::json!({
                "v": 1, "fits": false, "why": self.why, "possible": self.enough, "assumed": self.assumed,
            }))?,
            Output::Table => {
                printer.paragraph("", 0, &self.why)?;
                printer.paragraph("", 0, &format!("possible: {}", self.enough))?;
                for assumed in &self.assumed {
                    printer.line(&format!("assumed: {assumed}"))?;
                }
            }
        }
        Ok(Outcome::Finding)
    }
}

fn answer(facts: &FactSet, args: &Args) -> anyhow::Result<Result<TrainAnswer, NothingFits>> {
    let asked = request::asked(facts, &args.work, &args.cluster, &args.split)?;
    check_faults(args)?;
    let planner = args.calibration.planner(&asked.run.gpu)?;
    let tokens = args.work.tokens;
    let constraints = args.split.constraints(&args.work);
    if !args.search.search {
        advice::check_run(&asked.run, &constraints, args.cluster.one_number()?)?;
        let plan = plan(planner, &asked.run, tokens, asked.price);
        let (counts, assumed) = (Vec::new(), asked.assumed);
        return Ok(Ok(TrainAnswer { planner, run: asked.run, plan, search_report: None, counts, assumed }));
    }
    let numbers = &args.cluster.gpus;
    let BestRun { run, search_report, counts } =
        match best(planner, &asked, &constraints, numbers, args.search.goal, tokens, &args.faults)? {
            Ok(best) => best,
            Err(large) => return Ok(Err(large)),
        };
    let run = match args.emit {
        Some(launch) => launch::startable(planner, run, &search_report, &constraints, launch),
        None => run,
    };
    let plan = plan(planner, &run, tokens, asked.price);
    let assumed = asked.assumed;
    Ok(Ok(TrainAnswer { planner, run, plan, search_report: Some(search_report), counts, assumed }))
}

/// The page about an answer.
fn report(answer: &TrainAnswer, args: &Args) -> anyhow::Result<String> {
    let plan = &answer.plan;
    let points = match plan.tokens {
        Some(tokens) => points(answer, args, tokens),
        None => Vec::new(),
    };
    let goodput = match plan.tokens {
        Some(tokens) => {
            let conditions = args.faults.conditions(&answer.run, plan.estimate.step_time_s)?;
            let training = Training {
                tokens: Some(tokens),
                tokens_per_s: plan.tokens_per_s,
                tokens_per_s_p10_p90: Some(plan.tokens_per_s_p10_p90()),
                usd_per_gpu_hour: plan.price.as_ref().map(|price| price.usd_per_gpu_hour),
            };
            Some(args.faults.report(&conditions, &training)?)
        }
        None => None,
    };
    Ok(html_report::html_report(plan, answer.search_report.as_ref(), goodput.as_ref(), &points))
}

/// Days and dollars with fewer and more GPUs, each in its best split.
fn points(answer: &TrainAnswer, args: &Args, tokens: f64) -> Vec<CostPoint> {
    let planner = answer.planner;
    let chosen = answer.plan.gpus;
    let asked = args.split.constraints(&args.work);
    let constraints = asked.relaxed().unwrap_or(asked);
    let mut points = Vec::new();
    for power in -3_i32..=3 {
        let gpus = f64::from(chosen) * 2_f64.powi(power);
        if gpus < 1.0 || gpus.fract() != 0.0 {
            continue;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, ≥ 1")]
        let gpus = gpus as u32;
        let mut run = answer.run.clone();
        if gpus != chosen {
            let Ok(search_report) = search::search(planner, &run, gpus, &constraints) else { continue };
            constraints.apply(&mut run, search_report.best[0].parallelism);
        }
        let estimate = planner.estimate(&run);
        let days = |rate: f64| tokens / (rate * f64::from(gpus)) / 86_400.0;
        let middle = days(estimate.tokens_per_s_per_gpu);
        let price = answer.plan.price.as_ref();
        points.push(CostPoint {
            gpus,
            days: middle,
            days_p10: days(estimate.tokens_per_s_per_gpu_p90),
            days_p90: days(estimate.tokens_per_s_per_gpu_p10),
            usd: price.map(|price| price.usd_per_gpu_hour * 24.0 * middle * f64::from(gpus)),
        });
    }
    points
}

/// The best split over numbers of GPUs, and what each number does.
pub(super) struct BestRun {
    pub(super) run: TrainingRun,
    pub(super) search_report: SearchReport,
    pub(super) counts: Vec<GpuCountResult>,
}

/// What a number of GPUs does in its best split.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GpuCountResult {
    pub(super) gpus: u32,
    pub(super) why_not: Option<String>,
    pub(super) tokens_per_s: Option<f64>,
    pub(super) time_days: Option<f64>,
    pub(super) cost_per_million_tokens_usd: Option<f64>,
    pub(super) effective_share: Option<f64>,
    pub(super) cost_per_million_tokens_with_faults_usd: Option<f64>,
}

/// The best split over numbers of GPUs, for a goal; or that none fits, and what would.
pub(super) fn best(
    planner: &Planner,
    asked: &PlanRequest,
    constraints: &Constraints,
    numbers: &[u32],
    goal: SearchGoal,
    tokens: Option<f64>,
    faults: &FaultArgs,
) -> anyhow::Result<Result<BestRun, NothingFits>> {
    if goal != SearchGoal::Speed && asked.price.is_none() {
        return Err(Hinted::error(
            format!("no price of `{}` is known", asked.run.gpu.id),
            "give one with `--price USD` for one GPU and hour",
        ));
    }
    let mut best: Option<(f64, TrainingRun, SearchReport)> = None;
    let mut counts = Vec::new();
    let mut refused: Option<(u32, SearchError)> = None;
    for gpus in numbers {
        let search_report = match search::search(planner, &asked.run, *gpus, constraints) {
            Ok(search_report) => search_report,
            Err(err) => {
                counts.push(GpuCountResult::refused(*gpus, &err));
                let weight =
                    |gpus, err: &SearchError| (matches!(err, SearchError::TooLarge { .. }), gpus);
                // What could be run says more than what could not, and the most GPUs most.
                if refused.as_ref().is_none_or(|(of, last)| weight(*gpus, &err) > weight(*of, last))
                {
                    refused = Some((*gpus, err));
                }
                continue;
            }
        };
        let mut run = asked.run.clone();
        constraints.apply(&mut run, search_report.best[0].parallelism);
        let (count, worth) = GpuCountResult::of(&run, search_report.best[0].step_s, asked, tokens, goal, faults)?;
        counts.push(count);
        if best.as_ref().is_none_or(|(most, ..)| worth > *most) {
            best = Some((worth, run, search_report));
        }
    }
    match (best, refused) {
        (Some((_, run, search_report)), _) => Ok(Ok(BestRun { run, search_report, counts })),
        (None, Some((gpus, err @ SearchError::TooLarge { .. }))) => {
            let enough = advice::instead(asked, constraints, gpus);
            Ok(Err(NothingFits { why: err.to_string(), enough, assumed: asked.assumed.clone() }))
        }
        (None, Some((gpus, err @ SearchError::Impossible { .. }))) => {
            Err(Hinted::error(err.to_string(), advice::instead(asked, constraints, gpus)))
        }
        (None, Some((_, err))) => Err(err.into()),
        (None, None) => Err(Hinted::error("no number of GPUs was given", "`--gpus N`")),
    }
}

impl GpuCountResult {
    fn refused(gpus: u32, err: &SearchError) -> Self {
        let why = match err {
            SearchError::TooLarge { .. } => "does not fit",
            _ => "not possible",
        };
        Self {
            gpus,
            why_not: Some(why.to_owned()),
            tokens_per_s: None,
            time_days: None,
            cost_per_million_tokens_usd: None,
            effective_share: None,
            cost_per_million_tokens_with_faults_usd: None,
        }
    }

    /// What a run does, and what that is worth for a goal.
    fn of(
        run: &TrainingRun,
        step_s: f64,
        asked: &PlanRequest,
        tokens: Option<f64>,
        goal: SearchGoal,
        faults: &FaultArgs,
    ) -> anyhow::Result<(Self, f64)> {
        let gpus = f64::from(run.parallelism.gpus());
        let tokens_per_s = run.tokens_per_step() / step_s;
        let conditions = faults.conditions(run, step_s)?;
        let share = faults.goodput(&conditions)?.share;
        let paid = conditions.paid_gpus();
        let price = asked.price.as_ref().map(|price| price.usd_per_gpu_hour / 3600.0 * 1e6);
        let worth = match goal {
            SearchGoal::Speed => tokens_per_s,
            SearchGoal::Cost => tokens_per_s / gpus,
            SearchGoal::Goodput => share * tokens_per_s / paid,
        };
        let count = Self {
            gpus: run.parallelism.gpus(),
            why_not: None,
            tokens_per_s: Some(tokens_per_s),
            time_days: tokens.map(|tokens| tokens / tokens_per_s / 86_400.0),
            cost_per_million_tokens_usd: price.map(|price| price * gpus / tokens_per_s),
            effective_share: Some(share),
            cost_per_million_tokens_with_faults_usd: price
                .map(|price| price * paid / (tokens_per_s * share)),
        };
        Ok((count, worth))
    }
}

/// Writes a file that was asked for.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("failed to write `{}`", path.display()))
}
