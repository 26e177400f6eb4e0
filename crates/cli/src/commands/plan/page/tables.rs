//! The tables of a plan, and what it rests on.

use farrier_planner::bound::Bound;
use farrier_planner::estimate::Alike;
use farrier_planner::plan::Plan;
use farrier_planner::run::Task;

use super::super::figures::{grouped, number, percent, usd};
use super::plots::{PARTS, kind_colour};
use super::{Point, bound_words};
use crate::charts::{escape, marker};

/// A table of cells that are HTML already.
pub(super) struct Table {
    html: String,
}

impl Table {
    /// With a heading for each column. One that begins with `<` has words under it, on the left.
    pub(super) fn new(headings: &[&str]) -> Self {
        let mut html = "<div class=\"wide\"><table>\n<tr>".to_owned();
        for heading in headings {
            match heading.strip_prefix('<') {
                Some(words) => html.push_str(&format!("<th class=\"words\">{words}</th>")),
                None => html.push_str(&format!("<th>{heading}</th>")),
            }
        }
        html.push_str("</tr>\n");
        Self { html }
    }

    /// A row; one that the page is about stands out.
    pub(super) fn row(&mut self, ours: bool, cells: &[String]) {
        self.html.push_str(if ours { "<tr class=\"ours\">" } else { "<tr>" });
        for cell in cells {
            match cell.strip_prefix(WORDS) {
                Some(words) => {
                    self.html.push_str(&format!("<td class=\"words\">{words}</td>"));
                }
                None => self.html.push_str(&format!("<td>{cell}</td>")),
            }
        }
        self.html.push_str("</tr>\n");
    }

    /// All of it.
    pub(super) fn end(mut self) -> String {
        self.html.push_str("</table></div>\n");
        self.html
    }
}

/// What a cell of words begins with.
const WORDS: char = '\u{1}';

/// A cell of words, on the left and broken where it must be.
pub(super) fn words(text: &str) -> String {
    format!("{WORDS}{}", escape(text))
}

/// What more of each resource would bring.
pub(super) fn tenth_more(plan: &Plan) -> String {
    let mut table = Table::new(&["Resource", "Share of the step", "A tenth more brings"]);
    for share in &plan.estimate.bounds {
        let less = matches!(share.bound, Bound::Bubble | Bound::Launch);
        let name = format!(
            "{}{}",
            bound_words(share.bound, plan.has_nvlink),
            if less { " <small>(a tenth less)</small>" } else { "" }
        );
        table.row(
            share.bound == plan.estimate.bound,
            &[name, percent(share.share), format!("+{} speed", percent(share.gain_of_tenth))],
        );
    }
    format!("<h2>What a tenth more would bring</h2>\n{}", table.end())
}

/// The published run that is most like this one.
pub(super) fn nearest(plan: &Plan) -> String {
    let Some(nearest) = &plan.estimate.nearest_measured else { return String::new() };
    let mut table = Table::new(&["", "Published", "This plan"]);
    let mut row = |name: &str, published: String, planned: String| {
        table.row(false, &[name.to_owned(), published, planned]);
    };
    row("Model", escape(&nearest.model), escape(&plan.model.name));
    row("GPU", escape(&nearest.gpu), escape(&plan.gpu));
    let grouped = |number: u32| grouped(f64::from(number));
    row("GPUs", grouped(nearest.gpus), grouped(plan.gpus));
    let learns = |task: Task| match task {
        Task::Full => "all weights".to_owned(),
        Task::Lora => "adapters (LoRA)".to_owned(),
    };
    row("Learns", learns(nearest.task), learns(plan.task));
    row("Precision", nearest.precision.to_owned(), plan.precision.to_owned());
    row("Tokens of a sequence", grouped(nearest.seq_len), grouped(plan.seq_len));
    row(
        "Tokens/s for each GPU",
        format!("{} measured", number(nearest.tokens_per_s_per_gpu)),
        format!("{} expected", number(plan.estimate.tokens_per_s_per_gpu)),
    );
    let how_far = match (nearest.task, plan.task) {
        (Task::Full, Task::Lora) => "is of full training",
        (Task::Lora, Task::Full) => "is of LoRA",
        _ => match nearest.alike() {
            Alike::Close => "is close",
            Alike::InPart => "is like it in part",
            Alike::Not => "is another kind of run",
        },
    };
    format!(
        "<h2>The nearest published run</h2>\n<p>It {how_far}: its distance is {}, where below 1 is close and \
         above 3 another kind of run. Published runs alike make the step {} {} than the model alone says.</p>\n{}\
         <p><small>Source: {}, {}</small></p>\n",
        number(nearest.distance),
        percent(plan.estimate.correction.abs()),
        if plan.estimate.correction < 0.0 { "shorter" } else { "longer" },
        table.end(),
        escape(&nearest.source),
        escape(&nearest.date)
    )
}

