//! A plan as one HTML page: the answer, plots of memory, time, roofs and cost, and what they rest on.
//! Pure.

mod faults;
mod plots;
mod splits;
mod tables;

use farrier_planner::bound::Bound;
use farrier_planner::goodput;
use farrier_planner::plan::Plan;
use farrier_planner::run::Task;
use farrier_planner::search;

use super::figures::{count, grouped, number, percent, usd};
use crate::charts::{escape, head_with_colours};

/// The run on another number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// So many GPUs.
    pub(crate) gpus: u32,
    /// Days that the tokens take, the middle of what is expected.
    pub(crate) days: f64,
    /// One in ten takes less.
    pub(crate) days_p10: f64,
    /// One in ten takes more.
    pub(crate) days_p90: f64,
    /// What they cost, if a price is known.
    pub(crate) usd: Option<f64>,
}

/// The whole page.
pub(crate) fn page(
    plan: &Plan,
    found: Option<&search::Report>,
    goodput: Option<&goodput::Report>,
    cost_and_time: &[Point],
) -> String {
    let title = format!("{} on {} × {}", plan.model.name, grouped(f64::from(plan.gpus)), plan.gpu);
    let mut html = head_with_colours(&title);
    html.push_str(&answer(plan, goodput));
    html.push_str(&facts(plan));
    html.push_str("<h2>Memory, time, roofs and cost</h2>\n<div class=\"plots\">\n");
    html.push_str(&plots::memory(plan));
    html.push_str(&plots::step(plan));
    html.push_str(&plots::roofline(plan));
    html.push_str(&plots::cost_and_time(plan, cost_and_time));
    html.push_str("</div>\n");
    html.push_str(&tables::tenth_more(plan));
    html.push_str(&tables::nearest(plan));
    if let Some(found) = found {
        html.push_str(&splits::section(plan, found));
    }
    if let Some(goodput) = goodput {
        html.push_str(&faults::section(goodput));
    }
    html.push_str(&tables::memory(plan));
    html.push_str(&tables::roofline(plan));
    html.push_str(&tables::cost_and_time(plan, cost_and_time));
    html.push_str(&tables::assumptions(plan));
    html.push_str("</body>\n</html>\n");
    html
}

/// Everything in one line.
fn answer(plan: &Plan, goodput: Option<&goodput::Report>) -> String {
    let estimate = &plan.estimate;
    let memory = &plan.memory;
    let fit = if plan.fits {
        "Fits".to_owned()
    } else if plan.tight {
        "Tight: fits more likely than not".to_owned()
    } else {
        "Does not fit".to_owned()
    };
    let room = format!(
        "{} GiB, at most {} of {}",
        number(memory.p50_gib),
        number(memory.p95_gib),
        number(plan.capacity_gib)
    );
    let speed = format!(
        "{} tokens/s for each GPU (P10–P90 {}–{})",
        number(estimate.tokens_per_s_per_gpu),
        number(estimate.tokens_per_s_per_gpu_p10),
        number(estimate.tokens_per_s_per_gpu_p90)
    );
    let mut rest = format!(
        "MFU {} causal, {} full; bound by {}",
        percent(estimate.mfu_causal),
        percent(estimate.mfu_full),
        bound_words(estimate.bound, plan.has_nvlink)
    );
    if let Some((days, (least, most))) = plan.time_days.zip(days_range(plan)) {
        rest.push_str(&format!("; {} days ({}–{})", number(days), number(least), number(most)));
    }
    if let Some(cost) = plan.cost_usd {
        rest.push_str(&format!(", {}", usd(cost)));
    } else if let Some(cost) = plan.cost_per_million_tokens_usd {
        rest.push_str(&format!("; {} for a million tokens", usd(cost)));
    }
    if let Some(run) = goodput.and_then(|report| report.run) {
        rest.push_str(&format!("; with faults {} days", number(run.days)));
        if let Some(cost) = run.usd {
            rest.push_str(&format!(", {}", usd(cost)));
        }
    } else if goodput.is_some() {
        rest.push_str("; with faults it makes no headway");
    }
    let class = if plan.fits || plan.tight { "answer" } else { "answer no" };
    format!(
        "<p class=\"{class}\"><strong>{fit}</strong> ({room}). <strong>{}</strong>, {}.</p>\n",
        escape(&speed),
        escape(&rest)
    )
    // A number and its unit stay together.
    .replace(" %", "\u{a0}%")
}

/// Days that the run takes, of which one in ten takes less, and one in ten more.
fn days_range(plan: &Plan) -> Option<(f64, f64)> {
    let estimate = &plan.estimate;
    let rate = estimate.tokens_per_s_per_gpu;
    plan.time_days.map(|days| {
        (
            days * rate / estimate.tokens_per_s_per_gpu_p90,
            days * rate / estimate.tokens_per_s_per_gpu_p10,
        )
    })
}

fn facts(plan: &Plan) -> String {
    let about = &plan.model;
    let mut weights = format!("{} parameters", count(about.parameters));
    if about.active_parameters < 0.95 * about.parameters {
        weights.push_str(&format!(", {} of them for each token", count(about.active_parameters)));
    }
    if about.further_parameters > 0.0 {
        let further = count(about.further_parameters);
        weights.push_str(&format!(", {further} to predict further tokens"));
    }
    weights.push_str(&format!(
        ": {} GB in 16 bits, {} GB with gradients and optimizer",
        number(about.weights_gb),
        number(about.states_gb)
    ));
    let tokens = f64::from(plan.seq_len) * f64::from(plan.global_batch);
    let learns = match plan.task {
        Task::Full => "all weights learn".to_owned(),
        Task::Lora => format!("LoRA of rank {} learns", plan.layout.adapter_rank),
    };
    let mut program = vec![plan.stack.to_owned(), plan.precision.to_owned(), learns];
    program.extend(plan.unusual.iter().cloned());
    let mut facts = vec![
        ("Model", weights),
        ("Split", search::describe(&plan.layout)),
        (
            "Step",
            format!(
                "{} sequences of {} tokens: {} tokens, {} micro-batches for each GPU, {} s",
                grouped(f64::from(plan.global_batch)),
                grouped(f64::from(plan.seq_len)),
                count(tokens),
                grouped(f64::from(plan.micro_batches)),
                number(plan.estimate.step_time_s)
            ),
        ),
        ("Program", program.join(", ")),
        (
            "Cluster",
            format!(
                "{} tokens/s, {} model TFLOP/s for each GPU",
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
        facts.push(("Price", format!("{each} for a GPU and hour: {}", price.source)));
    }
    let mut html = "<dl>\n".to_owned();
    for (term, text) in facts {
        html.push_str(&format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text)));
    }
    html.push_str("</dl>\n");
    html
}

/// A bound as a reader would say it.
fn bound_words(bound: Bound, has_nvlink: bool) -> &'static str {
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
