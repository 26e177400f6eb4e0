//! Tables of a plan, and its assumptions.

use farrier_planner::bound::Bound;
use farrier_planner::estimate::Similarity;
use farrier_planner::plan::TrainingPlan;
use farrier_planner::run::TrainingTask;

use super::super::format::{grouped, number, percent, usd};
use super::charts::{PARTS, kind_colour};
use super::{CostPoint, bound_label};
use crate::charts::{escape, marker};

/// An HTML table. Cells are already escaped.
pub(super) struct HtmlTable {
    html: String,
}

impl HtmlTable {
    /// A heading that starts with `<` marks a left-aligned text column.
    pub(super) fn new(headings: &[&str]) -> Self {
        let mut html = "<div class=\"wide\"><table>\n<tr>".to_owned();
        for heading in headings {
            match heading.strip_prefix('<') {
                Some(text) => html.push_str(&format!("<th class=\"words\">{text}</th>")),
                None => html.push_str(&format!("<th>{heading}</th>")),
            }
        }
        html.push_str("</tr>\n");
        Self { html }
    }

    /// Adds a row, highlighted if it is the planned one.
    pub(super) fn row(&mut self, ours: bool, cells: &[String]) {
        self.html.push_str(if ours { "<tr class=\"ours\">" } else { "<tr>" });
        for cell in cells {
            match cell.strip_prefix(TEXT_CELL) {
                Some(text) => {
                    self.html.push_str(&format!("<td class=\"words\">{text}</td>"));
                }
                None => self.html.push_str(&format!("<td>{cell}</td>")),
            }
        }
        self.html.push_str("</tr>\n");
    }

    pub(super) fn end(mut self) -> String {
        self.html.push_str("</table></div>\n");
        self.html
    }
}

/// Marks a text cell.
const TEXT_CELL: char = '\u{1}';

/// An escaped, left-aligned text cell.
pub(super) fn text_cell(text: &str) -> String {
    format!("{TEXT_CELL}{}", escape(text))
}

/// Share of each bound, and the speedup from relaxing it.
pub(super) fn speedups(plan: &TrainingPlan) -> String {
    let mut table = HtmlTable::new(&["Resource", "Share of the step", "Speedup from 10 % more"]);
    for share in &plan.estimate.bounds {
        let is_overhead = matches!(share.bound, Bound::Bubble | Bound::Launch);
        let name = format!(
            "{}{}",
            bound_label(share.bound, plan.has_nvlink),
            if is_overhead { " <small>(10 % less)</small>" } else { "" }
        );
        table.row(
            share.bound == plan.estimate.bound,
            &[name, percent(share.share), format!("+{}", percent(share.gain_from_tenth_more))],
        );
    }
    format!("<h2>Speedup from more of a resource</h2>\n{}", table.end())
}

/// The nearest published run.
pub(super) fn nearest(plan: &TrainingPlan) -> String {
    let Some(nearest) = &plan.estimate.nearest_measured else { return String::new() };
    let mut table = HtmlTable::new(&["", "Published", "This plan"]);
    let mut row = |name: &str, published: String, planned: String| {
        table.row(false, &[name.to_owned(), published, planned]);
    };
    row("Model", escape(&nearest.model), escape(&plan.model.name));
    row("GPU", escape(&nearest.gpu), escape(&plan.gpu));
    let grouped = |number: u32| grouped(f64::from(number));
    row("GPUs", grouped(nearest.gpus), grouped(plan.gpus));
    let task = |task: TrainingTask| match task {
        TrainingTask::Full => "full training".to_owned(),
        TrainingTask::Lora => "LoRA".to_owned(),
    };
    row("Task", task(nearest.task), task(plan.task));
    row("Precision", nearest.precision.to_owned(), plan.precision.to_owned());
    row("Sequence length", grouped(nearest.seq_len), grouped(plan.seq_len));
    row(
        "Tokens/s per GPU",
        format!("{} measured", number(nearest.tokens_per_s_per_gpu)),
        format!("{} expected", number(plan.estimate.tokens_per_s_per_gpu)),
    );
    let similarity = match (nearest.task, plan.task) {
        (TrainingTask::Full, TrainingTask::Lora) => "is full training",
        (TrainingTask::Lora, TrainingTask::Full) => "is LoRA",
        _ => match nearest.similarity() {
            Similarity::Close => "is close",
            Similarity::Partial => "is partly similar",
            Similarity::Different => "is a different kind of run",
        },
    };
    format!(
        "<h2>The nearest published run</h2>\n<p>It {similarity}: its distance is {}, where below 1 is close and \
         above 3 a different kind of run. Similar published runs make the estimated step {} {} than the model alone.</p>\n{}\
         <p><small>Source: {}, {}</small></p>\n",
        number(nearest.distance),
        percent(plan.estimate.correction.abs()),
        if plan.estimate.correction < 0.0 { "shorter" } else { "longer" },
        table.end(),
        escape(&nearest.source),
        escape(&nearest.date)
    )
}

