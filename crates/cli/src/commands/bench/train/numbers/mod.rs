//! Shards put together: medians, ranges, ratios, MFU, cost. Pure.
//!
//! A number of a variant is a median over its repeats, and each repeat's is the median of its groups of steps. A ratio
//! is made repeat by repeat, of shards that ran in the same round, before the median is taken: what slowed the whole
//! machine down for a while is in both and falls out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::shard::{Measured, MemoryResult, Shard, Spec, StepsResult};
use crate::commands::bench::spread::Spread;

const GIB: f64 = 1_073_741_824.0;

/// What is known beside the shards.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    /// Peak of the GPU in bfloat16, dense.
    pub(crate) peak_flops: Option<f64>,
    /// Of the GPU, in US dollars.
    pub(crate) price_per_hour: Option<f64>,
}

/// The variants of one model at one shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) model: String,
    pub(crate) rows: u32,
    pub(crate) length: u32,
    /// The variant with the most tokens a second.
    pub(crate) best: Option<String>,
    pub(crate) variants: Vec<VariantRow>,
}

/// One way to run the step. What is not known is absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VariantRow {
    pub(crate) variant: String,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) tokens_per_s: Option<Spread>,
    /// Each repeat's, in order.
    pub(crate) tokens_per_s_by_repeat: Vec<f64>,
    pub(crate) step_ms: Option<Spread>,
    pub(crate) to_eager: Option<Spread>,
    pub(crate) to_best: Option<Spread>,
    pub(crate) mfu_causal: Option<Spread>,
    pub(crate) mfu_full: Option<Spread>,
    pub(crate) launches: Option<Spread>,
    pub(crate) launch_ms: Option<Spread>,
    /// The share of a step in which nothing ran on the GPU.
    pub(crate) idle: Option<Spread>,
    pub(crate) allocated_gib: Option<Spread>,
    pub(crate) reserved_gib: Option<Spread>,
    pub(crate) ready_s: Option<Spread>,
    pub(crate) usd_per_million_tokens: Option<Spread>,
    /// How far the loss after the warm-up is from eager's of the same repeat, at most; a share of it.
    pub(crate) loss_off_eager: Option<f64>,
    /// What the variant says of itself, of the last repeat.
    pub(crate) report: Option<String>,
}

/// The allocators under one cap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CapComparison {
    pub(crate) model: String,
    pub(crate) cap_gib: f64,
    pub(crate) variants: Vec<MemoryRow>,
}

/// One allocator under a cap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct MemoryRow {
    pub(crate) variant: String,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    /// Of all seeds.
    pub(crate) steps: u32,
    pub(crate) steps_lost: u32,
    /// Lost steps of all; absent where none was tried.
    pub(crate) oom_rate: Option<f64>,
    /// Each seed's.
    pub(crate) oom_rate_by_seed: Vec<f64>,
    pub(crate) tokens_per_s: Option<Spread>,
    pub(crate) peak_gib: Option<Spread>,
    pub(crate) reserved_gib: Option<Spread>,
    pub(crate) report: Option<String>,
}

/// A shard's result under its repeat or seed.
type Repeats<'a, T> = BTreeMap<u32, Option<&'a T>>;

/// Every model and shape, smallest first.
pub(crate) fn comparisons(shards: &[Shard], rates: Rates) -> Vec<Comparison> {
    let mut groups: BTreeMap<(Rank, u32, u32), BTreeMap<Rank, Repeats<'_, StepsResult>>> =
        BTreeMap::new();
    for shard in shards {
        let Some(Spec::Steps(spec)) = &shard.spec else { continue };
        let result = match &shard.result {
            Ok(Measured::Steps(result)) => Some(result),
            _ => None,
        };
        let variants = groups.entry((model_rank(&spec.model), spec.rows, spec.length)).or_default();
        variants.entry(variant_rank(&spec.variant)).or_default().insert(spec.repeat, result);
    }
    groups
        .into_iter()
        .map(|((model, rows, length), variants)| {
            comparison(model.1, rows, length, &variants, rates)
        })
        .collect()
}

