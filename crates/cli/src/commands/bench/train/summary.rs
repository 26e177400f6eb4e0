//! Describes machine, extent and method of the benchmark, for the terminal and the page. Pure.

use std::collections::BTreeSet;

use super::aggregate::{CapComparison, VariantComparison};
use super::report::{BenchReport, ShardCount};
use super::shard::Machine;
use super::view::{cap, shape};

/// `28 of 60 measured, 2 failed, 30 to go`.
fn shards(report: &BenchReport) -> String {
    let mut text = match report.shards_planned {
        Some(planned) => format!("{} of {planned} measured", report.shards_done),
        None => format!("{} measured, total unknown", report.shards_done),
    };
    if !report.failed.is_empty() {
        text.push_str(&format!(", {} failed", report.failed.len()));
    }
    if let Some(left) = report.shards_left.filter(|&left| left > 0) {
        text.push_str(&format!(", {left} to go"));
    }
    text
}

/// `191m at 1 x 512: 2 of 3`; `1 to 2 of 3` if the variants differ.
fn completed(name: &str, done: impl Iterator<Item = usize>, planned: Option<usize>) -> String {
    let done: Vec<usize> = done.collect();
    let (min, max) = (done.iter().min().unwrap_or(&0), done.iter().max().unwrap_or(&0));
    let range = if min == max { min.to_string() } else { format!("{min} to {max}") };
    let planned = planned.map_or_else(String::new, |planned| format!(" of {planned}"));
    format!("{name}: {range}{planned}")
}

/// The machine, the build and the extent of the benchmark, one entry each.
pub(crate) fn machine(report: &BenchReport) -> Vec<(&'static str, String)> {
    let or_unknown = |names: &[String]| {
        if names.is_empty() { "unknown".to_owned() } else { names.join(", ") }
    };
    let distinct = |field: &dyn Fn(&Machine) -> Option<String>| -> String {
        let all: BTreeSet<String> = report.machines.iter().filter_map(field).collect();
        or_unknown(&all.into_iter().collect::<Vec<_>>())
    };
    let processor = |machine: &Machine| {
        let cores = machine.cores.map_or_else(String::new, |cores| format!(", {cores} cores"));
        Some(format!("{}{cores}", machine.processor.as_ref()?))
    };
    let names = |counts: &[ShardCount]| {
        or_unknown(&counts.iter().map(|count| count.name.clone()).collect::<Vec<_>>())
    };
    let mut lines = vec![
        ("GPU", or_unknown(&report.gpus)),
        ("Driver", distinct(&|machine| machine.driver.clone())),
        ("torch", or_unknown(&report.torch)),
        ("Processor", distinct(&processor)),
        ("Boot id", names(&report.hosts)),
        ("farrier", names(&report.builds)),
    ];
    if let Some([first, last]) = &report.began {
        let both = if first == last { first.clone() } else { format!("{first} to {last}") };
        lines.push(("Measured", both));
    }
    lines.push(("Shards", shards(report)));
    let repeats = |comparison: &VariantComparison| {
        let done = comparison.variants.iter().map(|row| row.done);
        completed(&shape(comparison), done, comparison.repeats_planned)
    };
    let seeds = |comparison: &CapComparison| {
        let done = comparison.variants.iter().map(|row| row.done);
        completed(&cap(comparison), done, comparison.seeds_planned)
    };
    let repeats: Vec<String> = report.steps.iter().map(repeats).collect();
    let seeds: Vec<String> = report.memory.iter().map(seeds).collect();
    for (name, values) in [("Repeats", repeats), ("Seeds", seeds)] {
        if !values.is_empty() {
            lines.push((name, values.join("; ")));
        }
    }
    lines
}

/// Notes on the method.
pub(crate) fn notes(report: &BenchReport) -> Vec<String> {
    let mut notes = vec![
        "Figures are medians over repeats. Each repeat is a separate process, and its figure is the median over groups of \
         steps; the range of the repeats is in brackets. Variants are interleaved, so that a slow phase of the machine \
         affects all of them. Ratios are computed per round before the median is taken, so tokens/s and MFU have the same \
         ratio."
            .to_owned(),
        "Tokens/s in a long run are those of the median step, reduced by the share of time that comparisons of graph and \
         eager step take later in a run (`Compared`); variants without comparisons are not reduced. Ratios, MFU and cost \
         use these tokens/s. `All … steps` is the mean including the comparisons in these steps, which are far denser at \
         the start of a run (after 1, 2, 4, 8 … replays), so it says little about a long run."
            .to_owned(),
    ];
    notes.push(match &report.peak {
        Some(peak) => format!(
            "MFU is relative to {} TFLOP/s, the dense bfloat16 peak of {}{}; `causal` counts the half of attention that a \
             causal mask leaves, `full` all of it (the convention of the PaLM paper). Only model FLOPs count; recomputation \
             does not. Source of the peak: {}.",
            peak.tflops,
            peak.gpu,
            if peak.unverified { " (unverified)" } else { "" },
            peak.sources.join("; ")
        ),
        None if report.gpus.len() == 1 => {
            "MFU is unknown: the facts have no dense bfloat16 peak for this GPU.".to_owned()
        }
        None => "MFU is unknown: the shards come from different GPUs.".to_owned(),
    });
    notes.push(match report.price_per_hour_usd {
        Some(price) => {
            format!("Cost assumes {price} USD per GPU-hour (--price-per-hour).")
        }
        None => "No price given: --price-per-hour adds the cost of a million tokens.".to_owned(),
    });
    notes.push(
        "Launches and the time in launch calls are from one step under the profiler, which slows the calls down; a graph \
         counts as one launch. If repeats differ in their launches, both counts are given (`1 or 1,134`), with the time \
         and idle share of each. GPU idle is the share of a step in which no kernel or copy runs: the busy time is from \
         that one step under the profiler, the step time from the median step without it. Memory peaks are from the \
         measured steps. `Ready after` is the time from process start to the first measured step; results compiled by an \
         earlier run of the variant are cached."
            .to_owned(),
    );
    if !report.memory.is_empty() {
        notes.push(
            "OOM rate: share of steps lost to out-of-memory errors, in a stream of random shapes (at most 16,384 tokens) \
             under a cap on the process's memory; every allocator gets the same stream. Tokens of lost steps do not count in \
             tokens/s."
                .to_owned(),
        );
    }
    notes
}
