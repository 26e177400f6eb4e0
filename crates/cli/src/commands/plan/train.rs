//! `farrier plan train`

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use farrier_facts::FactSet;
use farrier_planner::emit::{Launcher, emit};
use farrier_planner::goodput::{self, Goodput, Training};
use farrier_planner::plan::{Plan, plan};
use farrier_planner::run::Run;
use farrier_planner::search::{self, Axes, Report};
use farrier_planner::{Planner, check};

use super::calibrate;
use super::figures::{count, duration, grouped, number, percent, usd};
use super::goodput::Faults;
use super::page::{self, Point};
use super::request::{self, Asked, Cluster, Split, Work};
use crate::cli::Output;
use crate::commands::Outcome;
use crate::failure::Hinted;
use crate::printer::{Printer, Tone};
use crate::sets;

/// Which run, and how to answer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    split: Split,
    /// Try every split and take the best; what is given stays as it is
    #[arg(long)]
    search: bool,
    /// What is best: most tokens a second, least cost, or most tokens for the money with faults counted
    #[arg(long = "for", value_name = "GOAL", default_value = "speed", requires = "search")]
    goal: Goal,
    /// What `farrier plan calibrate --keep FILE` measured on such a GPU
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Print a file that starts the run, in place of the answer
    #[arg(long, value_name = "LAUNCHER", conflicts_with = "output")]
    emit: Option<Launch>,
    /// Write a page with plots of memory, time, rates and cost
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// What starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Launch {
    /// A script for each node.
    Torchrun,
    /// A batch script of Slurm.
    Slurm,
}

/// What a search is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Goal {
    /// Most tokens a second.
    Speed,
    /// Least dollars for a token.
    Cost,
    /// Most tokens for a dollar, with faults and checkpoints counted.
    Goodput,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let facts = sets::active();
    let answer = answer(&facts, args)?;
    if let Some(path) = &args.report {
        write(path, &report(&answer, args)?)?;
    }
    if let Some(launch) = args.emit {
        return launch_file(&answer, launch, printer);
    }
    if args.output == Output::Json {
        let mut document = serde_json::to_value(&answer.plan)?;
        if let (Some(found), Some(document)) = (&answer.found, document.as_object_mut()) {
            document.insert("search".to_owned(), serde_json::to_value(found.summary())?);
        }
        if let Some(document) = document.as_object_mut() {
            document.insert("assumed".to_owned(), serde_json::to_value(&answer.assumed)?);
        }
        printer.json(&document)?;
    } else {
        print(&answer, printer)?;
    }
    Ok(Outcome::finding_if(!answer.plan.fits))
}

/// Prints the file that starts a planned run.
fn launch_file(answer: &Answer, launch: Launch, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if !answer.plan.fits && !answer.plan.tight {
        return Err(Hinted::error(
            format!("`{}` does not fit in this split", answer.plan.model.name),
            "`--search` finds one that does",
        ));
    }
    let launcher = match launch {
        Launch::Torchrun => Launcher::Torchrun,
        Launch::Slurm => Launcher::Slurm,
    };
    let text = emit(&answer.plan, &answer.run, launcher)?;
    for line in text.lines() {
        printer.line(line)?;
    }
    Ok(Outcome::Fine)
}

/// The answer about a run, and how it was found.
pub(super) struct Answer {
    pub(super) run: Run,
    pub(super) plan: Plan,
    pub(super) found: Option<Report>,
    pub(super) assumed: Vec<String>,
}

fn answer(facts: &FactSet, args: &Args) -> anyhow::Result<Answer> {
    let asked = request::asked(facts, &args.work, &args.cluster, &args.split)?;
    let planner = calibrate::planner(&asked.run.gpu, args.calibration.as_deref())?;
    let tokens = args.work.tokens;
    if !args.search {
        let [gpus] = args.cluster.gpus[..] else {
            return Err(Hinted::error(
                "several numbers of GPUs are for a search",
                "add `--search`, or give one number",
            ));
        };
        check_run(&asked.run, gpus)?;
        let plan = plan(planner, &asked.run, tokens, asked.price);
        return Ok(Answer { run: asked.run, plan, found: None, assumed: asked.assumed });
    }
    let axes = args.split.axes(args.work.stack);
    let (run, found) = best(planner, &asked, &axes, &args.cluster.gpus, args.goal)?;
    let plan = plan(planner, &run, tokens, asked.price);
    Ok(Answer { run, plan, found: Some(found), assumed: asked.assumed })
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
            let conditions =
                Faults::default().conditions(&answer.run, plan.estimate.step_time_s)?;
            let training = Training {
                tokens,
                tokens_per_s: plan.tokens_per_s,
                usd_per_gpu_hour: plan.price.as_ref().map(|price| price.usd_per_gpu_hour),
            };
            Some(goodput::Report::of(&conditions, &training, None)?)
        }
        None => None,
    };
    Ok(page::page(plan, answer.found.as_ref(), goodput.as_ref(), &points))
}

