//! Table output of `farrier plan train`.

use farrier_planner::bound::Bound;
use farrier_planner::estimate::Similarity;
use farrier_planner::plan::{ModelSummary, TrainingPlan};
use farrier_planner::run::TrainingTask;
use farrier_planner::search::{self, Alternative, SearchReport};

use super::format::{count, duration, grouped, number, percent, usd};
use super::train::TrainAnswer;
use crate::printer::{Printer, Tone};

/// Active and MTP parameters of a model, in brackets.
fn parameter_notes(model: &ModelSummary) -> String {
    let mut notes = Vec::new();
    if model.active_parameters < 0.9 * model.parameters {
        notes.push(format!("{} active", count(model.active_parameters)));
    }
    if model.mtp_parameters > 0.0 {
        notes.push(format!("{} in MTP layers", count(model.mtp_parameters)));
    }
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
}

pub(super) fn print(answer: &TrainAnswer, printer: &mut Printer) -> anyhow::Result<()> {
    let plan = &answer.plan;
    printer.line(&format!(
        "{}  {} parameters{} on {} × {}, sequence length {}, global batch {}, {}, {}{}",
        plan.model.name,
        count(plan.model.parameters),
        parameter_notes(&plan.model),
        grouped(f64::from(plan.gpus)),
        plan.gpu,
        grouped(f64::from(plan.seq_len)),
        grouped(f64::from(plan.global_batch)),
        plan.precision,
        plan.framework,
        non_default_settings(plan),
    ))?;
    let passes = match plan.micro_batches {
        1 => "1 micro-batch per step".to_owned(),
        count => format!("{count} micro-batches per step"),
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
        print_search(search_report, printer)?;
    }
    nearest(plan, printer)?;
    Ok(())
}

/// Settings that differ from full training with the framework's defaults.
fn non_default_settings(plan: &TrainingPlan) -> String {
    let adapters = match plan.task {
        TrainingTask::Full => String::new(),
        TrainingTask::Lora => format!(", LoRA rank {}", plan.parallelism.adapter_rank),
    };
    plan.non_default.iter().fold(adapters, |text, setting| format!("{text}, {setting}"))
}

/// Whether memory suffices. `gib` are P50, P95 and capacity.
pub(super) fn memory_fit(fits: bool, tight: bool, gib: [f64; 3], printer: &Printer) -> String {
    let (tone, word) = if fits {
        (Tone::Good, "fits")
    } else if tight {
        (Tone::Caution, "may not fit")
    } else {
        (Tone::Bad, "does not fit")
    };
    let [p50, p95, capacity] = gib.map(number);
    let verdict = printer.toned(tone, word);
    format!("{verdict}: P50 {p50} GiB, P95 {p95} GiB, of {capacity} GiB")
}

fn headline(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let estimate = &plan.estimate;
    let gib = [plan.memory.p50_gib, plan.memory.p95_gib, plan.capacity_gib];
    let fit = memory_fit(plan.fits, plan.tight, gib, printer);
    printer.line(&format!("memory    {fit}"))?;
    printer.line(&format!(
        "speed     {} tokens/s per GPU (P10 {}, P90 {}), {} per step, {} tokens/s in total",
        number(estimate.tokens_per_s_per_gpu),
        number(estimate.tokens_per_s_per_gpu_p10),
        number(estimate.tokens_per_s_per_gpu_p90),
        duration(estimate.step_time_s),
        grouped(plan.tokens_per_s),
    ))?;
    printer.line(&format!(
        "MFU       {} causal, {} with full attention, of the {} peak; {} TFLOP/s per GPU",
        percent(estimate.mfu_causal),
        percent(estimate.mfu_full),
        plan.precision,
        number(estimate.model_tflops_per_gpu),
    ))?;
    printer.line(&format!("bound     {}", estimate.bound.name_on(plan.has_nvlink)))?;
    if let (Some(tokens), Some(days)) = (plan.tokens, plan.time_days) {
        printer.line(&format!(
            "time      {} for {} tokens, without failures (see `farrier plan goodput`)",
            duration(days * 86_400.0),
            count(tokens)
        ))?;
    }
    match (&plan.price, plan.cost_per_million_tokens_usd) {
        (Some(price), Some(cost)) => {
            let total =
                plan.cost_usd.map_or_else(String::new, |cost| format!(", {} in total", usd(cost)));
            printer.line(&format!(
                "cost      ${} per million tokens{total}, at {} per GPU-hour ({})",
                number(cost),
                usd(price.usd_per_gpu_hour),
                price.source
            ))?;
        }
        _ => printer.line("cost      unknown: no list price; set one with --price")?,
    }
    Ok(())
}

