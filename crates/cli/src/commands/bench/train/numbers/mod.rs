//! Shards put together: medians, ranges, ratios, MFU, cost. Pure.
//!
//! A number of a variant is a median over its repeats, and each repeat's is the median of its groups of steps. A ratio
//! is made repeat by repeat, of shards that ran in the same round, before the median is taken: what slowed the whole
//! machine down for a while is in both and falls out. Launches have no median: between one and a thousand there is none.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::shard::{Measured, MemoryResult, Shard, Spec, StepsResult};
use crate::stats::Stats;

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
    /// Repeats that were planned; absent where no plan is known.
    pub(crate) repeats_planned: Option<usize>,
    /// Steps of a repeat that were timed; absent where the repeats have not as many each.
    pub(crate) timed_steps: Option<u32>,
    /// The variant with the most tokens a second in a long run.
    pub(crate) best: Option<String>,
    pub(crate) variants: Vec<VariantRow>,
}

/// One way to run the step. What is not known is absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VariantRow {
    pub(crate) variant: String,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    /// Over the median of the groups of steps.
    pub(crate) tokens_per_s: Option<Stats>,
    /// Over the median step with its share of the comparisons of a long run; the same where there are none.
    pub(crate) tokens_per_s_long: Option<Stats>,
    /// Over the mean of all timed steps, with the comparisons that fell into them.
    pub(crate) tokens_per_s_mean: Option<Stats>,
    /// Comparisons of graph and eager step in the timed steps of a repeat, and milliseconds of one.
    pub(crate) comparisons: Option<Stats>,
    pub(crate) comparison_ms: Option<Stats>,
    /// The share of the time that they take later on.
    pub(crate) comparisons_share: Option<Stats>,
    /// Each repeat's in a long run, in order.
    pub(crate) tokens_per_s_by_repeat: Vec<f64>,
    pub(crate) step_ms: Option<Stats>,
    /// Of tokens a second in a long run.
    pub(crate) to_eager: Option<Stats>,
    pub(crate) to_best: Option<Stats>,
    /// The other figures to eager's.
    pub(crate) rounds: Option<Rounds>,
    pub(crate) mfu_causal: Option<Stats>,
    pub(crate) mfu_full: Option<Stats>,
    /// By launches a step, fewest first; none where a repeat does not know them.
    pub(crate) modes: Vec<Mode>,
    pub(crate) launch_ms: Option<Stats>,
    /// The share of a step in which nothing ran on the GPU: what ran in one step under the profiler, of the median step
    /// without it.
    pub(crate) idle: Option<Stats>,
    pub(crate) allocated_gib: Option<Stats>,
    pub(crate) reserved_gib: Option<Stats>,
    pub(crate) ready_s: Option<Stats>,
    pub(crate) usd_per_million_tokens: Option<Stats>,
    /// How far the loss after the warm-up is from eager's of the same repeat, at most; a share of it.
    pub(crate) loss_off_eager: Option<f64>,
    /// What the variant says of itself: of the last repeat that was no eager one, and of each that was.
    pub(crate) told: Vec<Told>,
}

/// What farrier reported of its own steps in one repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    pub(crate) repeat: u32,
    pub(crate) report: String,
    /// Why the step ended as an eager one; absent where it did not.
    pub(crate) eager_because: Option<String>,
}

/// Repeats of one number of launches: a step that is a graph in one repeat and eager in another is two things.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Mode {
    pub(crate) launches: f64,
    pub(crate) repeats: usize,
    pub(crate) launch_ms: Option<Stats>,
    pub(crate) idle: Option<Stats>,
}

/// What a variant's figures are to eager's of the same round, a number a round. Empty where one of them is not known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Rounds {
    pub(crate) mfu_causal: Vec<f64>,
    pub(crate) usd_per_million_tokens: Vec<f64>,
    pub(crate) launches: Vec<f64>,
    pub(crate) launch_ms: Vec<f64>,
    pub(crate) reserved_gib: Vec<f64>,
    /// Differences.
    pub(crate) idle: Vec<f64>,
}

/// The allocators under one cap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CapComparison {
    pub(crate) model: String,
    pub(crate) cap_gib: f64,
    /// Seeds that were planned; absent where no plan is known.
    pub(crate) seeds_planned: Option<usize>,
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
    pub(crate) tokens_per_s: Option<Stats>,
    pub(crate) peak_gib: Option<Stats>,
    pub(crate) reserved_gib: Option<Stats>,
    pub(crate) report: Option<String>,
}

/// A shard's result under its repeat or seed.
type Repeats<'a, T> = BTreeMap<u32, Option<&'a T>>;