/// Days and dollars with fewer and more GPUs, each in its best split.
fn points(answer: &Answer, args: &Args, tokens: f64) -> Vec<Point> {
    let planner = Planner::shipped();
    let planned = answer.plan.gpus;
    let axes = Axes { stack: args.work.stack, ..Axes::default() };
    let mut points = Vec::new();
    for power in -3_i32..=3 {
        let gpus = f64::from(planned) * 2_f64.powi(power);
        if gpus < 1.0 || gpus.fract() != 0.0 {
            continue;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, ≥ 1")]
        let gpus = gpus as u32;
        let mut run = answer.run.clone();
        if gpus != planned {
            let Ok(found) = search::search(planner, &run, gpus, &axes) else { continue };
            run.layout = found.best[0].layout;
            run.stack = axes.stack_for(&run.layout, run.stack);
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

/// Whether a run can be run; else what could be.
pub(super) fn check_run(run: &Run, gpus: u32) -> anyhow::Result<()> {
    check::check_on(run, gpus).map_err(|err| {
        let message = format!("this run is not possible: {err}");
        if err.is_of_split() {
            Hinted::error(message, "`--search` finds the best split that is")
        } else {
            anyhow::anyhow!(message)
        }
    })
}

/// The best split over numbers of GPUs, for a goal.
pub(super) fn best(
    planner: &Planner,
    asked: &Asked,
    axes: &Axes,
    numbers: &[u32],
    goal: Goal,
) -> anyhow::Result<(Run, Report)> {
    if goal != Goal::Speed && asked.price.is_none() {
        return Err(Hinted::error(
            format!("no price of `{}` is known", asked.run.gpu.id),
            "give one with `--price USD` for one GPU and hour",
        ));
    }
    let mut best: Option<(f64, Run, Report)> = None;
    let mut refused = None;
    for gpus in numbers {
        let found = match search::search(planner, &asked.run, *gpus, axes) {
            Ok(found) => found,
            Err(err) => {
                refused = Some(err);
                continue;
            }
        };
        let mut run = asked.run.clone();
        run.layout = found.best[0].layout;
        run.stack = axes.stack_for(&run.layout, asked.run.stack);
        let tokens_per_s = run.tokens_per_step() / found.best[0].step_s;
        let worth = match goal {
            Goal::Speed => tokens_per_s,
            Goal::Cost => tokens_per_s / f64::from(*gpus),
            Goal::Goodput => {
                let conditions = Faults::default().conditions(&run, found.best[0].step_s)?;
                let share = Goodput::best(&conditions)?.share;
                share * tokens_per_s / conditions.paid_gpus()
            }
        };
        if best.as_ref().is_none_or(|(most, ..)| worth > *most) {
            best = Some((worth, run, found));
        }
    }
    match (best, refused) {
        (Some((_, run, found)), _) => Ok((run, found)),
        (None, Some(err)) => {
            let most = numbers.iter().copied().max().unwrap_or(1);
            Err(Hinted::error(err.to_string(), enough(planner, asked, axes, most)))
        }
        (None, None) => Err(Hinted::error("no number of GPUs was given", "`--gpus N`")),
    }
}

/// What would do where nothing fits: more GPUs, if that is all it takes.
fn enough(planner: &Planner, asked: &Asked, axes: &Axes, few: u32) -> String {
    let more = (1..12).filter_map(|power| few.checked_mul(1 << power));
    let fits = |gpus: &u32| search::search(planner, &asked.run, *gpus, axes).is_ok();
    match more.take_while(|gpus| *gpus <= 1 << 20).find(fits) {
        Some(gpus) => format!(
            "{gpus} of them do; or a GPU with more memory, `--lora`, or fewer numbers given"
        ),
        None => {
            "a GPU with more memory, a batch that divides by more copies, or fewer numbers given"
                .to_owned()
        }
    }
}

fn print(answer: &Answer, printer: &mut Printer) -> anyhow::Result<()> {
    let plan = &answer.plan;
    printer.line(&format!(
        "{}  {} weights{} on {} × {}, {} tokens a sequence, {} sequences a step, {}, {}",
        plan.model.name,
        count(plan.model.parameters),
        if plan.model.active_parameters < 0.9 * plan.model.parameters {
            format!(" ({} for each token)", count(plan.model.active_parameters))
        } else {
            String::new()
        },
        grouped(f64::from(plan.gpus)),
        plan.gpu,
        grouped(f64::from(plan.seq_len)),
        grouped(f64::from(plan.global_batch)),
        plan.precision,
        plan.stack,
    ))?;
    printer.line(&format!(
        "{} · {} micro-batches a step",
        search::describe(&plan.layout),
        plan.micro_batches
    ))?;
    for assumed in &answer.assumed {
        printer.line(&format!("assumed: {assumed}"))?;
    }
    printer.line("")?;
    headline(plan, printer)?;
    printer.line("")?;
    memory(plan, printer)?;
    printer.line("")?;
    phases(plan, printer)?;
    printer.line("")?;
    bounds(plan, printer)?;
    if let Some(found) = &answer.found {
        printer.line("")?;
        searched(found, printer)?;
    }
    nearest(plan, printer)?;
    Ok(())
}

fn headline(plan: &Plan, printer: &mut Printer) -> anyhow::Result<()> {
    let estimate = &plan.estimate;
    let (tone, word) = if plan.fits {
        (Tone::Good, "fits")
    } else if plan.tight {
        (Tone::Caution, "may not fit")
    } else {
        (Tone::Bad, "does not fit")
    };
    let verdict = printer.toned(tone, word);
    printer.line(&format!(
        "memory    {verdict}: {} GiB in the middle, {} GiB at P95, of {} GiB",
        number(plan.memory.p50_gib),
        number(plan.memory.p95_gib),
        number(plan.capacity_gib),
    ))?;
    printer.line(&format!(
        "speed     {} tokens/s for each GPU (P10 {}, P90 {}), {} a step, {} tokens/s in all",
        number(estimate.tokens_per_s_per_gpu),
        number(estimate.tokens_per_s_per_gpu_p10),
        number(estimate.tokens_per_s_per_gpu_p90),
        duration(estimate.step_time_s),
        grouped(plan.tokens_per_s),
    ))?;
    printer.line(&format!(
        "MFU       {} causal, {} with full attention, of the {} peak; {} TFLOP/s for each GPU",
        percent(estimate.mfu_causal),
        percent(estimate.mfu_full),
        plan.precision,
        number(estimate.model_tflops_per_gpu),
    ))?;
    printer.line(&format!("bound     {}", estimate.bound.name()))?;
    if let (Some(tokens), Some(days)) = (plan.tokens, plan.time_days) {
        printer.line(&format!(
            "time      {} for {} tokens, without faults (`farrier plan goodput` counts those)",
            duration(days * 86_400.0),
            count(tokens)
        ))?;
    }
    match (&plan.price, plan.cost_per_million_tokens_usd) {
        (Some(price), Some(cost)) => {
            let whole =
                plan.cost_usd.map_or_else(String::new, |cost| format!(", {} in all", usd(cost)));
            printer.line(&format!(
                "cost      ${} for a million tokens{whole}, at {} for a GPU and hour ({})",
                number(cost),
                usd(price.usd_per_gpu_hour),
                price.source
            ))?;
        }
        _ => printer.line("cost      not known: no list price; give one with --price")?,
    }
    Ok(())
}

fn memory(plan: &Plan, printer: &mut Printer) -> anyhow::Result<()> {
    let stage = &plan.memory.stages[plan.memory.worst_stage];
    let which = if plan.memory.stages.len() == 1 {
        "each GPU".to_owned()
    } else {
        format!("a GPU of stage {} of {}, the fullest", stage.stage + 1, plan.memory.stages.len())
    };
    let parts = |parts: &farrier_planner::memory::Parts| {
        [
            parts.weights_gib,
            parts.gradients_gib,
            parts.optimizer_gib,
            parts.unsharded_gib,
            parts.activations_gib,
            parts.working_gib,
            parts.logits_gib,
            parts.runtime_gib,
            parts.margin_gib,
        ]
    };
    let names = [
        "weights",
        "gradients",
        "optimizer",
        "whole while used",
        "activations",
        "way back",
        "logits",
        "runtime",
        "allocator margin",
    ];
    let rows: Vec<Vec<String>> = names
        .iter()
        .zip(parts(&stage.p50).into_iter().zip(parts(&stage.p95)))
        .filter(|(_, (p50, p95))| *p50 > 0.005 || *p95 > 0.005)
        .map(|(name, (p50, p95))| vec![(*name).to_owned(), number(p50), number(p95)])
        .collect();
    printer.table(&[&format!("Memory of {which}"), "GiB, middle", "GiB, P95"], &rows)?;
    printer.line(&format!(
        "The whole model: {} GB of weights in 16 bits, {} GB with gradients and the optimizer.",
        number(plan.model.weights_gb),
        number(plan.model.states_gb)
    ))?;
    Ok(())
}

fn phases(plan: &Plan, printer: &mut Printer) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = plan
        .estimate
        .phases
        .iter()
        .filter(|phase| phase.share >= 0.0005)
        .map(|phase| {
            vec![
                phase.phase.name().to_owned(),
                format!("{} s", number(phase.seconds)),
                percent(phase.share),
                phase.bound.name().to_owned(),
            ]
        })
        .collect();
    printer.table(&["A step is spent on", "Time", "Share", "Bound by"], &rows)?;
    Ok(())
}

fn bounds(plan: &Plan, printer: &mut Printer) -> anyhow::Result<()> {
    let gains: Vec<String> = plan
        .estimate
        .bounds
        .iter()
        .filter(|share| share.gain_of_tenth >= 0.0005)
        .map(|share| format!("{} {}", share.bound.name(), percent(share.gain_of_tenth)))
        .collect();
    printer.paragraph("", 0, &format!("10 % more of each would bring: {}.", gains.join(", ")))?;
    Ok(())
}

fn searched(found: &Report, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "Tried {} splits; {} fit.",
        grouped_count(found.tried),
        grouped_count(found.fit)
    ))?;
    let first = found.best[0].step_s;
    let rows: Vec<Vec<String>> = found
        .best
        .iter()
        .take(5)
        .map(|candidate| {
            vec![
                search::describe(&candidate.layout),
                format!("{:+.1} %", 100.0 * (candidate.step_s / first - 1.0)),
                number(candidate.p95_gib),
            ]
        })
        .collect();
    printer.table(&["Best splits", "Step", "GiB, P95"], &rows)?;
    let why: Vec<String> = found
        .others
        .iter()
        .filter_map(|other| match (other.slower, other.needs_gib) {
            (Some(slower), _) => Some(format!("{} {:+.0} %", other.change, 100.0 * slower)),
            (None, Some(gib)) => Some(format!("{} does not fit ({gib:.0} GiB)", other.change)),
            (None, None) => None,
        })
        .collect();
    if !why.is_empty() {
        printer.paragraph(
            "",
            0,
            &format!("With another number, the best step is: {}.", why.join("; ")),
        )?;
    }
    let out: Vec<String> = found
        .ruled_out
        .iter()
        .map(|out| format!("{} {}", grouped_count(out.count), out.why))
        .collect();
    if !out.is_empty() {
        printer.paragraph("", 0, &format!("Ruled out: {}.", out.join("; ")))?;
    }
    Ok(())
}

fn grouped_count(count: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a count of tried splits")]
    grouped(count as f64)
}

fn nearest(plan: &Plan, printer: &mut Printer) -> anyhow::Result<()> {
    let Some(nearest) = &plan.estimate.nearest_measured else { return Ok(()) };
    printer.line("")?;
    let how = if nearest.distance < 1.0 {
        "close to this one"
    } else {
        "the nearest, but another kind of run"
    };
    printer.paragraph(
        "",
        0,
        &format!(
            "Measured, {how}: {} on {} × {}, {}, {} tokens a sequence: {} tokens/s for each GPU ({}, {}).",
            nearest.model,
            nearest.gpus,
            nearest.gpu,
            nearest.precision,
            nearest.seq_len,
            number(nearest.tokens_per_s_per_gpu),
            nearest.source,
            nearest.date
        ),
    )?;
    Ok(())
}

/// Writes a file that was asked for.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("failed to write `{}`", path.display()))
}
