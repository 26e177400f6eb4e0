//! `farrier plan train`

use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::goodput::Training;
use farrier_planner::plan::{TrainingPlan, plan};
use farrier_planner::run::TrainingRun;
use farrier_planner::search::{self, Constraints, SearchError, SearchReport};
use serde::Serialize;

use super::advice;
use super::calibrate::CalibrationArgs;
use super::goodput::FaultArgs;
use super::html_report::{self, CostPoint};
use super::launch::{self, LauncherArg};
use super::request::{self, ClusterArgs, ParallelismArgs, PlanRequest, WorkloadArgs};
use super::search_args::{SearchArgs, SearchGoal};
use super::train_output;
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::{self, Hinted};
use crate::printer::Printer;

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
    /// Print a launch script for the run instead of the plan
    #[arg(long, value_name = "LAUNCHER", conflicts_with = "output")]
    emit: Option<LauncherArg>,
    /// Write an HTML report with charts of memory, time, roofline and cost
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    // Last, because its help heading applies to all following flags.
    #[command(flatten)]
    faults: FaultArgs,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let answer = match answer(&facts, args)? {
        Ok(answer) => answer,
        Err(nothing_fits) => return report_nothing_fits(&nothing_fits, args, printer),
    };
    if let Some(path) = &args.report {
        write(path, &report(&answer, args)?)?;
    }
    if let Some(launch) = args.emit {
        let constraints = args.split.constraints(&args.work);
        return launch::print_script(&answer, &constraints, launch, printer);
    }
    if args.output == Output::Json {
        let mut document = serde_json::to_value(&answer.plan)?;
        if let (Some(search_report), Some(document)) =
            (&answer.search_report, document.as_object_mut())
        {
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

/// Rejects failure flags that would have no effect.
fn check_faults(args: &Args) -> anyhow::Result<()> {
    let has_report = args.report.is_some() && args.work.tokens.is_some();
    match args.faults.first_set_flag() {
        Some(flag) if args.search.goal != SearchGoal::Goodput && !has_report => Err(Hinted::error(
            format!("`{flag}` is about failures, which this plan ignores"),
            "failures are counted by `--search --for goodput`, by `--report FILE` with `--tokens`, and \
             by `farrier plan goodput`",
        )),
        _ => Ok(()),
    }
}

fn report_nothing_fits(
    nothing_fits: &NothingFits,
    args: &Args,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    if let Some(path) = &args.report {
        failure::warn(&anyhow::anyhow!(
            "no report was written to `{}`: nothing fits",
            path.display()
        ));
    }
    if args.emit.is_some() {
        failure::report(&Hinted::error(
            nothing_fits.reason.clone(),
            nothing_fits.alternatives.clone(),
        ));
        return Ok(Outcome::Finding);
    }
    nothing_fits.print(args.output, printer)
}

/// A plan, and how it was found.
pub(super) struct TrainAnswer {
    planner: &'static Planner,
    pub(super) run: TrainingRun,
    pub(super) plan: TrainingPlan,
    pub(super) search_report: Option<SearchReport>,
    pub(super) counts: Vec<GpuCountResult>,
    pub(super) assumed: Vec<String>,
}

/// No config of the search fits. This is a finding and not an error.
#[derive(Debug)]
pub(super) struct NothingFits {
    reason: String,
    alternatives: String,
    assumed: Vec<String>,
}

impl NothingFits {
    pub(super) fn print(&self, output: Output, printer: &mut Printer) -> anyhow::Result<Outcome> {
        match output {
            Output::Json => printer.json(&serde_json::json!({
                "v": 1, "fits": false, "why": self.reason, "possible": self.alternatives, "assumed": self.assumed,
            }))?,
            Output::Table => {
                printer.paragraph("", 0, &self.reason)?;
                printer.paragraph("", 0, &format!("possible: {}", self.alternatives))?;
                for assumed in &self.assumed {
                    printer.line(&format!("assumed: {assumed}"))?;
                }
            }
        }
        Ok(Outcome::Finding)
    }
}

fn answer(facts: &FactSet, args: &Args) -> anyhow::Result<Result<TrainAnswer, NothingFits>> {
    let request = request::from_args(facts, &args.work, &args.cluster, &args.split)?;
    check_faults(args)?;
    let planner = args.calibration.planner(&request.run.gpu)?;
    let tokens = args.work.tokens;
    let constraints = args.split.constraints(&args.work);
    if !args.search.search {
        advice::check_run(&request.run, &constraints, args.cluster.single_gpu_count()?)?;
        let plan = plan(planner, &request.run, tokens, request.price);
        let (counts, assumed) = (Vec::new(), request.assumed);
        return Ok(Ok(TrainAnswer {
            planner,
            run: request.run,
            plan,
            search_report: None,
            counts,
            assumed,
        }));
    }
    let gpu_counts = &args.cluster.gpus;
    let BestRun { run, search_report, counts } = match best(
        planner,
        &request,
        &constraints,
        gpu_counts,
        args.search.goal,
        tokens,
        &args.faults,
    )? {
        Ok(best) => best,
        Err(nothing_fits) => return Ok(Err(nothing_fits)),
    };
    let run = match args.emit {
        Some(launch) => {
            launch::fastest_launchable(planner, run, &search_report, &constraints, launch)
        }
        None => run,
    };
    let plan = plan(planner, &run, tokens, request.price);
    let assumed = request.assumed;
    Ok(Ok(TrainAnswer { planner, run, plan, search_report: Some(search_report), counts, assumed }))
}

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
    Ok(html_report::render(plan, answer.search_report.as_ref(), goodput.as_ref(), &points))
}

/// Days and dollars with fewer and with more GPUs. Each number of GPUs uses its best config.
fn points(answer: &TrainAnswer, args: &Args, tokens: f64) -> Vec<CostPoint> {
    let planner = answer.planner;
    let chosen = answer.plan.gpus;
    let given = args.split.constraints(&args.work);
    let constraints = given.relaxed().unwrap_or(given);
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
            let Ok(search_report) = search::search(planner, &run, gpus, &constraints) else {
                continue;
            };
            constraints.apply(&mut run, search_report.best[0].parallelism);
        }
        let estimate = planner.estimate(&run);
        let days = |rate: f64| tokens / (rate * f64::from(gpus)) / 86_400.0;
        let median = days(estimate.tokens_per_s_per_gpu);
        let price = answer.plan.price.as_ref();
        points.push(CostPoint {
            gpus,
            days: median,
            days_p10: days(estimate.tokens_per_s_per_gpu_p90),
            days_p90: days(estimate.tokens_per_s_per_gpu_p10),
            usd: price.map(|price| price.usd_per_gpu_hour * 24.0 * median * f64::from(gpus)),
        });
    }
    points
}

