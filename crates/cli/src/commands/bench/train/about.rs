//! What was measured, where, by what and how, in words, for the terminal and for the page. Pure.

use std::collections::BTreeSet;

use super::numbers::{CapComparison, Comparison};
use super::report::{Report, Share};
use super::shard::Machine;
use super::view::{cap, shape};

/// `28 of 60 measured, 2 failed, 30 to go`.
fn shards(report: &Report) -> String {
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
        "Tokens/s in a long run are those of the median step and of the share of the time that the comparisons of graph and \
         eager step take later on (`Compared`), which is none for variants that compare nothing; ratios, MFU and cost are of \
         them. `All … steps` is the mean with the comparisons that fell into these steps, which are far denser in a run's \
         beginning (at 1, 2, 4, 8 … replays): it says little of a long run."
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
         the time from the start of the process until its first measured step; what an \
         earlier run of the variant compiled is found ready."
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
