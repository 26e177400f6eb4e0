//! `farrier plan train`

use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_facts::FactSet;
use farrier_planner::Planner;
use farrier_planner::goodput::Training;
use farrier_planner::plan::{Plan, plan};
use farrier_planner::run::Run;
use farrier_planner::search::{self, Axes, Report, SearchError};
use serde::Serialize;

use super::advice;
use super::answer;
use super::calibrate::Calibrated;
use super::goodput::Faults;
use super::launch::{self, Launch};
use super::page::{self, Point};
use super::request::{self, Asked, Cluster, Split, Work};
use super::searched::{Goal, Search};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::fact_sets;
use crate::failure::{self, Hinted};
use crate::printer::Printer;

/// Which run, and how to answer.
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
    #[command(flatten)]
    calibrated: Calibrated,
    /// Print a file that starts the run, in place of the answer
    #[arg(long, value_name = "LAUNCHER", conflicts_with = "output")]
    emit: Option<Launch>,
    /// Write a page with plots of memory, time, rates and cost
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    // Last, as its heading holds for what follows.
    #[command(flatten)]
    faults: Faults,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = fact_sets::active();
    let answer = match answer(&facts, args)? {
        Ok(answer) => answer,
        Err(large) => return nothing_fits(&large, args, printer),
    };
    if let Some(path) = &args.report {
        write(path, &report(&answer, args)?)?;
    }
    if let Some(launch) = args.emit {
        let axes = args.split.axes(&args.work);
        return launch::file(&answer, &axes, launch, printer);
    }
    if args.output == Output::Json {
        let mut document = serde_json::to_value(&answer.plan)?;
        if let (Some(found), Some(document)) = (&answer.found, document.as_object_mut()) {
            document.insert("search".to_owned(), serde_json::to_value(found.summary())?);
            document.insert("counts".to_owned(), serde_json::to_value(&answer.counts)?);
        }
        if let Some(document) = document.as_object_mut() {
            document.insert("assumed".to_owned(), serde_json::to_value(&answer.assumed)?);
        }
        printer.json(&document)?;
    } else {
        answer::print(&answer, printer)?;
    }
    Ok(Outcome::finding_if(!answer.plan.fits))
}

/// Whether faults are asked for only where they count.
fn check_faults(args: &Args) -> anyhow::Result<()> {
    let on_a_page = args.report.is_some() && args.work.tokens.is_some();
    match args.faults.first_given() {
        Some(flag) if args.search.goal != Goal::Goodput && !on_a_page => Err(Hinted::error(
            format!("`{flag}` is about faults, which this plan does not count"),
            "`--search --for goodput` counts them, `--report FILE` with `--tokens` too, and \
             `farrier plan goodput`",
        )),
        _ => Ok(()),
    }
}