/// Memory of the fullest GPU by part.
pub(super) fn memory(plan: &TrainingPlan) -> String {
    let Some(stage) = plan.memory.stages.get(plan.memory.worst_stage) else {
        return String::new();
    };
    let mut table = HtmlTable::new(&["Part", "P50, GiB", "P95, GiB"]);
    for (_, name, part) in PARTS {
        let (p50, p95) = (part(&stage.p50), part(&stage.p95));
        if p50 > 0.0 || p95 > 0.0 {
            table.row(false, &[name.to_owned(), number(p50), number(p95)]);
        }
    }
    let [p50, p95] = [stage.p50.total_gib(), stage.p95.total_gib()].map(number);
    table.row(true, &["total".to_owned(), p50, p95]);
    let capacity = number(plan.capacity_gib);
    table.row(false, &["capacity".to_owned(), capacity.clone(), capacity]);
    format!(
        "<h2>Memory of the fullest GPU</h2>\n<p>Stage {}: {} layer{}, activations of {} micro-batches in flight.</p>\n{}",
        stage.stage + 1,
        stage.blocks,
        if stage.blocks == 1 { "" } else { "s" },
        number(stage.micro_batches_in_flight),
        table.end()
    )
}

/// Achieved rate of each kind of operation.
pub(super) fn roofline(plan: &TrainingPlan) -> String {
    let mut table = HtmlTable::new(&[
        "Operation",
        "FLOP per byte",
        "TFLOP/s",
        "Of its roof",
        "Of the busy time",
    ]);
    for work in &plan.roofline.work {
        let roof = plan.roofline.roof_flops_per_s(work);
        table.row(
            false,
            &[
                format!("{} {}", marker(kind_colour(work.kind)), escape(work.kind.name())),
                number(work.flops_per_byte),
                number(work.flops_per_s / 1e12),
                percent(work.flops_per_s / roof),
                percent(work.time_share),
            ],
        );
    }
    format!("<h2>Operations under the roofline</h2>\n{}", table.end())
}

/// Days and cost by number of GPUs.
pub(super) fn cost_and_time(plan: &TrainingPlan, points: &[CostPoint]) -> String {
    if points.is_empty() {
        return String::new();
    }
    let mut table = HtmlTable::new(&["GPUs", "Days", "P10–P90", "Cost"]);
    for point in points {
        table.row(
            point.gpus == plan.gpus,
            &[
                grouped(f64::from(point.gpus)),
                number(point.days),
                format!("{}–{}", number(point.days_p10), number(point.days_p90)),
                point.usd.map_or_else(|| "unknown".to_owned(), usd),
            ],
        );
    }
    format!("<h2>Cost and time by the number of GPUs</h2>\n{}", table.end())
}

/// Definitions and assumptions.
pub(super) fn assumptions(plan: &TrainingPlan) -> String {
    let mut notes = vec![
        "MFU is model FLOPs over the peak of the run's precision, without recomputed FLOPs. Causal \
         counts attention under a causal mask (Megatron), full without a mask (PaLM)."
            .to_owned(),
        format!(
            "Including recomputed FLOPs, the causal share is {} (HFU).",
            percent(plan.estimate.hfu_causal)
        ),
        "P10 and P90 of the speed: one in ten runs like this is slower than P10, one in ten faster than \
         P90. The range was set so that eight in ten published runs lie inside it when they are held \
         out of the fit."
            .to_owned(),
        "P50 and P95 of memory: half of such runs need at most P50, 95 % at most P95. A run fits if \
         P95 does, and is tight if only P50 does."
            .to_owned(),
        "Memory capacity is what a process can use, in GiB. Peak rates are the vendor's; the achieved \
         shares were fitted to published runs."
            .to_owned(),
        "Load is balanced: experts receive equal numbers of tokens, and all GPUs are healthy."
            .to_owned(),
    ];
    if plan.time_days.is_some() {
        notes.push(
            "Days and cost cover training alone, without failures and checkpoints.".to_owned(),
        );
    }
    let mut html = "<h2>Definitions and assumptions</h2>\n<ul>\n".to_owned();
    for note in notes {
        html.push_str(&format!("<li>{}</li>\n", escape(&note)));
    }
    html.push_str("</ul>\n");
    html
}
