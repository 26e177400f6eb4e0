//! The report as rows of text, for the terminal and for the page. Pure.

use std::collections::BTreeSet;

use super::numbers::{CapComparison, Comparison, MemoryRow, Mode, Rounds, VariantRow};
use super::report::{Report, Share};
use super::shard::Machine;
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

/// Numbers that are not of one thing: each by itself, never the middle.
pub(crate) fn either(
    numbers: impl IntoIterator<Item = f64>,
    write: fn(f64) -> String,
) -> Option<String> {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let mut texts: Vec<String> = numbers.into_iter().map(write).collect();
    texts.dedup();
    match &texts[..] {
        [] => None,
        [_] | [_, _] | [_, _, _] => Some(texts.join(" or ")),
        [least, .., most] => Some(format!("{least} to {most}, {} values", texts.len())),
    }
}

/// Launches a step: `1`, or `1 or 1,134`.
pub(crate) fn launches(row: &VariantRow) -> Option<String> {
    either(row.modes.iter().map(|it| it.launches), thousands)
}

/// What goes with the launches: where those differ between repeats, a number for each kind of repeat.
pub(crate) fn by_mode(
    row: &VariantRow,
    all: Option<Spread>,
    of: fn(&Mode) -> Option<Spread>,
    write: fn(f64) -> String,
) -> String {
    if row.modes.len() < 2 {
        return cell(all, row.done, write);
    }
    let each: Option<Vec<f64>> = row.modes.iter().map(|it| Some(of(it)?.median)).collect();
    each.and_then(|each| either(each, write)).unwrap_or_else(|| "unknown".to_owned())
}

fn known(text: Option<String>, done: usize) -> String {
    text.unwrap_or_else(|| if done == 0 { "failed" } else { "unknown" }.to_owned())
}

fn launching(row: &VariantRow) -> String {
    by_mode(row, row.launch_ms, |it| it.launch_ms, figures)
}

fn idle(row: &VariantRow) -> String {
    by_mode(row, row.idle, |it| it.idle, percent)
}

fn difference(points: f64) -> String {
    format!("{:+.1} points", points * 100.0)
}

fn step_changes(
    report: &Report,
    shape: &str,
    before: &VariantRow,
    after: &VariantRow,
) -> Vec<Vec<String>> {
    let unknown = || "unknown".to_owned();
    let change = |of: fn(&Rounds) -> &Vec<f64>, write: fn(f64) -> String| {
        let rounds = after.rounds.as_ref().map(of);
        Spread::of(rounds.into_iter().flatten().copied()).map_or_else(unknown, |it| it.text(write))
    };
    // Of what goes with the launches, each round by itself where they differ.
    let modal = |of: fn(&Rounds) -> &Vec<f64>, write: fn(f64) -> String| {
        if before.modes.len() < 2 && after.modes.len() < 2 {
            return change(of, write);
        }
        let rounds = after.rounds.as_ref().map(of);
        either(rounds.into_iter().flatten().copied(), write).unwrap_or_else(unknown)
    };
    let row = |what: &str, of: &dyn Fn(&VariantRow) -> String, change: String| {
        vec![shape.to_owned(), what.to_owned(), of(before), of(after), change]
    };
    let tokens = after.to_eager.map_or_else(unknown, |it| it.text(times));
    let cost_change = match report.price_per_hour_usd {
        Some(_) => change(|it| &it.usd_per_million_tokens, times),
        None => NO_PRICE.to_owned(),
    };
    vec![
        row("Tokens/s", &|it| cell(it.tokens_per_s, it.done, thousands), tokens),
        row(
            "Tokens/s, mean of all timed steps",
            &|it| cell(it.tokens_per_s_mean, it.done, thousands),
            change(|it| &it.tokens_per_s_mean, times),
        ),
        row(
            "Kernel launches a step",
            &|it| known(launches(it), it.done),
            modal(|it| &it.launches, times),
        ),
        row("ms in launching calls a step", &launching, modal(|it| &it.launch_ms, times)),
        row("GPU idle", &idle, modal(|it| &it.idle, difference)),
        row(
            "MFU, causal attention",
            &|it| cell(it.mfu_causal, it.done, percent),
            change(|it| &it.mfu_causal, times),
        ),
        row(
            "Peak reserved, GiB",
            &|it| cell(it.reserved_gib, it.done, tenth),
            change(|it| &it.reserved_gib, times),
        ),
        row("USD per million tokens", &|it| cost(it, report), cost_change),
    ]
}

/// How fast.
pub(crate) fn speed(report: &Report, found: &Comparison) -> Block {
    let row = |it: &VariantRow| {
        vec![
            name(&it.variant, it.done, it.failed),
            cell(it.tokens_per_s, it.done, thousands),
            cell(it.tokens_per_s_mean, it.done, thousands),
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
            "Mean, all steps",
            "To eager",
            "To the best",
            "MFU causal",
            "MFU full",
            "USD/M tokens",
        ],
        rows: found.variants.iter().map(row).collect(),
    }
}

/// Comparisons of graph and eager step that fell into the timed steps.
fn comparisons(row: &VariantRow) -> String {
    match (row.comparisons, row.comparison_ms) {
        (Some(none), _) if none.most == 0.0 => "none".to_owned(),
        (Some(count), Some(each)) => {
            format!("{} of {} ms", count.text(figure), figures(each.median))
        }
        (Some(count), None) => count.text(figure),
        (None, _) => known(None, row.done),
    }
}

