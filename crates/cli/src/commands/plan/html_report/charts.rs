//! Charts of a plan.

use farrier_planner::bound::Bound;
use farrier_planner::memory::MemoryBreakdown;
use farrier_planner::plan::TrainingPlan;
use farrier_planner::roofline::OpKind;

use super::super::format::{grouped, number, percent, usd};
use super::{CostPoint, bound_label};
use crate::charts::{
    Colour, RooflineChart, RooflineMarker, ScatterPlot, ScatterPoint, StackedBar, StackedBars,
    Waterfall, WaterfallBar, escape, legend, marker, roofline_chart, scatter_plot, stacked_bars,
    waterfall,
};

/// A part of memory: colour, name and GiB.
type MemoryPart = (Colour, &'static str, fn(&MemoryBreakdown) -> f64);

/// Parts of a GPU's memory, bottom to top.
pub(super) const PARTS: [MemoryPart; 9] = [
    (Colour::Indigo, "weights", |parts| parts.weights_gib),
    (Colour::Cyan, "gradients", |parts| parts.gradients_gib),
    (Colour::Teal, "optimizer", |parts| parts.optimizer_gib),
    (Colour::Green, "unsharded buffers", |parts| parts.unsharded_gib),
    (Colour::Sand, "activations", |parts| parts.activations_gib),
    (Colour::Olive, "backward buffers", |parts| parts.working_gib),
    (Colour::Rose, "logits and loss", |parts| parts.logits_gib),
    (Colour::Purple, "CUDA context and NCCL", |parts| parts.runtime_gib),
    (Colour::Grey, "allocator margin", |parts| parts.margin_gib),
];

fn figure(title: &str, plot: &str, legend: &str, note: &str) -> String {
    let note = if note.is_empty() {
        String::new()
    } else {
        format!("<p><small>{}</small></p>\n", escape(note))
    };
    format!("<figure><figcaption>{}</figcaption>\n{plot}{legend}{note}</figure>\n", escape(title))
}

/// Memory per pipeline stage.
pub(super) fn memory(plan: &TrainingPlan) -> String {
    let memory = &plan.memory;
    let staged = memory.stages.len() > 1;
    let columns = memory.stages.iter().map(|stage| StackedBar {
        label: if staged { (stage.stage + 1).to_string() } else { String::new() },
        segments: PARTS.iter().map(|(_, _, part)| part(&stage.p50)).collect(),
        mark: Some(stage.p95.total_gib()),
        text: format!(
            "stage {}, {} layers: P50 {} GiB, P95 {}",
            stage.stage + 1,
            stage.blocks,
            number(stage.p50.total_gib()),
            number(stage.p95.total_gib())
        ),
    });
    let title = if staged { "Memory per GPU by pipeline stage" } else { "Memory per GPU" };
    let colours = PARTS.map(|(colour, _, _)| colour);
    let plot = stacked_bars(&StackedBars {
        title,
        unit: "GiB",
        each: if staged { "pipeline stage" } else { "every GPU" },
        colours: &colours,
        bars: columns.collect(),
        limit: Some((plan.capacity_gib, format!("capacity {}", number(plan.capacity_gib)))),
    });
    let shown = PARTS
        .iter()
        .filter(|(_, _, part)| memory.stages.iter().any(|stage| part(&stage.p50) > 0.0));
    let mut note =
        "Columns are the median (P50) of runs like this one; the mark above is P95.".to_owned();
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

/// Time of a step by phase.
pub(super) fn step(plan: &TrainingPlan) -> String {
    let estimate = &plan.estimate;
    // Milliseconds for short steps.
    let (factor, unit, axis) = if estimate.step_time_s < 1.0 {
        (1e3, "ms", "milliseconds")
    } else {
        (1.0, "s", "seconds")
    };
    let falls = estimate.phases.iter().map(|phase| WaterfallBar {
        label: phase.phase.name().to_owned(),
        value: phase.seconds * factor,
        text: format!("{} {unit} · {}", number(phase.seconds * factor), percent(phase.share)),
        colour: bound_colour(phase.bound),
    });
    let rate = estimate.tokens_per_s_per_gpu;
    let whole = estimate.step_time_s * factor;
    let title = "Step time by phase";
    let plot = waterfall(&Waterfall {
        title,
        unit: axis,
        bars: falls.collect(),
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
        .map(|bound| (bound_colour(bound), bound_label(bound, plan.has_nvlink)));
    let note = "The colour shows what a phase is bound by. Communication is only the exposed part; \
                communication overlapped with compute is not included. The range of the total is P10 to P90.";
    figure(title, &plot, &legend(shown), note)
}

/// Colour and mark of a kind of operation.
pub(super) fn kind_colour(kind: OpKind) -> Colour {
    match kind {
        OpKind::AttentionGemm => Colour::Indigo,
        OpKind::FeedForwardGemm => Colour::Green,
        OpKind::ExpertGemm => Colour::Teal,
        OpKind::AttentionCore => Colour::Rose,
        OpKind::Pointwise => Colour::Sand,
        OpKind::Logits => Colour::Purple,
        OpKind::Optimizer => Colour::Olive,
    }
}

pub(super) fn roofline(plan: &TrainingPlan) -> String {
    let roofline = &plan.roofline;
    let (peak, half) = (roofline.peak_flops_per_s / 1e12, roofline.half_peak_flops_per_s / 1e12);
    let memory = roofline.hbm_bytes_per_s / 1e12;
    let under = roofline.work.iter().map(|work| RooflineMarker {
        intensity: work.flops_per_byte,
        reached: work.flops_per_s / 1e12,
        text: format!(
            "{}: {} FLOP per byte, {} TFLOP/s",
            work.kind.name(),
            number(work.flops_per_byte),
            number(work.flops_per_s / 1e12)
        ),
        colour: kind_colour(work.kind),
    });
    let title = "Roofline: achieved rate of each kind of operation";
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
    let note = "Lines are the peaks of the GPU, marks are the expected rates in training. Bytes of \
                GEMMs count each operand and each result once.";
    figure(title, &plot, &legend, note)
}

/// Days and dollars by number of GPUs.
pub(super) fn cost_and_time(plan: &TrainingPlan, points: &[CostPoint]) -> String {
    if points.is_empty() {
        return String::new();
    }
    let priced = points.iter().all(|point| point.usd.is_some());
    let place = |point: &CostPoint| {
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
            "Labels are numbers of GPUs, ranges are P10 to P90 of the days; the cost scales with the days. Without failures.",
        )
    } else {
        (
            "GPUs against time",
            "GPUs",
            "",
            "Ranges are P10 to P90. Without failures; the price is unknown.",
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
