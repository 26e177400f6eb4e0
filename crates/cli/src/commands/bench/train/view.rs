//! The report as text tables, for the terminal and the page. Pure.

use super::aggregate::{
    CapComparison, LaunchMode, MemoryRow, RoundRatios, VariantComparison, VariantRow,
};
use super::report::BenchReport;
use crate::stats::{Stats, significant, strip_unit, thousands};

pub(crate) struct TextTable {
    pub(crate) title: String,
    pub(crate) headings: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

fn owned(headings: &[&str]) -> Vec<String> {
    headings.iter().map(|&heading| heading.to_owned()).collect()
}

/// The figure on which ratios, MFU and cost are based.
const LONG: &str = "Tokens/s in a long run";

/// Text in place of a cost without a price.
const NO_PRICE: &str = "no price given";

/// `191m at 1 x 512`.
pub(crate) fn shape(comparison: &VariantComparison) -> String {
    format!("{} at {} x {}", comparison.model, comparison.rows, comparison.length)
}

/// `1.4b under 30 GiB`.
pub(crate) fn cap(comparison: &CapComparison) -> String {
    format!("{} under {} GiB", comparison.model, comparison.cap_gib)
}

pub(crate) fn times(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.1 {
        // A small ratio is easier to read as its inverse.
        format!("÷ {}", significant(1.0 / ratio))
    } else {
        format!("{ratio:.2}×")
    }
}

/// A ratio and its range. If the ratio is inverted, the two ends of its range are inverted too.
pub(crate) fn ratio(stats: Stats) -> String {
    if stats.median > 0.0 && stats.median < 0.1 && stats.min > 0.0 {
        stats.format_with(|ratio| format!("÷ {}", significant(1.0 / ratio)))
    } else {
        stats.format_with(|ratio| format!("{ratio:.2}×"))
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

fn one_decimal(number: f64) -> String {
    format!("{number:.1}")
}

/// Text of a cell. It is never empty: `failed` means that no repeat has a result, and `unknown`
/// means that a repeat lacks the figure.
fn cell(value: Option<Stats>, done: usize, format: fn(f64) -> String) -> String {
    match value {
        Some(stats) => stats.format_with(format),
        None if done == 0 => "failed".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// The variant, and how many of its repeats failed.
fn name(variant: &str, done: usize, failed: usize) -> String {
    if failed == 0 {
        variant.to_owned()
    } else {
        format!("{variant} ({failed} of {} failed)", done + failed)
    }
}

fn cost(row: &VariantRow, report: &BenchReport) -> String {
    match report.price_per_hour_usd {
        None => NO_PRICE.to_owned(),
        Some(_) => cell(row.usd_per_million_tokens, row.done, usd),
    }
}

/// The headline table: one row per figure, before and after.
pub(crate) fn changes(report: &BenchReport) -> TextTable {
    let mut rows = Vec::new();
    for comparison in &report.steps {
        let variant = |name: &str| comparison.variants.iter().find(|row| row.variant == name);
        let (Some(before), Some(after)) = (variant("eager"), variant("ours")) else { continue };
        rows.extend(step_changes(report, &shape(comparison), before, after));
    }
    for comparison in &report.memory {
        let variant = |name: &str| comparison.variants.iter().find(|row| row.variant == name);
        let (Some(before), Some(after)) = (variant("default"), variant("ours")) else { continue };
        rows.push(vec![
            cap(comparison),
            "OOM rate".to_owned(),
            oom_rate(before),
            oom_rate(after),
            points(before.oom_rate, after.oom_rate),
        ]);
    }
    TextTable {
        title: "Before (eager, default allocator) and after (ours)".to_owned(),
        headings: owned(&["Workload", "Figure", "Before", "After", "Change"]),
        rows,
    }
}

/// The change of a share, in percentage points.
fn points(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => format!("{:+.1} points", (after - before) * 100.0),
        _ => "unknown".to_owned(),
    }
}

/// Values that must not be averaged. Each value is listed, or their range if there are many.
pub(crate) fn either(
    numbers: impl IntoIterator<Item = f64>,
    format: fn(f64) -> String,
) -> Option<String> {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let mut texts: Vec<String> = numbers.into_iter().map(format).collect();
    texts.dedup();
    // The unit is printed once.
    if let Some((_, before)) = texts.split_last_mut() {
        for text in before {
            *text = strip_unit(text).to_owned();
        }
    }
    match &texts[..] {
        [] => None,
        [_] | [_, _] | [_, _, _] => Some(texts.join(" or ")),
        [min, .., max] => Some(format!("{min} to {max}, {} values", texts.len())),
    }
}

/// Launches per step: `1`, or `1 or 1,134`.
pub(crate) fn launches(row: &VariantRow) -> Option<String> {
    either(row.modes.iter().map(|mode| mode.launches), thousands)
}

/// A figure that depends on the launches. If the repeats differ in their launches, there is one
/// value per number of launches.
pub(crate) fn by_mode(
    row: &VariantRow,
    all: Option<Stats>,
    field: fn(&LaunchMode) -> Option<Stats>,
    format: fn(f64) -> String,
) -> String {
    if row.modes.len() < 2 {
        return cell(all, row.done, format);
    }
    let each: Option<Vec<f64>> = row.modes.iter().map(|mode| Some(field(mode)?.median)).collect();
    each.and_then(|each| either(each, format)).unwrap_or_else(|| "unknown".to_owned())
}

fn or_unknown(text: Option<String>, done: usize) -> String {
    text.unwrap_or_else(|| if done == 0 { "failed" } else { "unknown" }.to_owned())
}

fn launch_time(row: &VariantRow) -> String {
    by_mode(row, row.launch_ms, |mode| mode.launch_ms, significant)
}

fn idle(row: &VariantRow) -> String {
    by_mode(row, row.idle, |mode| mode.idle, percent)
}

fn difference(points: f64) -> String {
    format!("{:+.1} points", points * 100.0)
}

fn step_changes(
    report: &BenchReport,
    shape: &str,
    before: &VariantRow,
    after: &VariantRow,
) -> Vec<Vec<String>> {
    let unknown = || "unknown".to_owned();
    let rounds = |field: fn(&RoundRatios) -> &Vec<f64>| {
        after.rounds.as_ref().map(field).into_iter().flatten().copied()
    };
    let change = |field| Stats::from_samples(rounds(field)).map_or_else(unknown, ratio);
    // Figures that depend on the launches are listed per round if the launches differ.
    let differ = before.modes.len() > 1 || after.modes.len() > 1;
    let change_by_mode = |field| {
        if differ { either(rounds(field), times).unwrap_or_else(unknown) } else { change(field) }
    };
    let idle_change = if differ {
        either(rounds(|ratios| &ratios.idle), difference)
    } else {
        Stats::from_samples(rounds(|ratios| &ratios.idle))
            .map(|stats| stats.format_with(difference))
    };
    let row = |figure: &str, text: &dyn Fn(&VariantRow) -> String, change: String| {
        vec![shape.to_owned(), figure.to_owned(), text(before), text(after), change]
    };
    let tokens = after.to_eager.map_or_else(unknown, ratio);
    let cost_change = match report.price_per_hour_usd {
        Some(_) => change(|ratios| &ratios.usd_per_million_tokens),
        None => NO_PRICE.to_owned(),
    };
    vec![
        row(LONG, &|row| cell(row.tokens_per_s_long, row.done, thousands), tokens),
        row(
            "Kernel launches per step",
            &|row| or_unknown(launches(row), row.done),
            change_by_mode(|ratios| &ratios.launches),
        ),
        row(
            "ms in launch calls per step",
            &launch_time,
            change_by_mode(|ratios| &ratios.launch_ms),
        ),
        row("GPU idle", &idle, idle_change.unwrap_or_else(unknown)),
        row(
            "MFU, causal attention",
            &|row| cell(row.mfu_causal, row.done, percent),
            change(|ratios| &ratios.mfu_causal),
        ),
        row(
            "Peak reserved, GiB",
            &|row| cell(row.reserved_gib, row.done, one_decimal),
            change(|ratios| &ratios.reserved_gib),
        ),
        row("USD per million tokens", &|row| cost(row, report), cost_change),
    ]
}

/// Throughput, MFU and cost.
pub(crate) fn speed(report: &BenchReport, comparison: &VariantComparison) -> TextTable {
    let row = |row: &VariantRow| {
        vec![
            name(&row.variant, row.done, row.failed),
            cell(row.tokens_per_s_long, row.done, thousands),
            or_unknown(row.to_eager.map(ratio), row.done),
            or_unknown(row.to_best.map(ratio), row.done),
            cell(row.mfu_causal, row.done, percent),
            cell(row.mfu_full, row.done, percent),
            cost(row, report),
            match row.loss_off_eager {
                Some(0.0) => "none".to_owned(),
                Some(off) => format!("{off:.0e}"),
                None => or_unknown(None, row.done),
            },
        ]
    };
    TextTable {
        title: shape(comparison),
        headings: owned(&[
            "Variant",
            LONG,
            "vs eager",
            "vs best",
            "MFU causal",
            "MFU full",
            "USD/M tokens",
            "Loss vs eager",
        ]),
        rows: comparison.variants.iter().map(row).collect(),
    }
}

/// Comparisons of graph and eager step within the timed steps.
fn comparisons(row: &VariantRow) -> String {
    match (row.comparisons, row.comparison_ms) {
        (Some(count), _) if count.max == 0.0 => "none".to_owned(),
        (Some(count), each) => {
            let count = if count.min < count.max {
                format!("{} to {}", count.min, count.max)
            } else {
                count.max.to_string()
            };
            let each =
                each.map_or_else(String::new, |ms| format!(" of {} ms", significant(ms.median)));
            let later =
                row.comparisons_share.map(|share| format!(" (later {})", percent_fine(share.max)));
            format!("{count}{each}{}", later.unwrap_or_default())
        }
        (None, _) => or_unknown(None, row.done),
    }
}

/// A small share, with two decimals.
fn percent_fine(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Repeats of `ours` that fell back to eager, and why.
pub(crate) fn eager_repeats(comparison: &VariantComparison) -> Vec<String> {
    let for_row = |row: &VariantRow| {
        let variant = row.variant.clone();
        row.self_reports.clone().into_iter().filter_map(move |report| {
            let (repeat, reason) = (report.repeat, report.eager_because?);
            Some(format!("{variant}, repeat {repeat}, fell back to eager: {reason}"))
        })
    };
    comparison.variants.iter().flat_map(for_row).collect()
}

/// Step time, launches and memory.
pub(crate) fn resources(comparison: &VariantComparison) -> TextTable {
    let row = |row: &VariantRow| {
        vec![
            name(&row.variant, row.done, row.failed),
            cell(row.step_ms, row.done, significant),
            comparisons(row),
            cell(row.tokens_per_s_mean, row.done, thousands),
            or_unknown(launches(row), row.done),
            launch_time(row),
            idle(row),
            cell(row.allocated_gib, row.done, one_decimal),
            cell(row.reserved_gib, row.done, one_decimal),
            cell(row.ready_s, row.done, one_decimal),
        ]
    };
    let timed =
        comparison.timed_steps.map_or_else(|| "timed".to_owned(), |steps| steps.to_string());
    let mean = format!("Tokens/s, all {timed} steps");
    TextTable {
        title: shape(comparison),
        headings: owned(&[
            "Variant",
            "Step, ms",
            "Compared",
            &mean,
            "Launches",
            "Launch time, ms",
            "GPU idle",
            "Allocated, GiB",
            "Reserved, GiB",
            "Ready after, s",
        ]),
        rows: comparison.variants.iter().map(row).collect(),
    }
}

fn oom_rate(row: &MemoryRow) -> String {
    row.oom_rate.map_or_else(
        || "failed".to_owned(),
        |rate| format!("{} ({} of {} steps)", percent(rate), row.steps_lost, row.steps),
    )
}

/// Steps lost under a memory cap.
pub(crate) fn memory(comparison: &CapComparison) -> TextTable {
    let row = |row: &MemoryRow| {
        let by_seed = Stats::from_samples(row.oom_rate_by_seed.iter().copied());
        vec![
            name(&row.variant, row.done, row.failed),
            oom_rate(row),
            cell(by_seed, row.done, percent),
            cell(row.tokens_per_s, row.done, thousands),
            cell(row.peak_gib, row.done, one_decimal),
            cell(row.reserved_gib, row.done, one_decimal),
        ]
    };
    TextTable {
        title: cap(comparison),
        headings: owned(&[
            "Allocator",
            "OOM rate, all seeds",
            "By seed",
            "Tokens/s",
            "Allocated, GiB",
            "Reserved, GiB",
        ]),
        rows: comparison.variants.iter().map(row).collect(),
    }
}
