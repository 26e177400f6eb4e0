//! A plan as one HTML page: result, charts of memory, time, roofline and cost, and assumptions.
//! Pure.

mod charts;
mod goodput_section;
mod search_section;
mod tables;

use farrier_planner::bound::Bound;
use farrier_planner::goodput;
use farrier_planner::plan::TrainingPlan;
use farrier_planner::run::TrainingTask;
use farrier_planner::search;

use super::format::{count, grouped, number, percent, usd};
use crate::charts::{escape, head_with_colours};

/// Days and cost of the run on a number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CostPoint {
    pub(crate) gpus: u32,
    /// Median.
    pub(crate) days: f64,
    pub(crate) days_p10: f64,
    pub(crate) days_p90: f64,
    /// `None` if no price is known.
    pub(crate) usd: Option<f64>,
}

pub(crate) fn render(
    plan: &TrainingPlan,
    search_report: Option<&search::SearchReport>,
    goodput: Option<&goodput::GoodputReport>,
    cost_and_time: &[CostPoint],
) -> String {
    let title = format!("{} on {} × {}", plan.model.name, grouped(f64::from(plan.gpus)), plan.gpu);
    let mut html = head_with_colours(&title);
    html.push_str(&answer(plan, goodput));
    html.push_str(&facts(plan));
    html.push_str("<h2>Memory, time, roofline and cost</h2>\n<div class=\"plots\">\n");
    html.push_str(&charts::memory(plan));
    html.push_str(&charts::step(plan));
    html.push_str(&charts::roofline(plan));
    html.push_str(&charts::cost_and_time(plan, cost_and_time));
    html.push_str("</div>\n");
    html.push_str(&tables::speedups(plan));
    html.push_str(&tables::nearest(plan));
    if let Some(search_report) = search_report {
        html.push_str(&search_section::section(plan, search_report));
    }
    if let Some(goodput) = goodput {
        html.push_str(&goodput_section::section(goodput));
    }
    html.push_str(&tables::memory(plan));
    html.push_str(&tables::roofline(plan));
    html.push_str(&tables::cost_and_time(plan, cost_and_time));
    html.push_str(&tables::assumptions(plan));
    html.push_str("</body>\n</html>\n");
    html
}

/// The result in one paragraph.
fn answer(plan: &TrainingPlan, goodput: Option<&goodput::GoodputReport>) -> String {
    let estimate = &plan.estimate;
    let memory = &plan.memory;
    let fit = if plan.fits {
        "Fits".to_owned()
    } else if plan.tight {
        "Tight: fits at P50 but not at P95".to_owned()
    } else {
        "Does not fit".to_owned()
    };
    let memory_text = format!(
        "P50 {} GiB, P95 {} of {}",
        number(memory.p50_gib),
        number(memory.p95_gib),
        number(plan.capacity_gib)
    );
    let speed = format!(
        "{} tokens/s per GPU (P10–P90 {}–{})",
        number(estimate.tokens_per_s_per_gpu),
        number(estimate.tokens_per_s_per_gpu_p10),
        number(estimate.tokens_per_s_per_gpu_p90)
    );
    let mut rest = format!(
        "MFU {} causal, {} full; bound by {}",
        percent(estimate.mfu_causal),
        percent(estimate.mfu_full),
        bound_label(estimate.bound, plan.has_nvlink)
    );
    if let Some((days, (p10, p90))) = plan.time_days.zip(days_range(plan)) {
        rest.push_str(&format!("; {} days ({}–{})", number(days), number(p10), number(p90)));
    }
    if let Some(cost) = plan.cost_usd {
        rest.push_str(&format!(", {}", usd(cost)));
    } else if let Some(cost) = plan.cost_per_million_tokens_usd {
        rest.push_str(&format!("; {} per million tokens", usd(cost)));
    }
    if let Some(run) = goodput.and_then(|report| report.run) {
        rest.push_str(&format!("; with failures {} days", number(run.days)));
        if let Some(cost) = run.usd {
            rest.push_str(&format!(", {}", usd(cost)));
        }
    } else if goodput.is_some() {
        rest.push_str("; with failures it makes no progress");
    }
    let class = if plan.fits || plan.tight { "answer" } else { "answer no" };
    format!(
        "<p class=\"{class}\"><strong>{fit}</strong> ({memory_text}). <strong>{}</strong>, {}.</p>\n",
        escape(&speed),
        escape(&rest)
    )
    // The non-breaking space keeps a number and its percent sign on one line.
    .replace(" %", "\u{a0}%")
}