fn comparison(
    model: String,
    rows: u32,
    length: u32,
    variants: &BTreeMap<Rank, Repeats<'_, StepsResult>>,
    rates: Rates,
) -> Comparison {
    let speeds: BTreeMap<&Rank, BTreeMap<u32, f64>> =
        variants.iter().map(|(variant, repeats)| (variant, speeds(repeats))).collect();
    let middle = |speeds: &BTreeMap<u32, f64>| Spread::of(speeds.values().copied());
    let best = speeds
        .iter()
        .filter_map(|(variant, speeds)| Some((middle(speeds)?.median, *variant)))
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, variant)| variant);
    let eager = variants.iter().find(|(variant, _)| variant.1 == "eager");
    let mut rows_of = Vec::new();
    for (variant, repeats) in variants {
        let mut row = row(&variant.1, repeats, rates);
        row.to_eager = eager.and_then(|(eager, _)| ratio(&speeds[variant], &speeds[eager]));
        row.to_best = best.and_then(|best| ratio(&speeds[variant], &speeds[best]));
        row.loss_off_eager = eager.and_then(|(_, eager)| loss_off(repeats, eager));
        rows_of.push(row);
    }
    Comparison { model, rows, length, best: best.map(|it| it.1.clone()), variants: rows_of }
}

/// Tokens a second of each repeat that was measured.
fn speeds(repeats: &Repeats<'_, StepsResult>) -> BTreeMap<u32, f64> {
    let speed = |result: &StepsResult| Some(result.tokens / step_s(result)?);
    repeats.iter().filter_map(|(&repeat, result)| Some((repeat, result.and_then(speed)?))).collect()
}

fn step_s(result: &StepsResult) -> Option<f64> {
    Some(Spread::of(result.step_s.iter().copied())?.median)
}

/// Repeat by repeat, of those that both have.
fn ratio(speeds: &BTreeMap<u32, f64>, to: &BTreeMap<u32, f64>) -> Option<Spread> {
    Spread::of(speeds.iter().filter_map(|(repeat, speed)| Some(speed / to.get(repeat)?)))
}

fn loss_off(repeats: &Repeats<'_, StepsResult>, eager: &Repeats<'_, StepsResult>) -> Option<f64> {
    let off = repeats.iter().filter_map(|(repeat, result)| {
        let (result, eager) = ((*result)?, (*eager.get(repeat)?)?);
        Some(((result.loss - eager.loss) / eager.loss).abs())
    });
    Some(Spread::of(off)?.most)
}

fn row(variant: &str, repeats: &Repeats<'_, StepsResult>, rates: Rates) -> VariantRow {
    let done: Vec<&StepsResult> = repeats.values().copied().flatten().collect();
    // A number is there only if every repeat has it: a median over some of them would be of something else.
    let spread = |number: &dyn Fn(&StepsResult) -> Option<f64>| {
        Spread::of(done.iter().map(|result| number(result)).collect::<Option<Vec<f64>>>()?)
    };
    let speed = |result: &StepsResult| Some(result.tokens / step_s(result)?);
    let mfu = |flops: &dyn Fn(&StepsResult) -> f64| {
        let peak_flops = rates.peak_flops?;
        spread(&|it| Some(speed(it)? * flops(it) / peak_flops))
    };
    let tokens_per_s = spread(&speed);
    VariantRow {
        variant: variant.to_owned(),
        done: done.len(),
        failed: repeats.len() - done.len(),
        tokens_per_s,
        tokens_per_s_by_repeat: done.iter().filter_map(|it| speed(it)).collect(),
        step_ms: spread(&|it| Some(step_s(it)? * 1e3)),
        to_eager: None,
        to_best: None,
        mfu_causal: mfu(&|it| it.flops_causal),
        mfu_full: mfu(&|it| it.flops_full),
        launches: spread(&|it| it.launches),
        launch_ms: spread(&|it| Some(it.launch_s? * 1e3)),
        // Under the profiler a step can be busy for a little longer than it lasts without.
        idle: spread(&|it| Some((1.0 - it.busy_s? / step_s(it)?).max(0.0))),
        allocated_gib: spread(&|it| Some(it.allocated_bytes / GIB)),
        reserved_gib: spread(&|it| Some(it.reserved_bytes / GIB)),
        ready_s: spread(&|it| Some(it.ready_s)),
        usd_per_million_tokens: rates
            .price_per_hour
            .and_then(|price| Some(tokens_per_s?.under(price / 3600.0 * 1e6))),
        loss_off_eager: None,
        report: done.last().and_then(|it| it.report.clone()),
    }
}