fn figure(number: f64) -> String {
    format!("{number}")
}

/// What it takes.
pub(crate) fn burden(found: &Comparison) -> Block {
    let row = |it: &VariantRow| {
        vec![
            name(&it.variant, it.done, it.failed),
            cell(it.step_ms, it.done, figures),
            comparisons(it),
            known(launches(it), it.done),
            launching(it),
            idle(it),
            cell(it.allocated_gib, it.done, tenth),
            cell(it.reserved_gib, it.done, tenth),
            cell(it.ready_s, it.done, tenth),
            match it.loss_off_eager {
                Some(0.0) => "none".to_owned(),
                Some(off) => format!("{off:.0e}"),
                None => known(None, it.done),
            },
        ]
    };
    Block {
        title: shape(found),
        headings: vec![
            "Variant",
            "Step, ms",
            "Compared",
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

/// `28 of 60 measured, 2 failed, 30 to go`.
pub(crate) fn shards(report: &Report) -> String {
    let mut text = match report.shards_planned {
        Some(planned) => format!("{} of {planned} measured", report.shards_done),
        None => format!("{} measured, of how many is not known", report.shards_done),
    };
    if !report.failed.is_empty() {
        text.push_str(&format!(", {} failed", report.failed.len()));
    }
    if let Some(left) = report.shards_left.filter(|&left| left > 0) {
        text.push_str(&format!(", {left} to go"));
    }
    text
}

/// `191m at 1 x 512: 2 of 3`; where the variants have not as many each, `1 to 2 of 3`.
fn counted(of: &str, done: impl Iterator<Item = usize>, planned: Option<usize>) -> String {
    let done: Vec<usize> = done.collect();
    let (least, most) = (done.iter().min().unwrap_or(&0), done.iter().max().unwrap_or(&0));
    let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let planned = planned.map_or_else(String::new, |planned| format!(" of {planned}"));
    format!("{of}: {range}{planned}")
}

/// The machine, the build and the extent of the measurement, a line each.
pub(crate) fn machine(report: &Report) -> Vec<(&'static str, String)> {
    let or_unknown = |names: &[String]| {
        if names.is_empty() { "unknown".to_owned() } else { names.join(", ") }
    };
    let of_machines = |of: &dyn Fn(&Machine) -> Option<String>| -> String {
        let all: BTreeSet<String> = report.machines.iter().filter_map(of).collect();
        or_unknown(&all.into_iter().collect::<Vec<_>>())
    };
    let processor = |it: &Machine| {
        let cores = it.cores.map_or_else(String::new, |cores| format!(", {cores} cores"));
        Some(format!("{}{cores}", it.processor.as_ref()?))
    };
    let names = |of: &[Share]| or_unknown(&of.iter().map(|it| it.name.clone()).collect::<Vec<_>>());
    let mut lines = vec![
        ("GPU", or_unknown(&report.gpus)),
        ("Driver", of_machines(&|it| it.driver.clone())),
        ("torch", or_unknown(&report.torch)),
        ("Processor", of_machines(&processor)),
        ("Boot id", names(&report.hosts)),
        ("farrier", names(&report.builds)),
    ];
    if let Some([first, last]) = &report.began {
        let both = if first == last { first.clone() } else { format!("{first} to {last}") };
        lines.push(("Measured", both));
    }
    lines.push(("Shards", shards(report)));
    let repeats = |it: &Comparison| {
        counted(&shape(it), it.variants.iter().map(|row| row.done), it.repeats_planned)
    };
    let seeds = |it: &CapComparison| {
        counted(&cap(it), it.variants.iter().map(|row| row.done), it.seeds_planned)
    };
    let repeats: Vec<String> = report.steps.iter().map(repeats).collect();
    let seeds: Vec<String> = report.memory.iter().map(seeds).collect();
    for (what, all) in [("Repeats", repeats), ("Seeds", seeds)] {
        if !all.is_empty() {
            lines.push((what, all.join("; ")));
        }
    }
    lines
}

/// What a reader has to know to judge the figures.
pub(crate) fn notes(report: &Report) -> Vec<String> {
    let mut notes = vec![
        "Figures are medians over repeats, each in a process of its own and itself a median over groups of steps; in \
         brackets the range of the repeats. The variants took turns, so that a slow spell of the machine met them all. \
         A ratio is made round by round before its median is taken, so tokens/s and MFU have one ratio."
            .to_owned(),
        "The mean is over all timed steps, with the comparisons of graph and eager step that fell into them (`Compared`); \
         the median over groups leaves those out, and ratios and cost are of the median. A run's first steps are compared \
         at 1, 2, 4, 8 … replays, later ones far more seldom: what a long run gets lies between the two, and farrier's own \
         report below says at what pace and cost it went on."
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
        "Launches and the time in launching calls are of one step under the profiler, which makes the calls slower; a graph \
         counts as one launch. Where repeats differ in their launches, both are given (`1 or 1,134`), and the time and idle \
         share of each. GPU idle: the time in which a kernel or copy ran in that one step under the profiler is set against \
         the median step without it; the rest is idle. Peaks of memory are of the measured steps. `Ready after` is \
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