/// P10 and P90 of the training days.
fn days_range(plan: &TrainingPlan) -> Option<(f64, f64)> {
    let estimate = &plan.estimate;
    let rate = estimate.tokens_per_s_per_gpu;
    plan.time_days.map(|days| {
        (
            days * rate / estimate.tokens_per_s_per_gpu_p90,
            days * rate / estimate.tokens_per_s_per_gpu_p10,
        )
    })
}

fn facts(plan: &TrainingPlan) -> String {
    let about = &plan.model;
    let mut weights = format!("{} parameters", count(about.parameters));
    if about.active_parameters < 0.95 * about.parameters {
        weights.push_str(&format!(", {} active", count(about.active_parameters)));
    }
    if about.mtp_parameters > 0.0 {
        let mtp = count(about.mtp_parameters);
        weights.push_str(&format!(", {mtp} in MTP layers"));
    }
    weights.push_str(&format!(
        ": {} GB of 16-bit weights, {} GB with gradients and optimizer state",
        number(about.weights_gb),
        number(about.states_gb)
    ));
    let tokens = f64::from(plan.seq_len) * f64::from(plan.global_batch);
    let task = match plan.task {
        TrainingTask::Full => "full training".to_owned(),
        TrainingTask::Lora => format!("LoRA rank {}", plan.parallelism.adapter_rank),
    };
    let mut framework = vec![plan.framework.to_owned(), plan.precision.to_owned(), task];
    framework.extend(plan.non_default.iter().cloned());
    let mut facts = vec![
        ("Model", weights),
        ("Parallelism", search::describe(&plan.parallelism)),
        (
            "Step",
            format!(
                "{} sequences of {} tokens: {} tokens, {} micro-batches per GPU, {} s",
                grouped(f64::from(plan.global_batch)),
                grouped(f64::from(plan.seq_len)),
                count(tokens),
                grouped(f64::from(plan.micro_batches)),
                number(plan.estimate.step_time_s)
            ),
        ),
        ("Framework", framework.join(", ")),
        (
            "Cluster",
            format!(
                "{} tokens/s, {} model TFLOP/s per GPU",
                count(plan.tokens_per_s),
                number(plan.estimate.model_tflops_per_gpu)
            ),
        ),
    ];
    if let Some(tokens) = plan.tokens {
        facts.push(("Tokens", count(tokens)));
    }
    if let Some(price) = &plan.price {
        let each = usd(price.usd_per_gpu_hour);
        facts.push(("Price", format!("{each} per GPU-hour: {}", price.source)));
    }
    let mut html = "<dl>\n".to_owned();
    for (term, text) in facts {
        html.push_str(&format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text)));
    }
    html.push_str("</dl>\n");
    html
}

/// Display name of a bound.
fn bound_label(bound: Bound, has_nvlink: bool) -> &'static str {
    match bound {
        Bound::Tensor => "tensor cores",
        Bound::Hbm => "GPU memory (HBM)",
        Bound::Nvlink if !has_nvlink => "PCIe",
        Bound::Nvlink => "NVLink",
        Bound::Network => "network",
        Bound::Bubble => "pipeline bubble",
        Bound::Launch => "launches, host and stragglers",
    }
}

#[cfg(test)]
mod tests;
