//! The report as rows of text, for the terminal and for the page. Pure.

use super::numbers::{CapComparison, Comparison, MemoryRow, Mode, Rounds, VariantRow};
use super::report::Report;
use crate::stats::{Stats, significant, strip_unit, thousands};

/// Headings and rows.
pub(crate) struct Block {
    pub(crate) title: String,
    pub(crate) headings: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

fn named(headings: &[&str]) -> Vec<String> {
    headings.iter().map(|&it| it.to_owned()).collect()
}

/// What ratios, MFU and cost are of.
const LONG: &str = "Tokens/s in a long run";

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
        format!("÷ {}", significant(1.0 / ratio))
    } else {
        format!("{ratio:.2}×")
    }
}

/// A ratio and its range, all of it the same way round.
pub(crate) fn ratio(found: Stats) -> String {
    if found.median > 0.0 && found.median < 0.1 && found.min > 0.0 {
        found.format_with(|ratio| format!("÷ {}", significant(1.0 / ratio)))
    } else {
        found.format_with(|ratio| format!("{ratio:.2}×"))
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
fn cell(value: Option<Stats>, done: usize, write: fn(f64) -> String) -> String {
    match value {
        Some(stats) => stats.format_with(write),
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
        headings: named(&["Of", "What", "Before", "After", "Change"]),
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
    // The unit is said once.
    if let Some((_, before)) = texts.split_last_mut() {
        for text in before {
            *text = strip_unit(text).to_owned();
        }
    }
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
    all: Option<Stats>,
    of: fn(&Mode) -> Option<Stats>,
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
    by_mode(row, row.launch_ms, |it| it.launch_ms, significant)
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
    let rounds =
        |of: fn(&Rounds) -> &Vec<f64>| after.rounds.as_ref().map(of).into_iter().flatten().copied();
    let change = |of| Stats::from_samples(rounds(of)).map_or_else(unknown, ratio);
    // Of what goes with the launches, each round by itself where they differ.
    let differ = before.modes.len() > 1 || after.modes.len() > 1;
    let modal = |of| {
        if differ { either(rounds(of), times).unwrap_or_else(unknown) } else { change(of) }
    };
    let idle_change = if differ {
        either(rounds(|it| &it.idle), difference)
    } else {
        Stats::from_samples(rounds(|it| &it.idle)).map(|stats| stats.format_with(difference))
    };
    let row = |what: &str, of: &dyn Fn(&VariantRow) -> String, change: String| {
        vec![shape.to_owned(), what.to_owned(), of(before), of(after), change]
    };
    let tokens = after.to_eager.map_or_else(unknown, ratio);
    let cost_change = match report.price_per_hour_usd {
        Some(_) => change(|it| &it.usd_per_million_tokens),
        None => NO_PRICE.to_owned(),
    };
    vec![
        row(LONG, &|it| cell(it.tokens_per_s_long, it.done, thousands), tokens),
        row("Kernel launches a step", &|it| known(launches(it), it.done), modal(|it| &it.launches)),
        row("ms in launching calls a step", &launching, modal(|it| &it.launch_ms)),
        row("GPU idle", &idle, idle_change.unwrap_or_else(unknown)),
        row(
            "MFU, causal attention",
            &|it| cell(it.mfu_causal, it.done, percent),
            change(|it| &it.mfu_causal),
        ),
        row(
            "Peak reserved, GiB",
            &|it| cell(it.reserved_gib, it.done, tenth),
            change(|it| &it.reserved_gib),
        ),
        row("USD per million tokens", &|it| cost(it, report), cost_change),
    ]
}

/// How fast.
pub(crate) fn speed(report: &Report, found: &Comparison) -> Block {
    let row = |it: &VariantRow| {
        vec![
            name(&it.variant, it.done, it.failed),
            cell(it.tokens_per_s_long, it.done, thousands),
            known(it.to_eager.map(ratio), it.done),
            known(it.to_best.map(ratio), it.done),
            cell(it.mfu_causal, it.done, percent),
            cell(it.mfu_full, it.done, percent),
            cost(it, report),
            match it.loss_off_eager {
                Some(0.0) => "none".to_owned(),
                Some(off) => format!("{off:.0e}"),
                None => known(None, it.done),
            },
        ]
    };
    Block {
        title: shape(found),
        headings: named(&[
            "Variant",
            LONG,
            "To eager",
            "To the best",
            "MFU causal",
            "MFU full",
            "USD/M tokens",
            "Loss off eager",
        ]),
        rows: found.variants.iter().map(row).collect(),
    }
}

/// Comparisons of graph and eager step that fell into the timed steps.
fn comparisons(row: &VariantRow) -> String {
    match (row.comparisons, row.comparison_ms) {
        (Some(none), _) if none.max == 0.0 => "none".to_owned(),
        (Some(count), each) => {
            let count = if count.min < count.max {
                format!("{} to {}", count.min, count.max)
            } else {
                count.max.to_string()
            };
            let each =
                each.map_or_else(String::new, |it| format!(" of {} ms", significant(it.median)));
            let later =
                row.comparisons_share.map(|it| format!(" (later {})", percent_fine(it.max)));
            format!("{count}{each}{}", later.unwrap_or_default())
        }
        (None, _) => known(None, row.done),
    }
}

/// A share that is small.
fn percent_fine(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Repeats of ours that ran eagerly, and why.
pub(crate) fn eager_repeats(found: &Comparison) -> Vec<String> {
    let of = |row: &VariantRow| {
        let variant = row.variant.clone();
        row.told.clone().into_iter().filter_map(move |it| {
            Some(format!("{variant}, repeat {}, ran eagerly: {}", it.repeat, it.eager_because?))
        })
    };
    found.variants.iter().flat_map(of).collect()
}

/// What it takes.
pub(crate) fn burden(found: &Comparison) -> Block {
    let row = |it: &VariantRow| {
        vec![
            name(&it.variant, it.done, it.failed),
            cell(it.step_ms, it.done, significant),
            comparisons(it),
            cell(it.tokens_per_s_mean, it.done, thousands),
            known(launches(it), it.done),
            launching(it),
            idle(it),
            cell(it.allocated_gib, it.done, tenth),
            cell(it.reserved_gib, it.done, tenth),
            cell(it.ready_s, it.done, tenth),
        ]
    };
    let timed = found.timed_steps.map_or_else(|| "timed".to_owned(), |it| it.to_string());
    let mean = format!("Tokens/s, all {timed} steps");
    Block {
        title: shape(found),
        headings: named(&[
            "Variant",
            "Step, ms",
            "Compared",
            &mean,
            "Launches",
            "Launching, ms",
            "GPU idle",
            "Allocated, GiB",
            "Reserved, GiB",
            "Ready after, s",
        ]),
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
            cell(Stats::from_samples(it.oom_rate_by_seed.iter().copied()), it.done, percent),
            cell(it.tokens_per_s, it.done, thousands),
            cell(it.peak_gib, it.done, tenth),
            cell(it.reserved_gib, it.done, tenth),
        ]
    };
    Block {
        title: cap(found),
        headings: named(&[
            "Allocator",
            "OOM rate, all seeds",
            "By seed",
            "Tokens/s",
            "Allocated, GiB",
            "Reserved, GiB",
        ]),
        rows: found.variants.iter().map(row).collect(),
    }
}