/// The fullest GPU, part by part.
pub(super) fn memory(plan: &Plan) -> String {
    let Some(stage) = plan.memory.stages.get(plan.memory.worst_stage) else {
        return String::new();
    };
    let mut table = Table::new(&["Part", "P50, GiB", "P95, GiB"]);
    for (_, name, part) in PARTS {
        let (half, most) = (part(&stage.p50), part(&stage.p95));
        if half > 0.0 || most > 0.0 {
            table.row(false, &[name.to_owned(), number(half), number(most)]);
        }
    }
    let all = [stage.p50.total_gib(), stage.p95.total_gib()].map(number);
    let [half, most] = all;
    table.row(true, &["all".to_owned(), half, most]);
    let capacity = number(plan.capacity_gib);
    table.row(false, &["a GPU has".to_owned(), capacity.clone(), capacity]);
    format!(
        "<h2>Memory of the fullest GPU</h2>\n<p>Stage {}: {} block{}, activations of {} micro-batches at once.</p>\n{}",
        stage.stage + 1,
        stage.blocks,
        if stage.blocks == 1 { "" } else { "s" },
        number(stage.micro_batches_kept),
        table.end()
    )
}

/// What each kind of work reaches.
pub(super) fn roofline(plan: &Plan) -> String {
    let mut table =
        Table::new(&["Work", "FLOP for each byte", "TFLOP/s", "Of its roof", "Of the work's time"]);
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
    format!("<h2>Work under the roofs</h2>\n{}", table.end())
}

/// The same run on other numbers of GPUs.
pub(super) fn cost_and_time(plan: &Plan, points: &[Point]) -> String {
    if points.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["GPUs", "Days", "P10–P90", "Cost"]);
    for point in points {
        table.row(
            point.gpus == plan.gpus,
            &[
                grouped(f64::from(point.gpus)),
                number(point.days),
                format!("{}–{}", number(point.days_p10), number(point.days_p90)),
                point.usd.map_or_else(|| "not known".to_owned(), usd),
            ],
        );
    }
    format!("<h2>Cost and time by the number of GPUs</h2>\n{}", table.end())
}

/// What the numbers mean and rest on.
pub(super) fn assumptions(plan: &Plan) -> String {
    let mut notes = vec![
        "MFU is model FLOPs over the peak of the run's precision, without what is computed again. \
         Causal counts attention as a causal mask leaves it (Megatron), full as if every token \
         looked at every other (PaLM)."
            .to_owned(),
        format!(
            "With what is computed again the causal share is {} (HFU).",
            percent(plan.estimate.hfu_causal)
        ),
        "P10 and P90 of speed: one run in ten like this is slower than P10, one in ten faster than \
         P90. The range was set so that eight in ten published runs that had no part in the fit lie \
         inside it."
            .to_owned(),
        "P50 and P95 of memory: half of such runs need no more than P50, 95 in 100 no more than P95. \
         It fits where P95 does, is tight where only P50 does."
            .to_owned(),
        "Memory is what a program can have of the part, in GiB; rates of parts are those of their \
         makers, what is reached of them was fitted to published runs."
            .to_owned(),
        "Work is spread evenly: experts see as many tokens as the mean, and all GPUs are healthy."
            .to_owned(),
    ];
    if plan.time_days.is_some() {
        notes.push(
            "Days and cost are of training alone, without faults and checkpoints.".to_owned(),
        );
    }
    let mut html = "<h2>What this rests on</h2>\n<ul>\n".to_owned();
    for note in notes {
        html.push_str(&format!("<li>{}</li>\n", escape(&note)));
    }
    html.push_str("</ul>\n");
    html
}
