//! The plots of a plan.

use farrier_planner::bound::Bound;
use farrier_planner::memory::Parts;
use farrier_planner::plan::Plan;
use farrier_planner::roofline::Kind;

use super::super::figures::{grouped, number, percent, usd};
use super::{Point, bound_words};
use crate::charts::{
    Colour, RooflineChart, RooflinePoint, ScatterPlot, ScatterPoint, StackedBar, StackedBars,
    Waterfall, WaterfallBar, escape, legend, marker, roofline_chart, scatter_plot, stacked_bars,
    waterfall,
};

/// A part of memory: its colour, its name, and how much of it there is, GiB.
type Part = (Colour, &'static str, fn(&Parts) -> f64);

/// What is in a GPU's memory, from below in the plot.
pub(super) const PARTS: [Part; 9] = [
    (Colour::Indigo, "weights", |parts| parts.weights_gib),
    (Colour::Cyan, "gradients", |parts| parts.gradients_gib),
    (Colour::Teal, "optimizer", |parts| parts.optimizer_gib),
    (Colour::Green, "gathered weights and gradients", |parts| parts.unsharded_gib),
    (Colour::Sand, "activations", |parts| parts.activations_gib),
    (Colour::Olive, "way back through a block", |parts| parts.working_gib),
    (Colour::Rose, "output and loss", |parts| parts.logits_gib),
    (Colour::Purple, "driver and communication", |parts| parts.runtime_gib),
    (Colour::Grey, "allocator's margin", |parts| parts.margin_gib),
];

fn figure(title: &str, plot: &str, legend: &str, note: &str) -> String {
    let note = if note.is_empty() {
        String::new()
    } else {
        format!("<p><small>{}</small></p>\n", escape(note))
    };
    format!("<figure><figcaption>{}</figcaption>\n{plot}{legend}{note}</figure>\n", escape(title))
}

/// Memory of a GPU of each stage.
pub(super) fn memory(plan: &Plan) -> String {
    let memory = &plan.memory;
    let staged = memory.stages.len() > 1;
    let columns = memory.stages.iter().map(|stage| StackedBar {
        label: if staged { (stage.stage + 1).to_string() } else { String::new() },
        segments: PARTS.iter().map(|(_, _, part)| part(&stage.p50)).collect(),
        mark: stage.p95.total_gib(),
        text: format!(
            "stage {}, {} blocks: {} GiB, at most {}",
            stage.stage + 1,
            stage.blocks,
            number(stage.p50.total_gib()),
            number(stage.p95.total_gib())
        ),
    });
    let title = if staged { "Memory of a GPU by pipeline stage" } else { "Memory of a GPU" };
    let colours = PARTS.map(|(colour, _, _)| colour);
    let plot = stacked_bars(&StackedBars {
        title,
        unit: "GiB",
        each: if staged { "pipeline stage" } else { "every GPU" },
        colours: &colours,
        bars: columns.collect(),
        limit: (plan.capacity_gib, format!("a GPU has {}", number(plan.capacity_gib))),
    });
    let shown = PARTS
        .iter()
        .filter(|(_, _, part)| memory.stages.iter().any(|stage| part(&stage.p50) > 0.0));
    let mut note = "Columns are what half of such runs need (P50), the mark above what 95 of 100 \
                    need at most (P95)."
        .to_owned();
    if let Some(worst) = memory.stages.get(memory.worst_stage).filter(|_| staged) {
        note.push_str(&format!(" Stage {} is the fullest.", worst.stage + 1));
    }
    figure(title, &plot, &legend(shown.map(|(colour, name, _)| (*colour, *name))), &note)
}

fn bound_colour(bound: Bound) -> Colour {
    match bound {
        Bound::Tensor => Colour::Indigo,
        Bound::Hbm => Colour::Sand,
        Bound::Nvlink => Colour::Teal,
        Bound::Network => Colour::Cyan,
        Bound::Bubble => Colour::Grey,
        Bound::Launch => Colour::Rose,
    }
}

/// What a step is spent on.
pub(super) fn step(plan: &Plan) -> String {
    let estimate = &plan.estimate;
    // Of a quick step milliseconds.
    let (factor, unit, axis) = if estimate.step_time_s < 1.0 {
        (1e3, "ms", "milliseconds")
    } else {
        (1.0, "s", "seconds")
    };
    let bars = estimate.phases.iter().map(|phase| WaterfallBar {
        label: phase.phase.name().to_owned(),
        value: phase.seconds * factor,
        text: format!("{} {unit} · {}", number(phase.seconds * factor), percent(phase.share)),
        colour: bound_colour(phase.bound),
    });
    let rate = estimate.tokens_per_s_per_gpu;
    let whole = estimate.step_time_s * factor;
    let title = "A step by what it is spent on";
    let plot = waterfall(&Waterfall {
        title,
        unit: axis,
        bars: bars.collect(),
        sum: "step",
        sum_text: format!("{} {unit}", number(whole)),
        sum_range: (
            whole * rate / estimate.tokens_per_s_per_gpu_p90,
            whole * rate / estimate.tokens_per_s_per_gpu_p10,
        ),
    });
    let shown = Bound::ALL
        .into_iter()
        .filter(|bound| estimate.phases.iter().any(|phase| phase.bound == *bound))
        .map(|bound| (bound_colour(bound), bound_words(bound, plan.has_nvlink)));
    let note = "The colour says what a part is bound by. Traffic is only what the step waits for; \
                what hides behind work is not in it. The range of the whole is P10 to P90.";
    figure(title, &plot, &legend(shown), note)
}

/// A kind's colour and mark.
pub(super) fn kind_colour(kind: Kind) -> Colour {
    match kind {
        Kind::AttentionProducts => Colour::Indigo,
        Kind::FeedForwardProducts => Colour::Green,
        Kind::ExpertProducts => Colour::Teal,
        Kind::AttentionCore => Colour::Rose,
        Kind::Pointwise => Colour::Sand,
        Kind::Logits => Colour::Purple,
        Kind::Optimizer => Colour::Olive,
    }
}

/// Where the kinds of work lie under the GPU's roofs.
pub(super) fn roofline(plan: &Plan) -> String {
    let roofline = &plan.roofline;
    let (peak, half) = (roofline.peak_flops_per_s / 1e12, roofline.half_peak_flops_per_s / 1e12);
    let memory = roofline.hbm_bytes_per_s / 1e12;
    let under = roofline.work.iter().map(|work| RooflinePoint {
        intensity: work.flops_per_byte,
        reached: work.flops_per_s / 1e12,
        text: format!(
            "{}: {} FLOP for each byte, {} TFLOP/s",
            work.kind.name(),
            number(work.flops_per_byte),
            number(work.flops_per_s / 1e12)
        ),
        colour: kind_colour(work.kind),
    });
    let title = "Roofline: what each kind of work reaches of the GPU";
    let plot = roofline_chart(&RooflineChart {
        title,
        peak: (peak, format!("{} TFLOP/s in {}", number(peak), plan.precision)),
        lower: (half < peak).then(|| (half, format!("{} TFLOP/s in 16 bits", number(half)))),
        slope: (memory, format!("{} TB/s", number(memory))),
        points: under.collect(),
    });
    let mut legend = "<ul class=\"legend\">".to_owned();
    for work in &roofline.work {
        legend.push_str(&format!(
            "<li>{}{}</li>",
            marker(kind_colour(work.kind)),
            escape(work.kind.name())
        ));
    }
    legend.push_str("</ul>\n");
    let note = "Lines are the peaks of the part, marks what is expected in training. Bytes of \
                products are each operand read and each result written once.";
    figure(title, &plot, &legend, note)
}

/// Days and dollars of the same run on other numbers of GPUs.
pub(super) fn cost_and_time(plan: &Plan, points: &[Point]) -> String {
    if points.is_empty() {
        return String::new();
    }
    let priced = points.iter().all(|point| point.usd.is_some());
    let place = |point: &Point| {
        let ours = point.gpus == plan.gpus;
        let gpus = grouped(f64::from(point.gpus));
        let cost = point.usd.map(|cost| format!(", {}", usd(cost))).unwrap_or_default();
        ScatterPoint {
            x: point.days,
            x_range: (point.days_p10, point.days_p90),
            y: point.usd.filter(|_| priced).unwrap_or(f64::from(point.gpus)),
            label: if ours { format!("{gpus} GPUs (planned)") } else { gpus.clone() },
            text: format!("{gpus} GPUs: {} days{cost}", number(point.days)),
            ours,
        }
    };
    let (title, y_title, y_sign, note) = if priced {
        (
            "Cost against time, by the number of GPUs",
            "dollars",
            "$",
            "Numbers are GPUs, ranges P10 to P90 of the days; the cost goes with the days. Without faults.",
        )
    } else {
        (
            "GPUs against time",
            "GPUs",
            "",
            "Ranges are P10 to P90. Without faults; no price is known.",
        )
    };
    let plot = scatter_plot(&ScatterPlot {
        title,
        x_title: "days",
        y_title,
        y_sign,
        points: points.iter().map(place).collect(),
    });
    figure(title, &plot, "", note)
}