/// Every model and shape, smallest first.
pub(crate) fn comparisons(shards: &[Shard], rates: Rates) -> Vec<Comparison> {
    type Variants<'a> = BTreeMap<Rank, Repeats<'a, StepsResult>>;
    let mut groups: BTreeMap<(Rank, u32, u32), (BTreeSet<u32>, Variants<'_>)> = BTreeMap::new();
    for shard in shards {
        let Some(Spec::Steps(spec)) = &shard.spec else { continue };
        let result = match &shard.result {
            Ok(Measured::Steps(result)) => Some(result),
            _ => None,
        };
        let (timed, variants) =
            groups.entry((model_rank(&spec.model), spec.rows, spec.length)).or_default();
        timed.insert(spec.groups * spec.steps);
        variants.entry(variant_rank(&spec.variant)).or_default().insert(spec.repeat, result);
    }
    groups
        .into_iter()
        .map(|((model, rows, length), (timed, variants))| {
            let timed_steps = timed.first().copied().filter(|_| timed.len() == 1);
            let found = comparison(model.1, rows, length, &variants, rates);
            Comparison { timed_steps, ..found }
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
    let middle = |speeds: &BTreeMap<u32, f64>| Stats::from_samples(speeds.values().copied());
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
        row.rounds = eager.map(|(_, eager)| rounds(repeats, eager, rates));
        row.loss_off_eager = eager.and_then(|(_, eager)| loss_off(repeats, eager));
        rows_of.push(row);
    }
    let best = best.map(|it| it.1.clone());
    let (repeats_planned, timed_steps) = (None, None);
    Comparison { model, rows, length, repeats_planned, timed_steps, best, variants: rows_of }
}

/// Tokens a second in a long run, of each repeat of which it is known.
fn speeds(repeats: &Repeats<'_, StepsResult>) -> BTreeMap<u32, f64> {
    repeats
        .iter()
        .filter_map(|(&repeat, result)| Some((repeat, result.and_then(long_speed)?)))
        .collect()
}

fn step_s(result: &StepsResult) -> Option<f64> {
    Some(Stats::from_samples(result.step_s.iter().copied())?.median)
}

/// Tokens a second over the median of the groups of steps.
fn speed(result: &StepsResult) -> Option<f64> {
    Some(result.tokens / step_s(result)?)
}

/// The share of a long run's time that comparisons take: 0 where there are none, absent where nobody knows.
fn comparisons_share(result: &StepsResult) -> Option<f64> {
    // Who reports nothing runs no step of farrier's, and compares nothing.
    let none = result.comparisons == Some(0.0) || result.report.is_none();
    let share = result.comparisons_share.or_else(|| none.then_some(0.0))?;
    (0.0..1.0).contains(&share).then_some(share)
}

/// Tokens a second in a long run: the median step, and its share of the comparisons of later on.
fn long_speed(result: &StepsResult) -> Option<f64> {
    Some(speed(result)? * (1.0 - comparisons_share(result)?))
}

/// Tokens a second over all timed steps: each group has as many.
fn mean_speed(result: &StepsResult) -> Option<f64> {
    let groups = f64::from(u32::try_from(result.step_s.len()).ok()?);
    Some(result.tokens * groups / result.step_s.iter().sum::<f64>())
}

/// Under the profiler a step can be busy for a little longer than it lasts without.
fn idle(result: &StepsResult) -> Option<f64> {
    Some((1.0 - result.busy_s? / step_s(result)?).max(0.0))
}

fn usd(result: &StepsResult, rates: Rates) -> Option<f64> {
    Some(rates.price_per_hour? / 3600.0 * 1e6 / long_speed(result)?)
}

fn mfu_causal(result: &StepsResult, rates: Rates) -> Option<f64> {
    Some(long_speed(result)? * result.flops_causal / rates.peak_flops?)
}

/// A number of one repeat, if it is known.
type Number<'a> = &'a dyn Fn(&StepsResult) -> Option<f64>;

/// The figures of a variant to eager's, round by round.
fn rounds(
    repeats: &Repeats<'_, StepsResult>,
    eager: &Repeats<'_, StepsResult>,
    rates: Rates,
) -> Rounds {
    let pairs: Vec<(&StepsResult, &StepsResult)> = repeats
        .iter()
        .filter_map(|(repeat, result)| Some(((*result)?, (*eager.get(repeat)?)?)))
        .collect();
    let each = |of: Number<'_>, compare: fn(f64, f64) -> f64| -> Vec<f64> {
        let all = pairs.iter().map(|(it, eager)| Some(compare(of(it)?, of(eager)?)));
        let all: Option<Vec<f64>> = all.collect();
        all.filter(|all| all.iter().all(|it| it.is_finite())).unwrap_or_default()
    };
    let ratios = |of: Number<'_>| each(of, |it, eager| it / eager);
    Rounds {
        mfu_causal: ratios(&|it| mfu_causal(it, rates)),
        usd_per_million_tokens: ratios(&|it| usd(it, rates)),
        launches: ratios(&|it| it.launches),
        launch_ms: ratios(&|it| it.launch_s),
        reserved_gib: ratios(&|it| Some(it.reserved_bytes)),
        idle: each(&idle, |it, eager| it - eager),
    }
}

/// The repeats by their launches; none where one does not know them.
fn modes(done: &[&StepsResult]) -> Vec<Mode> {
    let known: Option<Vec<f64>> = done.iter().map(|it| it.launches).collect();
    let mut kinds = known.unwrap_or_default();
    kinds.sort_by(f64::total_cmp);
    kinds.dedup();
    let of = |launches: f64| {
        let those: Vec<&StepsResult> =
            done.iter().copied().filter(|it| it.launches == Some(launches)).collect();
        let stats = |number: &dyn Fn(&StepsResult) -> Option<f64>| {
            Stats::from_samples(those.iter().map(|it| number(it)).collect::<Option<Vec<f64>>>()?)
        };
        let launch_ms = stats(&|it| Some(it.launch_s? * 1e3));
        Mode { launches, repeats: those.len(), launch_ms, idle: stats(&idle) }
    };
    kinds.into_iter().map(of).collect()
}

/// Repeat by repeat, of those that both have.
fn ratio(speeds: &BTreeMap<u32, f64>, to: &BTreeMap<u32, f64>) -> Option<Stats> {
    Stats::from_samples(speeds.iter().filter_map(|(repeat, speed)| Some(speed / to.get(repeat)?)))
}

fn loss_off(repeats: &Repeats<'_, StepsResult>, eager: &Repeats<'_, StepsResult>) -> Option<f64> {
    let off = repeats.iter().filter_map(|(repeat, result)| {
        let (result, eager) = ((*result)?, (*eager.get(repeat)?)?);
        Some(((result.loss - eager.loss) / eager.loss).abs())
    });
    Some(Stats::from_samples(off)?.max)
}

fn row(variant: &str, repeats: &Repeats<'_, StepsResult>, rates: Rates) -> VariantRow {
    let done: Vec<&StepsResult> = repeats.values().copied().flatten().collect();
    // A number is there only if every repeat has it: a median over some of them would be of something else.
    let stats = |number: &dyn Fn(&StepsResult) -> Option<f64>| {
        Stats::from_samples(done.iter().map(|result| number(result)).collect::<Option<Vec<f64>>>()?)
    };
    VariantRow {
        variant: variant.to_owned(),
        done: done.len(),
        failed: repeats.len() - done.len(),
        tokens_per_s: stats(&speed),
        tokens_per_s_long: stats(&long_speed),
        tokens_per_s_mean: stats(&mean_speed),
        comparisons: stats(&|it| it.comparisons),
        comparison_ms: stats(&|it| Some(it.comparisons_s? / it.comparisons? * 1e3)),
        comparisons_share: stats(&|it| it.comparisons_share),
        tokens_per_s_by_repeat: done.iter().filter_map(|it| long_speed(it)).collect(),
        step_ms: stats(&|it| Some(step_s(it)? * 1e3)),
        to_eager: None,
        to_best: None,
        rounds: None,
        mfu_causal: stats(&|it| mfu_causal(it, rates)),
        mfu_full: stats(&|it| Some(long_speed(it)? * it.flops_full / rates.peak_flops?)),
        modes: modes(&done),
        launch_ms: stats(&|it| Some(it.launch_s? * 1e3)),
        idle: stats(&idle),
        allocated_gib: stats(&|it| Some(it.allocated_bytes / GIB)),
        reserved_gib: stats(&|it| Some(it.reserved_bytes / GIB)),
        ready_s: stats(&|it| Some(it.ready_s)),
        usd_per_million_tokens: stats(&|it| usd(it, rates)),
        loss_off_eager: None,
        told: told(repeats),
    }
}

/// How a line of a step's report begins that says why it runs eagerly for good (`StepReport` in Python).
const EAGER: &str = "eager from here on: ";

/// Each repeat that ended eagerly says why; of the others one speaks for all.
fn told(repeats: &Repeats<'_, StepsResult>) -> Vec<Told> {
    let of = |(&repeat, result): (&u32, Option<&StepsResult>)| {
        let report = result?.report.clone()?;
        let because = report.lines().find_map(|line| line.strip_prefix(EAGER)).map(str::to_owned);
        Some(Told { repeat, report, eager_because: because })
    };
    let (eager, mut told): (Vec<Told>, Vec<Told>) = repeats
        .iter()
        .map(|(repeat, it)| (repeat, *it))
        .filter_map(of)
        .partition(|it| it.eager_because.is_some());
    told.drain(..told.len().saturating_sub(1));
    told.extend(eager);
    told
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
            seeds_planned: None,
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
    let stats = |number: &dyn Fn(&MemoryResult) -> f64| {
        Stats::from_samples(done.iter().map(|it| number(it)))
    };
    MemoryRow {
        variant: variant.to_owned(),
        done: done.len(),
        failed: seeds.len() - done.len(),
        steps,
        steps_lost,
        oom_rate: rate(steps_lost, steps),
        oom_rate_by_seed: done.iter().filter_map(|it| rate(lost(it), it.steps_asked)).collect(),
        tokens_per_s: stats(&|it| it.tokens_per_s),
        peak_gib: stats(&|it| it.peak_gib),
        reserved_gib: stats(&|it| it.reserved_gib),
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
