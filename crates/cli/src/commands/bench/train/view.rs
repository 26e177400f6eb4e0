//! The report as rows of text, for the terminal and for the page. Pure.

use super::numbers::{CapComparison, Comparison, MemoryRow, VariantRow};
use super::report::Report;
use crate::commands::bench::spread::{Spread, figures, thousands};

/// Headings and rows.
pub(crate) struct Block {
    pub(crate) title: String,
    pub(crate) headings: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// What stands where a cost would.
const NO_PRICE: &str = "no price stated";

/// `191m at 1 x 512`.
pub(crate) fn shape(found: &Comparison) -> String {
    format!("{} at {} x {}", found.model, found.rows, found.length)
}

/// `1.4b under 30 GiB`.
pub(crate) fn cap(found: &CapComparison) -> String {
    format!("{} under {} GiB", found.model, found.cap_gib)
}

pub(crate) fn times(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.1 {
        // A small quotient is read better the other way round.
        format!("÷ {}", figures(1.0 / ratio))
    } else {
        format!("{ratio:.2}×")
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn usd(price: f64) -> String {
    if price >= 1.0 {
        format!("{price:.2}")
    } else if price >= 0.01 {
        format!("{price:.4}")
    } else {
        format!("{price:.5}")
    }
}

fn tenth(number: f64) -> String {
    format!("{number:.1}")
}

/// A number that is not there is never empty: either nothing of it was measured, or nobody knows.
fn cell(value: Option<Spread>, done: usize, write: fn(f64) -> String) -> String {
    match value {
        Some(spread) => spread.text(write),
        None if done == 0 => "failed".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// The variant, and what is missing of it.
fn name(variant: &str, done: usize, failed: usize) -> String {
    if failed == 0 {
        variant.to_owned()
    } else {
        format!("{variant} ({failed} of {} failed)", done + failed)
    }
}

fn cost(row: &VariantRow, report: &Report) -> String {
    match report.price_per_hour_usd {
        None => NO_PRICE.to_owned(),
        Some(_) => cell(row.usd_per_million_tokens, row.done, usd),
    }
}

/// The table that such posts print: one row a promise, before and after.
pub(crate) fn changes(report: &Report) -> Block {
    let mut rows = Vec::new();
    for found in &report.steps {
        let of = |name: &str| found.variants.iter().find(|row| row.variant == name);
        let (Some(before), Some(after)) = (of("eager"), of("ours")) else { continue };
        rows.extend(step_changes(report, &shape(found), before, after));
    }
    for found in &report.memory {
        let of = |name: &str| found.variants.iter().find(|row| row.variant == name);
        let (Some(before), Some(after)) = (of("default"), of("ours")) else { continue };
        rows.push(vec![
            cap(found),
            "OOM rate".to_owned(),
            oom_rate(before),
            oom_rate(after),
            points(before.oom_rate, after.oom_rate),
        ]);
    }
    Block {
        title: "Before (eager, the default allocator) and after (ours)".to_owned(),
        headings: vec!["Of", "What", "Before", "After", "Change"],
        rows,
    }
}

/// How a share changed.
fn points(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => format!("{:+.1} points", (after - before) * 100.0),
        _ => "unknown".to_owned(),
    }
}

fn step_changes(
    report: &Report,
    shape: &str,
    before: &VariantRow,
    after: &VariantRow,
) -> Vec<Vec<String>> {
    let quotient = |of: fn(&VariantRow) -> Option<Spread>| match (of(before), of(after)) {
        (Some(before), Some(after)) if before.median > 0.0 => times(after.median / before.median),
        _ => "unknown".to_owned(),
    };
    let row = |what: &str, write: fn(f64) -> String, of: fn(&VariantRow) -> Option<Spread>| {
        let both = [before, after].map(|it| cell(of(it), it.done, write));
        let [before, after] = both;
        vec![shape.to_owned(), what.to_owned(), before, after, quotient(of)]
    };
    let mut rows = vec![
        row("Tokens/s", thousands, |it| it.tokens_per_s),
        row("Kernel launches a step", thousands, |it| it.launches),
        row("ms in launching calls a step", figures, |it| it.launch_ms),
        row("GPU idle", percent, |it| it.idle),
        row("MFU, causal attention", percent, |it| it.mfu_causal),
        row("Peak reserved, GiB", tenth, |it| it.reserved_gib),
    ];
    // What was compared round by round is the better figure.
    if let Some(ratio) = after.to_eager {
        rows[0][4] = ratio.text(times);
    }
    rows[3][4] = points(before.idle.map(|it| it.median), after.idle.map(|it| it.median));
    rows.push(vec![
        shape.to_owned(),
        "USD per million tokens".to_owned(),
        cost(before, report),
        cost(after, report),
        match report.price_per_hour_usd {
            Some(_) => quotient(|it| it.usd_per_million_tokens),
            None => NO_PRICE.to_owned(),
        },
    ]);
    rows
}

/// How fast.
pub(crate) fn speed(report: &Report, found: &Comparison) -> Block {
    let row = |it: &VariantRow| {
        vec![
            name(&it.variant, it.done, it.failed),
            cell(it.tokens_per_s, it.done, thousands),
            cell(it.to_eager, it.done, times),
            cell(it.to_best, it.done, times),
            cell(it.mfu_causal, it.done, percent),
            cell(it.mfu_full, it.done, percent),
            cost(it, report),
        ]
    };
    Block {
        title: shape(found),
        headings: vec![
            "Variant",
            "Tokens/s",
            "To eager",
            "To the best",
            "MFU causal",
            "MFU full",
            "USD/M tokens",
        ],
        rows: found.variants.iter().map(row).collect(),
    }
}

/// What it takes.
pub(crate) fn burden(found: &Comparison) -> Block {
    let row = |it: &VariantRow| {
        vec![
            name(&it.variant, it.done, it.failed),
            cell(it.step_ms, it.done, figures),
            cell(it.launches, it.done, thousands),
            cell(it.launch_ms, it.done, figures),
            cell(it.idle, it.done, percent),
            cell(it.allocated_gib, it.done, tenth),
            cell(it.reserved_gib, it.done, tenth),
            cell(it.ready_s, it.done, tenth),
            match it.loss_off_eager {
                Some(0.0) => "none".to_owned(),
                Some(off) => format!("{off:.0e}"),
                None if it.done == 0 => "failed".to_owned(),
                None => "unknown".to_owned(),
            },
        ]
    };
    Block {
        title: shape(found),
        headings: vec![
            "Variant",
            "Step, ms",
            "Launches",
            "Launching, ms",
            "GPU idle",
            "Allocated, GiB",
            "Reserved, GiB",
            "Ready after, s",
            "Loss off eager",
        ],
        rows: found.variants.iter().map(row).collect(),
    }
}

fn oom_rate(row: &MemoryRow) -> String {
    row.oom_rate.map_or_else(
        || "failed".to_owned(),
        |rate| format!("{} ({} of {} steps)", percent(rate), row.steps_lost, row.steps),
    )
}

/// What is lost under a cap.
pub(crate) fn memory(found: &CapComparison) -> Block {
    let row = |it: &MemoryRow| {
        vec![
            name(&it.variant, it.done, it.failed),
            oom_rate(it),
            cell(Spread::of(it.oom_rate_by_seed.iter().copied()), it.done, percent),
            cell(it.tokens_per_s, it.done, thousands),
            cell(it.peak_gib, it.done, tenth),
            cell(it.reserved_gib, it.done, tenth),
        ]
    };
    Block {
        title: cap(found),
        headings: vec![
            "Allocator",
            "OOM rate, all seeds",
            "By seed",
            "Tokens/s",
            "Allocated, GiB",
            "Reserved, GiB",
        ],
        rows: found.variants.iter().map(row).collect(),
    }
}

/// The machine, a line each.
pub(crate) fn machine(report: &Report) -> Vec<(&'static str, String)> {
    let or_unknown = |names: &[String]| {
        if names.is_empty() { "unknown".to_owned() } else { names.join(", ") }
    };
    let drivers: Vec<String> = report.machines.iter().filter_map(|it| it.driver.clone()).collect();
    let processors: Vec<String> = report
        .machines
        .iter()
        .filter_map(|it| {
            let cores = it.cores.map_or_else(String::new, |cores| format!(", {cores} cores"));
            Some(format!("{}{cores}", it.processor.as_ref()?))
        })
        .collect();
    let mut lines = vec![
        ("GPU", or_unknown(&report.gpus)),
        ("Driver", or_unknown(&drivers)),
        ("torch", or_unknown(&report.torch)),
        ("Processor", or_unknown(&processors)),
    ];
    if let Some([first, last]) = &report.began {
        let both = if first == last { first.clone() } else { format!("{first} to {last}") };
        lines.push(("Measured", both));
    }
    lines
}

/// What a reader has to know to judge the figures.
pub(crate) fn notes(report: &Report) -> Vec<String> {
    let mut notes = vec![
        "Figures are medians over repeats, each in a process of its own and itself a median over groups of steps; in \
         brackets the range of the repeats. The variants took turns, so that a slow spell of the machine met them all. \
         A ratio is made round by round before its median is taken."
            .to_owned(),
    ];
    notes.push(match &report.peak {
        Some(peak) => format!(
            "MFU is a share of {} TFLOP/s, the dense bfloat16 peak of {}{}; `causal` counts the half of attention that a \
             causal mask leaves, `full` all of it (the convention of PaLM's authors). Operations are those of the model; \
             what is computed again does not count. Source of the peak: {}.",
            peak.tflops,
            peak.gpu,
            if peak.unverified { " (unverified)" } else { "" },
            peak.sources.join("; ")
        ),
        None if report.gpus.len() == 1 => {
            "MFU is unknown: the facts have no dense bfloat16 peak for this GPU.".to_owned()
        }
        None => "MFU is unknown: there is no one GPU of whose peak it would be a share.".to_owned(),
    });
    notes.push(match report.price_per_hour_usd {
        Some(price) => {
            format!("Cost is at {price} USD for a GPU hour, as stated with --price-per-hour.")
        }
        None => {
            "No price was stated: --price-per-hour gives the cost of a million tokens.".to_owned()
        }
    });
    notes.push(
        "Launches and the time in launching calls are of one step under the profiler; the GPU is idle where neither a \
         kernel nor a copy runs. A graph counts as one launch. Peaks of memory are of the measured steps. `Ready after` is \
         the time from the start of the process until its first measured step, with all compiling."
            .to_owned(),
    );
    if !report.memory.is_empty() {
        notes.push(
            "OOM rate: steps that ran out of memory and were lost, of a stream of random shapes (at most 16,384 tokens) \
             under a cap on the process's memory; the same stream for every allocator. Tokens of lost steps do not count \
             in tokens/s."
                .to_owned(),
        );
    }
    notes
}