fn memory(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let stage = &plan.memory.stages[plan.memory.worst_stage];
    let scope = if plan.memory.stages.len() == 1 {
        "each GPU".to_owned()
    } else {
        format!(
            "a GPU of pipeline stage {} of {}, the fullest",
            stage.stage + 1,
            plan.memory.stages.len()
        )
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
        "unsharded buffers",
        "activations",
        "backward buffers",
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
    printer.table(&[&format!("Memory of {scope}"), "GiB, P50", "GiB, P95"], &rows)?;
    printer.line(&format!(
        "Model states: {} GB of 16-bit weights, {} GB with gradients and optimizer state.",
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
    printer.table(&["Phase of a step", "Time", "Share", "Bound by"], &rows)?;
    Ok(())
}

fn bounds(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let gains = |is_overhead: bool| {
        let gains: Vec<String> = plan
            .estimate
            .bounds
            .iter()
            .filter(|share| share.gain_from_tenth_more >= 0.0005)
            .filter(|share| matches!(share.bound, Bound::Bubble | Bound::Launch) == is_overhead)
            .map(|share| {
                let name = share.bound.name_on(plan.has_nvlink);
                format!("{name} {}", percent(share.gain_from_tenth_more))
            })
            .collect();
        gains.join(", ")
    };
    let mut text = format!("Speedup from 10 % more of a resource: {}.", gains(false));
    if !gains(true).is_empty() {
        text.push_str(&format!(" From 10 % less overhead: {}.", gains(true)));
    }
    printer.paragraph("", 0, &text)?;
    Ok(())
}

/// Results for each number of GPUs, in its best config.
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
    let headings = ["GPUs", "Tokens/s", "Days", "Per million tokens", "ETTR", "With failures"];
    printer.table(&headings, &rows)?;
    Ok(())
}

fn print_search(search_report: &SearchReport, printer: &mut Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "Tried {} parallelism configs; {} fit.",
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
    printer.table(&["Best configs", "Step", "GiB, P95"], &rows)?;
    let changes: Vec<String> = best_alternatives(search_report)
        .filter_map(|alternative| match (alternative.slower, alternative.needs_gib) {
            (Some(slower), _) => Some(format!("{} {:+.1} %", alternative.change, 100.0 * slower)),
            (None, Some(gib)) => {
                Some(format!("{} does not fit ({gib:.0} GiB)", alternative.change))
            }
            (None, None) => None,
        })
        .collect();
    if !changes.is_empty() {
        printer.paragraph(
            "",
            0,
            &format!("Step time with one value changed: {}.", changes.join("; ")),
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

/// The two best alternatives of each axis; JSON has them all.
fn best_alternatives(search_report: &SearchReport) -> impl Iterator<Item = &Alternative> {
    const PER_AXIS: usize = 2;
    let axis = |alternative: &Alternative| {
        alternative.change.rsplit_once(' ').map(|(axis, _)| axis.to_owned())
    };
    let slowdown = |alternative: &Alternative| alternative.slower.unwrap_or(f64::INFINITY);
    search_report.alternatives.iter().filter(move |alternative| {
        let same_axis =
            search_report.alternatives.iter().filter(|one| axis(one) == axis(alternative));
        same_axis.filter(|one| slowdown(one) < slowdown(alternative)).count() < PER_AXIS
    })
}

fn grouped_count(count: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a count of evaluated configs")]
    grouped(count as f64)
}

fn nearest(plan: &TrainingPlan, printer: &mut Printer) -> anyhow::Result<()> {
    let Some(nearest) = &plan.estimate.nearest_measured else { return Ok(()) };
    printer.line("")?;
    let similarity = match (nearest.task, plan.task) {
        (TrainingTask::Full, TrainingTask::Lora) => "but full training",
        (TrainingTask::Lora, TrainingTask::Full) => "but LoRA",
        _ => match nearest.similarity() {
            Similarity::Close => "close",
            Similarity::Partial => "partly similar",
            Similarity::Different => "but a different kind of run",
        },
    };
    printer.paragraph(
        "",
        0,
        &format!(
            "Nearest published run, {similarity}: {} on {} × {}, {}, sequence length {}: {} tokens/s per GPU ({}, {}).",
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