/// Every cap, largest first.
pub(crate) fn caps(shards: &[Shard]) -> Vec<CapComparison> {
    // Thousandths, reversed: a number with a fraction is no key.
    type Cap = std::cmp::Reverse<u64>;
    type Variants<'a> = BTreeMap<Rank, Repeats<'a, MemoryResult>>;
    let mut groups: BTreeMap<(Rank, Cap), (f64, Variants<'_>)> = BTreeMap::new();
    for shard in shards {
        let Some(Spec::Memory(spec)) = &shard.spec else { continue };
        let result = match &shard.result {
            Ok(Measured::Memory(result)) => Some(result),
            _ => None,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cap is a positive number of GiB"
        )]
        let cap = std::cmp::Reverse((spec.cap_gib * 1e3).round() as u64);
        let (_, variants) = groups
            .entry((model_rank(&spec.model), cap))
            .or_insert_with(|| (spec.cap_gib, BTreeMap::new()));
        variants.entry(variant_rank(&spec.variant)).or_default().insert(spec.seed, result);
    }
    groups
        .into_iter()
        .map(|((model, _), (cap_gib, variants))| CapComparison {
            model: model.1,
            cap_gib,
            variants: variants
                .iter()
                .map(|(variant, seeds)| memory_row(&variant.1, seeds))
                .collect(),
        })
        .collect()
}

fn memory_row(variant: &str, seeds: &Repeats<'_, MemoryResult>) -> MemoryRow {
    let done: Vec<&MemoryResult> = seeds.values().copied().flatten().collect();
    let lost = |it: &MemoryResult| u32::try_from(it.lost.len()).unwrap_or(u32::MAX);
    let (steps_lost, steps) =
        done.iter().fold((0, 0), |sum, it| (sum.0 + lost(it), sum.1 + it.steps_asked));
    let rate = |lost: u32, of: u32| (of > 0).then(|| f64::from(lost) / f64::from(of));
    let spread =
        |number: &dyn Fn(&MemoryResult) -> f64| Spread::of(done.iter().map(|it| number(it)));
    MemoryRow {
        variant: variant.to_owned(),
        done: done.len(),
        failed: seeds.len() - done.len(),
        steps,
        steps_lost,
        oom_rate: rate(steps_lost, steps),
        oom_rate_by_seed: done.iter().filter_map(|it| rate(lost(it), it.steps_asked)).collect(),
        tokens_per_s: spread(&|it| it.tokens_per_s),
        peak_gib: spread(&|it| it.peak_gib),
        reserved_gib: spread(&|it| it.reserved_gib),
        report: done.last().and_then(|it| it.report.clone()),
    }
}

/// A name with its place among those that are known; others come after them, by name.
type Rank = (usize, String);

fn rank(name: &str, known: &[&str]) -> Rank {
    (known.iter().position(|it| *it == name).unwrap_or(known.len()), name.to_owned())
}

fn model_rank(name: &str) -> Rank {
    rank(name, &["tiny", "191m", "1.4b", "7b-lora"])
}

fn variant_rank(name: &str) -> Rank {
    let steps = ["eager", "compile", "reduce-overhead"];
    let memory = ["default", "expandable", "cudaMallocAsync"];
    rank(name, &[&steps[..], &memory[..], &["ours"]].concat())
}

#[cfg(test)]
mod tests;
