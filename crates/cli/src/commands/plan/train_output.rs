//! The answer of `farrier plan train`, for people.

use farrier_planner::bound::Bound;
use farrier_planner::estimate::Similarity;
use farrier_planner::plan::{ModelSummary, TrainingPlan};
use farrier_planner::run::TrainingTask;
use farrier_planner::search::{self, Alternative, SearchReport};

use super::format::{count, duration, grouped, number, percent, usd};
use super::train::TrainAnswer;
use crate::printer::{Printer, Tone};

/// What of a model's weights is told apart: those for each token, those for further tokens.
fn weights_beside(model: &ModelSummary) -> String {
    let mut beside = Vec::new();
    if model.active_parameters < 0.9 * model.parameters {
        beside.push(format!("{} for each token", count(model.active_parameters)));
    }
    if model.mtp_parameters > 0.0 {
        beside.push(format!("{} to predict further tokens", count(model.mtp_parameters)));
    }
    if beside.is_empty() { String::new() } else { format!(" ({})", beside.join(", ")) }
}

/// Prints an answer for people.
pub(super) fn print(answer: &TrainAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let plan = &answer.plan;
    printer.line(&format!(
        "{}  {} weights{} on {} × {}, {} tokens a sequence, {} sequences a step, {}, {}{}",
        plan.model.name,
        count(plan.model.parameters),
        weights_beside(&plan.model),
        grouped(f64::from(plan.gpus)),
        plan.gpu,
        grouped(f64::from(plan.seq_len)),
        grouped(f64::from(plan.global_batch)),
        plan.precision,
        plan.framework,
        told(plan),
    ))?;
    let passes = match plan.micro_batches {
        1 => "1 micro-batch a step".to_owned(),
        count => format!("{count} micro-batches a step"),
    };
    printer.line(&format!("{} · {passes}", search::describe(&plan.parallelism)))?;
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
    if answer.counts.len() > 1 {
        printer.line("")?;
        counts(answer, printer)?;
    }
    if let Some(search_report) = &answer.search_report {
        printer.line("")?;
        searched(search_report, printer)?;
    }
    nearest(plan, printer)?;
    Ok(())
}

/// What is not full training as the program does it unless it is told.
fn told(plan: &TrainingPlan) -> String {
    let adapters = match plan.task {
        TrainingTask::Full => String::new(),
        TrainingTask::Lora => format!(", LoRA of rank {}", plan.parallelism.adapter_rank),
    };
    plan.non_default.iter().fold(adapters, |text, non_default| format!("{text}, {non_default}"))
}

/// Whether memory suffices: what is needed in the middle and at P95, and what there is, in GiB.
pub(super) fn room(fits: bool, tight: bool, needs_gib: [f64; 3], printer: &Printer) -> String {
    let (tone, word) = if fits {
        (Tone::Good, "fits")
    } else if tight {
        (Tone::Caution, "may not fit")
    } else {
        (Tone::Bad, "does not fit")
    };
    let [middle, p95, capacity] = needs_gib.map(number);
    let verdict = printer.toned(tone, word);
    format!("{verdict}: {middle} GiB in the middle, {p95} GiB at P95, of {capacity} GiB")
}

fn headline(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let estimate = &plan.estimate;
    let needs_gib = [plan.memory.p50_gib, plan.memory.p95_gib, plan.capacity_gib];
    let room = room(plan.fits, plan.tight, needs_gib, printer);
    printer.line(&format!("memory    {room}"))?;
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
    printer.line(&format!("bound     {}", estimate.bound.name_on(plan.has_nvlink)))?;
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

fn memory(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let stage = &plan.memory.stages[plan.memory.worst_stage];
    let which = if plan.memory.stages.len() == 1 {
        "each GPU".to_owned()
    } else {
        format!("a GPU of stage {} of {}, the fullest", stage.stage + 1, plan.memory.stages.len())
    };
    let parts = |parts: &farrier_planner::memory::MemoryBreakdown| {
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
        "backward",
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

fn phases(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
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
                phase.bound.name_on(plan.has_nvlink).to_owned(),
            ]
        })
        .collect();
    printer.table(&["A step is spent on", "Time", "Share", "Bound by"], &rows)?;
    Ok(())
}