/// The best run over several GPU counts, and the result of each count.
pub(super) struct BestRun {
    pub(super) run: TrainingRun,
    pub(super) search_report: SearchReport,
    pub(super) counts: Vec<GpuCountResult>,
}

/// Result of a GPU count in its best config.
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

/// The best run over several GPU counts for a goal. If no run fits, alternatives.
pub(super) fn best(
    planner: &Planner,
    request: &PlanRequest,
    constraints: &Constraints,
    gpu_counts: &[u32],
    goal: SearchGoal,
    tokens: Option<f64>,
    faults: &FaultArgs,
) -> anyhow::Result<Result<BestRun, NothingFits>> {
    if goal != SearchGoal::Speed && request.price.is_none() {
        return Err(Hinted::error(
            format!("the price of `{}` is unknown", request.run.gpu.id),
            "set it with `--price USD` per GPU-hour",
        ));
    }
    let mut best: Option<(f64, TrainingRun, SearchReport)> = None;
    let mut counts = Vec::new();
    let mut rejected: Option<(u32, SearchError)> = None;
    for gpus in gpu_counts {
        let search_report = match search::search(planner, &request.run, *gpus, constraints) {
            Ok(search_report) => search_report,
            Err(err) => {
                counts.push(GpuCountResult::rejected(*gpus, &err));
                let priority =
                    |gpus, err: &SearchError| (matches!(err, SearchError::TooLarge { .. }), gpus);
                // Keep the most useful error: that of a count at which only memory is missing, and
                // otherwise that of the largest count.
                if rejected
                    .as_ref()
                    .is_none_or(|(count, last)| priority(*gpus, &err) > priority(*count, last))
                {
                    rejected = Some((*gpus, err));
                }
                continue;
            }
        };
        let mut run = request.run.clone();
        constraints.apply(&mut run, search_report.best[0].parallelism);
        let (count, value) =
            GpuCountResult::new(&run, search_report.best[0].step_s, request, tokens, goal, faults)?;
        counts.push(count);
        if best.as_ref().is_none_or(|(highest, ..)| value > *highest) {
            best = Some((value, run, search_report));
        }
    }
    match (best, rejected) {
        (Some((_, run, search_report)), _) => Ok(Ok(BestRun { run, search_report, counts })),
        (None, Some((gpus, err @ SearchError::TooLarge { .. }))) => {
            let alternatives = advice::alternatives(request, constraints, gpus);
            let (reason, assumed) = (err.to_string(), request.assumed.clone());
            Ok(Err(NothingFits { reason, alternatives, assumed }))
        }
        (None, Some((gpus, err @ SearchError::Impossible { .. }))) => {
            Err(Hinted::error(err.to_string(), advice::alternatives(request, constraints, gpus)))
        }
        (None, Some((_, err))) => Err(err.into()),
        (None, None) => Err(Hinted::error("no GPU count was given", "`--gpus N`")),
    }
}

impl GpuCountResult {
    fn rejected(gpus: u32, err: &SearchError) -> Self {
        let reason = match err {
            SearchError::TooLarge { .. } => "does not fit",
            _ => "not possible",
        };
        Self {
            gpus,
            why_not: Some(reason.to_owned()),
            tokens_per_s: None,
            time_days: None,
            cost_per_million_tokens_usd: None,
            effective_share: None,
            cost_per_million_tokens_with_faults_usd: None,
        }
    }

    /// Result of a run, and its value for a goal.
    fn new(
        run: &TrainingRun,
        step_s: f64,
        request: &PlanRequest,
        tokens: Option<f64>,
        goal: SearchGoal,
        faults: &FaultArgs,
    ) -> anyhow::Result<(Self, f64)> {
        let gpus = f64::from(run.parallelism.gpus());
        let tokens_per_s = run.tokens_per_step() / step_s;
        let conditions = faults.conditions(run, step_s)?;
        let share = faults.goodput(&conditions)?.share;
        let paid = conditions.paid_gpus();
        let price = request.price.as_ref().map(|price| price.usd_per_gpu_hour / 3600.0 * 1e6);
        let value = match goal {
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
        Ok((count, value))
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("failed to write `{}`", path.display()))
}