/// Says that nothing fits, in the place of what was asked for.
fn nothing_fits(large: &TooLarge, args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
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
pub(super) struct Answer {
    planner: &'static Planner,
    pub(super) run: Run,
    pub(super) plan: Plan,
    pub(super) found: Option<Report>,
    pub(super) counts: Vec<Count>,
    pub(super) assumed: Vec<String>,
}

/// Nothing that was searched fits: a finding, not an error.
#[derive(Debug)]
pub(super) struct TooLarge {
    why: String,
    enough: String,
    assumed: Vec<String>,
}

impl TooLarge {
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

fn answer(facts: &FactSet, args: &Args) -> anyhow::Result<Result<Answer, TooLarge>> {
    let asked = request::asked(facts, &args.work, &args.cluster, &args.split)?;
    check_faults(args)?;
    let planner = args.calibrated.planner(&asked.run.gpu)?;
    let tokens = args.work.tokens;
    let axes = args.split.axes(&args.work);
    if !args.search.search {
        advice::check_run(&asked.run, &axes, args.cluster.one_number()?)?;
        let plan = plan(planner, &asked.run, tokens, asked.price);
        let (counts, assumed) = (Vec::new(), asked.assumed);
        return Ok(Ok(Answer { planner, run: asked.run, plan, found: None, counts, assumed }));
    }
    let numbers = &args.cluster.gpus;
    let Best { run, found, counts } =
        match best(planner, &asked, &axes, numbers, args.search.goal, tokens, &args.faults)? {
            Ok(best) => best,
            Err(large) => return Ok(Err(large)),
        };
    let run = match args.emit {
        Some(launch) => launch::startable(planner, run, &found, &axes, launch),
        None => run,
    };
    let plan = plan(planner, &run, tokens, asked.price);
    let assumed = asked.assumed;
    Ok(Ok(Answer { planner, run, plan, found: Some(found), counts, assumed }))
}

/// The page about an answer.
fn report(answer: &Answer, args: &Args) -> anyhow::Result<String> {
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
    Ok(page::page(plan, answer.found.as_ref(), goodput.as_ref(), &points))
}

/// Days and dollars with fewer and more GPUs, each in its best split.
fn points(answer: &Answer, args: &Args, tokens: f64) -> Vec<Point> {
    let planner = answer.planner;
    let chosen = answer.plan.gpus;
    let asked = args.split.axes(&args.work);
    let axes = asked.loosened().unwrap_or(asked);
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
            let Ok(found) = search::search(planner, &run, gpus, &axes) else { continue };
            axes.lay_out(&mut run, found.best[0].layout);
        }
        let estimate = planner.estimate(&run);
        let days = |rate: f64| tokens / (rate * f64::from(gpus)) / 86_400.0;
        let middle = days(estimate.tokens_per_s_per_gpu);
        let price = answer.plan.price.as_ref();
        points.push(Point {
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
pub(super) struct Best {
    pub(super) run: Run,
    pub(super) found: Report,
    pub(super) counts: Vec<Count>,
}

/// What a number of GPUs does in its best split.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Count {
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
    asked: &Asked,
    axes: &Axes,
    numbers: &[u32],
    goal: Goal,
    tokens: Option<f64>,
    faults: &Faults,
) -> anyhow::Result<Result<Best, TooLarge>> {
    if goal != Goal::Speed && asked.price.is_none() {
        return Err(Hinted::error(
            format!("no price of `{}` is known", asked.run.gpu.id),
            "give one with `--price USD` for one GPU and hour",
        ));
    }
    let mut best: Option<(f64, Run, Report)> = None;
    let mut counts = Vec::new();
    let mut refused: Option<(u32, SearchError)> = None;
    for gpus in numbers {
        let found = match search::search(planner, &asked.run, *gpus, axes) {
            Ok(found) => found,
            Err(err) => {
                counts.push(Count::refused(*gpus, &err));
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
        axes.lay_out(&mut run, found.best[0].layout);
        let (count, worth) = Count::of(&run, found.best[0].step_s, asked, tokens, goal, faults)?;
        counts.push(count);
        if best.as_ref().is_none_or(|(most, ..)| worth > *most) {
            best = Some((worth, run, found));
        }
    }
    match (best, refused) {
        (Some((_, run, found)), _) => Ok(Ok(Best { run, found, counts })),
        (None, Some((gpus, err @ SearchError::TooLarge { .. }))) => {
            let enough = advice::instead(asked, axes, gpus);
            Ok(Err(TooLarge { why: err.to_string(), enough, assumed: asked.assumed.clone() }))
        }
        (None, Some((gpus, err @ SearchError::Impossible { .. }))) => {
            Err(Hinted::error(err.to_string(), advice::instead(asked, axes, gpus)))
        }
        (None, Some((_, err))) => Err(err.into()),
        (None, None) => Err(Hinted::error("no number of GPUs was given", "`--gpus N`")),
    }
}

impl Count {
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
        run: &Run,
        step_s: f64,
        asked: &Asked,
        tokens: Option<f64>,
        goal: Goal,
        faults: &Faults,
    ) -> anyhow::Result<(Self, f64)> {
        let gpus = f64::from(run.layout.gpus());
        let tokens_per_s = run.tokens_per_step() / step_s;
        let conditions = faults.conditions(run, step_s)?;
        let share = faults.goodput(&conditions)?.share;
        let paid = conditions.paid_gpus();
        let price = asked.price.as_ref().map(|price| price.usd_per_gpu_hour / 3600.0 * 1e6);
        let worth = match goal {
            Goal::Speed => tokens_per_s,
            Goal::Cost => tokens_per_s / gpus,
            Goal::Goodput => share * tokens_per_s / paid,
        };
        let count = Self {
            gpus: run.layout.gpus(),
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