fn bounds(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let gains = |less: bool| {
        let gains: Vec<String> = plan
            .estimate
            .bounds
            .iter()
            .filter(|share| share.gain_from_tenth_more >= 0.0005)
            .filter(|share| matches!(share.bound, Bound::Bubble | Bound::LauncherArg) == less)
            .map(|share| {
                let name = share.bound.name_on(plan.has_nvlink);
                format!("{name} {}", percent(share.gain_from_tenth_more))
            })
            .collect();
        gains.join(", ")
    };
    let mut text = format!("10 % more of each would bring: {}.", gains(false));
    if !gains(true).is_empty() {
        text.push_str(&format!(" 10 % less of each: {}.", gains(true)));
    }
    printer.paragraph("", 0, &text)?;
    Ok(())
}

/// What each number of GPUs does in its best split.
fn counts(answer: &TrainAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let cell =
        |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), text);
    let rows: Vec<Vec<String>> = answer
        .counts
        .iter()
        .map(|count| {
            vec![
                grouped(f64::from(count.gpus)),
                count.why_not.clone().unwrap_or_else(|| cell(count.tokens_per_s, grouped)),
                cell(count.time_days, number),
                cell(count.cost_per_million_tokens_usd, |usd| format!("${}", number(usd))),
                cell(count.effective_share, percent),
                cell(count.cost_per_million_tokens_with_faults_usd, |usd| {
                    format!("${}", number(usd))
                }),
            ]
        })
        .collect();
    let headings = ["GPUs", "Tokens/s", "Days", "Million tokens", "Effective time", "With faults"];
    printer.table(&headings, &rows)?;
    Ok(())
}

fn searched(search_report: &SearchReport, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "Tried {} splits; {} fit.",
        grouped_count(search_report.tried),
        grouped_count(search_report.fit)
    ))?;
    let first = search_report.best[0].step_s;
    let rows: Vec<Vec<String>> = search_report
        .best
        .iter()
        .take(5)
        .map(|candidate| {
            vec![
                search::describe(&candidate.parallelism),
                format!("{:+.1} %", 100.0 * (candidate.step_s / first - 1.0)),
                number(candidate.p95_gib),
            ]
        })
        .collect();
    printer.table(&["Best splits", "Step", "GiB, P95"], &rows)?;
    let why: Vec<String> = best_others(search_report)
        .filter_map(|alternative| match (alternative.slower, alternative.needs_gib) {
            (Some(slower), _) => Some(format!("{} {:+.1} %", alternative.change, 100.0 * slower)),
            (None, Some(gib)) => Some(format!("{} does not fit ({gib:.0} GiB)", alternative.change)),
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
    let out: Vec<String> = search_report
        .ruled_out
        .iter()
        .map(|out| format!("{} {}", grouped_count(out.count), out.reason))
        .collect();
    if !out.is_empty() {
        printer.paragraph("", 0, &format!("Ruled out: {}.", out.join("; ")))?;
    }
    Ok(())
}

/// Of each number's other values the two that come nearest; JSON has them all.
fn best_others(search_report: &SearchReport) -> impl Iterator<Item = &Alternative> {
    const OF_EACH: usize = 2;
    let axis = |alternative: &Alternative| alternative.change.rsplit_once(' ').map(|(axis, _)| axis.to_owned());
    let worth = |alternative: &Alternative| alternative.slower.unwrap_or(f64::INFINITY);
    search_report.alternatives.iter().filter(move |alternative| {
        let of_axis = search_report.alternatives.iter().filter(|one| axis(one) == axis(alternative));
        of_axis.filter(|one| worth(one) < worth(alternative)).count() < OF_EACH
    })
}

fn grouped_count(count: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a count of tried splits")]
    grouped(count as f64)
}

fn nearest(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let Some(nearest) = &plan.estimate.nearest_measured else { return Ok(()) };
    printer.line("")?;
    let how = match (nearest.task, plan.task) {
        (TrainingTask::Full, TrainingTask::Lora) => "the nearest, but full training",
        (TrainingTask::Lora, TrainingTask::Full) => "the nearest, but LoRA",
        _ => match nearest.similarity() {
            Similarity::Close => "close to this one",
            Similarity::Partial => "like this one in part",
            Similarity::Different => "the nearest, but another kind of run",
        },
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
