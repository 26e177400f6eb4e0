//! Aggregates the results of shards into medians, ranges, ratios, MFU and cost. Pure.
//!
//! A shard is one repeat of one variant. Each repeat has one figure, which is the median over its
//! groups of steps. The figure of a variant is the median over its repeats. A round consists of the
//! same repeat of all variants. A ratio is computed for each round, and the median is taken after
//! that. If the machine is slow for a while, both shards of a round are slow, and the ratio does
//! not change. Launch counts have no median: a graph step makes one launch and an eager step makes
//! about a thousand, and a number in between would describe neither.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::shard::{MemoryResult, Shard, ShardResult, Spec, StepsResult};
use crate::stats::Stats;

const GIB: f64 = 1_073_741_824.0;

/// Inputs besides the shards.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    /// Dense bfloat16 peak of the GPU.
    pub(crate) peak_flops: Option<f64>,
    /// US dollars per GPU-hour.
    pub(crate) price_per_hour: Option<f64>,
}

/// The variants of one model at one shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VariantComparison {
    pub(crate) model: String,
    pub(crate) rows: u32,
    pub(crate) length: u32,
    /// Planned repeats; `None` without a plan.
    pub(crate) repeats_planned: Option<usize>,
    /// Timed steps per repeat; `None` if the repeats differ.
    pub(crate) timed_steps: Option<u32>,
    /// The variant with the most tokens per second in a long run.
    pub(crate) best: Option<String>,
    pub(crate) variants: Vec<VariantRow>,
}

/// One variant of the step. Unknown figures are `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VariantRow {
    pub(crate) variant: String,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    /// Computed from the median over the groups of steps.
    pub(crate) tokens_per_s: Option<Stats>,
    /// Computed from the median step, and reduced by the share of time in a long run in which the
    /// graph step is compared with the eager step. These comparisons are far more frequent at the
    /// beginning of a run.
    pub(crate) tokens_per_s_long: Option<Stats>,
    /// Computed from the mean of all timed steps, including those with comparisons.
    pub(crate) tokens_per_s_mean: Option<Stats>,
    /// How often the graph step was compared with the eager step in the timed steps of a repeat.
    pub(crate) comparisons: Option<Stats>,
    /// Duration of one comparison.
    pub(crate) comparison_ms: Option<Stats>,
    /// Share of time that comparisons take in a long run.
    pub(crate) comparisons_share: Option<Stats>,
    /// Tokens per second in a long run: one value per repeat, in order.
    pub(crate) tokens_per_s_by_repeat: Vec<f64>,
    pub(crate) step_ms: Option<Stats>,
    /// Tokens per second in a long run, relative to eager.
    pub(crate) to_eager: Option<Stats>,
    /// Tokens per second in a long run, relative to the best variant.
    pub(crate) to_best: Option<Stats>,
    /// Ratios of the other figures to the figures of the eager step.
    pub(crate) rounds: Option<RoundRatios>,
    pub(crate) mfu_causal: Option<Stats>,
    pub(crate) mfu_full: Option<Stats>,
    /// Repeats, grouped by launches per step. The group with the fewest launches comes first. Empty
    /// if the launches of any repeat are unknown.
    pub(crate) modes: Vec<LaunchMode>,
    pub(crate) launch_ms: Option<Stats>,
    /// Share of a step in which the GPU runs no kernel and no copy. The busy time comes from one
    /// step under the profiler, and the step time comes from the median step without the profiler.
    pub(crate) idle: Option<Stats>,
    pub(crate) allocated_gib: Option<Stats>,
    pub(crate) reserved_gib: Option<Stats>,
    pub(crate) ready_s: Option<Stats>,
    pub(crate) usd_per_million_tokens: Option<Stats>,
    /// Largest relative difference between the losses after the warm-up of this variant and of the
    /// eager step, in the same repeat.
    pub(crate) loss_off_eager: Option<f64>,
    /// Reports of repeats: first the report of the last repeat that did not fall back to eager,
    /// then those of all repeats that did.
    #[serde(rename = "told")]
    pub(crate) self_reports: Vec<SelfReport>,
}

/// Farrier's report of its own steps in one repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SelfReport {
    pub(crate) repeat: u32,
    pub(crate) report: String,
    /// Why the step fell back to eager. `None` if the step did not fall back.
    pub(crate) eager_because: Option<String>,
}

/// Repeats with the same number of launches. Figures of a repeat that ran as a graph must not be
/// averaged with those of a repeat that ran eagerly.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LaunchMode {
    pub(crate) launches: f64,
    pub(crate) repeats: usize,
    pub(crate) launch_ms: Option<Stats>,
    pub(crate) idle: Option<Stats>,
}

/// Ratios of a variant's figures to the eager figures of the same round, with one entry per round.
/// Empty if any value is unknown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RoundRatios {
    pub(crate) mfu_causal: Vec<f64>,
    pub(crate) usd_per_million_tokens: Vec<f64>,
    pub(crate) launches: Vec<f64>,
    pub(crate) launch_ms: Vec<f64>,
    pub(crate) reserved_gib: Vec<f64>,
    /// Differences of the idle share. The other fields are ratios.
    pub(crate) idle: Vec<f64>,
}

/// The allocators under one memory cap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CapComparison {
    pub(crate) model: String,
    pub(crate) cap_gib: f64,
    /// Planned seeds; `None` without a plan.
    pub(crate) seeds_planned: Option<usize>,
    pub(crate) variants: Vec<MemoryRow>,
}

/// One allocator under a cap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct MemoryRow {
    pub(crate) variant: String,
    pub(crate) done: usize,
    pub(crate) failed: usize,
    /// Steps over all seeds.
    pub(crate) steps: u32,
    pub(crate) steps_lost: u32,
    /// Number of lost steps, divided by the number of all steps. `None` if there are no steps.
    pub(crate) oom_rate: Option<f64>,
    pub(crate) oom_rate_by_seed: Vec<f64>,
    pub(crate) tokens_per_s: Option<Stats>,
    pub(crate) peak_gib: Option<Stats>,
    pub(crate) reserved_gib: Option<Stats>,
    pub(crate) report: Option<String>,
}

/// Results by repeat or seed. `None` stands for a failed shard.
type Repeats<'a, T> = BTreeMap<u32, Option<&'a T>>;

/// Comparisons of the variants for all models and shapes, smallest first.
pub(crate) fn comparisons(shards: &[Shard], rates: Rates) -> Vec<VariantComparison> {
    type Variants<'a> = BTreeMap<Rank, Repeats<'a, StepsResult>>;
    let mut groups: BTreeMap<(Rank, u32, u32), (BTreeSet<u32>, Variants<'_>)> = BTreeMap::new();
    for shard in shards {
        let Some(Spec::Steps(spec)) = &shard.spec else { continue };
        let result = match &shard.result {
            Ok(ShardResult::Steps(result)) => Some(result),
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
            let result = comparison(model.1, rows, length, &variants, rates);
            VariantComparison { timed_steps, ..result }
        })
        .collect()
}

fn comparison(
    model: String,
    rows: u32,
    length: u32,
    variants: &BTreeMap<Rank, Repeats<'_, StepsResult>>,
    rates: Rates,
) -> VariantComparison {
    let speeds: BTreeMap<&Rank, BTreeMap<u32, f64>> =
        variants.iter().map(|(variant, repeats)| (variant, speeds(repeats))).collect();
    let stats = |speeds: &BTreeMap<u32, f64>| Stats::from_samples(speeds.values().copied());
    let best = speeds
        .iter()
        .filter_map(|(variant, speeds)| Some((stats(speeds)?.median, *variant)))
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, variant)| variant);
    let eager = variants.iter().find(|(variant, _)| variant.1 == "eager");
    let mut variant_rows = Vec::new();
    for (variant, repeats) in variants {
        let mut row = row(&variant.1, repeats, rates);
        row.to_eager = eager.and_then(|(eager, _)| ratio(&speeds[variant], &speeds[eager]));
        row.to_best = best.and_then(|best| ratio(&speeds[variant], &speeds[best]));
        row.rounds = eager.map(|(_, eager)| rounds(repeats, eager, rates));
        row.loss_off_eager = eager.and_then(|(_, eager)| loss_off(repeats, eager));
        variant_rows.push(row);
    }
    let best = best.map(|rank| rank.1.clone());
    let (repeats_planned, timed_steps) = (None, None);
    VariantComparison {
        model,
        rows,
        length,
        repeats_planned,
        timed_steps,
        best,
        variants: variant_rows,
    }
}

/// Tokens per second in a long run, for each repeat in which this figure is known.
fn speeds(repeats: &Repeats<'_, StepsResult>) -> BTreeMap<u32, f64> {
    repeats
        .iter()
        .filter_map(|(&repeat, result)| Some((repeat, result.and_then(long_speed)?)))
        .collect()
}

fn step_s(result: &StepsResult) -> Option<f64> {
    Some(Stats::from_samples(result.step_s.iter().copied())?.median)
}

/// Tokens per second from the median over the groups of steps.
fn speed(result: &StepsResult) -> Option<f64> {
    Some(result.tokens / step_s(result)?)
}

/// Share of time for comparisons in a long run. 0 if there are no comparisons, and `None` if the
/// share is unknown.
fn comparisons_share(result: &StepsResult) -> Option<f64> {
    // A variant without a report runs no farrier step, so it makes no comparisons.
    let none = result.comparisons == Some(0.0) || result.report.is_none();
    let share = result.comparisons_share.or_else(|| none.then_some(0.0))?;
    (0.0..1.0).contains(&share).then_some(share)
}

/// Tokens per second in a long run: the median step, reduced by the share of later comparisons.
fn long_speed(result: &StepsResult) -> Option<f64> {
    Some(speed(result)? * (1.0 - comparisons_share(result)?))
}

/// Tokens per second over all timed steps. All groups have the same number of steps.
fn mean_speed(result: &StepsResult) -> Option<f64> {
    let groups = f64::from(u32::try_from(result.step_s.len()).ok()?);
    Some(result.tokens * groups / result.step_s.iter().sum::<f64>())
}

/// Idle share of a step. It is at least zero, although the busy time under the profiler can be
/// slightly longer than the whole step without the profiler.
fn idle(result: &StepsResult) -> Option<f64> {
    Some((1.0 - result.busy_s? / step_s(result)?).max(0.0))
}

fn usd(result: &StepsResult, rates: Rates) -> Option<f64> {
    Some(rates.price_per_hour? / 3600.0 * 1e6 / long_speed(result)?)
}

fn mfu_causal(result: &StepsResult, rates: Rates) -> Option<f64> {
    Some(long_speed(result)? * result.flops_causal / rates.peak_flops?)
}

/// Computes a figure of one repeat; `None` if it is unknown.
type Figure<'a> = &'a dyn Fn(&StepsResult) -> Option<f64>;

/// Ratios of a variant's figures to eager's, per round.
fn rounds(
    repeats: &Repeats<'_, StepsResult>,
    eager: &Repeats<'_, StepsResult>,
    rates: Rates,
) -> RoundRatios {
    let pairs: Vec<(&StepsResult, &StepsResult)> = repeats
        .iter()
        .filter_map(|(repeat, result)| Some(((*result)?, (*eager.get(repeat)?)?)))
        .collect();
    let each = |figure: Figure<'_>, compare: fn(f64, f64) -> f64| -> Vec<f64> {
        let all =
            pairs.iter().map(|(result, eager)| Some(compare(figure(result)?, figure(eager)?)));
        let all: Option<Vec<f64>> = all.collect();
        all.filter(|all| all.iter().all(|value| value.is_finite())).unwrap_or_default()
    };
    let ratios = |figure: Figure<'_>| each(figure, |value, eager| value / eager);
    RoundRatios {
        mfu_causal: ratios(&|result| mfu_causal(result, rates)),
        usd_per_million_tokens: ratios(&|result| usd(result, rates)),
        launches: ratios(&|result| result.launches),
        launch_ms: ratios(&|result| result.launch_s),
        reserved_gib: ratios(&|result| Some(result.reserved_bytes)),
        idle: each(&idle, |value, eager| value - eager),
    }
}

/// Groups the repeats by launches. Empty if the launches of any repeat are unknown.
fn modes(done: &[&StepsResult]) -> Vec<LaunchMode> {
    let known: Option<Vec<f64>> = done.iter().map(|result| result.launches).collect();
    let mut kinds = known.unwrap_or_default();
    kinds.sort_by(f64::total_cmp);
    kinds.dedup();
    let mode = |launches: f64| {
        let same: Vec<&StepsResult> =
            done.iter().copied().filter(|result| result.launches == Some(launches)).collect();
        let stats = |figure: &dyn Fn(&StepsResult) -> Option<f64>| {
            Stats::from_samples(
                same.iter().map(|result| figure(result)).collect::<Option<Vec<f64>>>()?,
            )
        };
        let launch_ms = stats(&|result| Some(result.launch_s? * 1e3));
        LaunchMode { launches, repeats: same.len(), launch_ms, idle: stats(&idle) }
    };
    kinds.into_iter().map(mode).collect()
}

/// Ratios for the repeats that both variants have.
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
    // A figure exists only if every repeat has it: a median over a subset would be misleading.
    let stats = |figure: &dyn Fn(&StepsResult) -> Option<f64>| {
        Stats::from_samples(done.iter().map(|result| figure(result)).collect::<Option<Vec<f64>>>()?)
    };
    VariantRow {
        variant: variant.to_owned(),
        done: done.len(),
        failed: repeats.len() - done.len(),
        tokens_per_s: stats(&speed),
        tokens_per_s_long: stats(&long_speed),
        tokens_per_s_mean: stats(&mean_speed),
        comparisons: stats(&|result| result.comparisons),
        comparison_ms: stats(&|result| Some(result.comparisons_s? / result.comparisons? * 1e3)),
        comparisons_share: stats(&|result| result.comparisons_share),
        tokens_per_s_by_repeat: done.iter().filter_map(|result| long_speed(result)).collect(),
        step_ms: stats(&|result| Some(step_s(result)? * 1e3)),
        to_eager: None,
        to_best: None,
        rounds: None,
        mfu_causal: stats(&|result| mfu_causal(result, rates)),
        mfu_full: stats(&|result| {
            Some(long_speed(result)? * result.flops_full / rates.peak_flops?)
        }),
        modes: modes(&done),
        launch_ms: stats(&|result| Some(result.launch_s? * 1e3)),
        idle: stats(&idle),
        allocated_gib: stats(&|result| Some(result.allocated_bytes / GIB)),
        reserved_gib: stats(&|result| Some(result.reserved_bytes / GIB)),
        ready_s: stats(&|result| Some(result.ready_s)),
        usd_per_million_tokens: stats(&|result| usd(result, rates)),
        loss_off_eager: None,
        self_reports: self_reports(repeats),
    }
}

/// Prefix of the line in a step's report that states why all later steps run eagerly (`StepReport`
/// in Python).
const EAGER_PREFIX: &str = "eager from here on: ";

/// Reports of repeats: first the report of the last repeat that did not fall back to eager, then
/// those of all repeats that did.
fn self_reports(repeats: &Repeats<'_, StepsResult>) -> Vec<SelfReport> {
    let self_report = |(&repeat, result): (&u32, Option<&StepsResult>)| {
        let report = result?.report.clone()?;
        let because =
            report.lines().find_map(|line| line.strip_prefix(EAGER_PREFIX)).map(str::to_owned);
        Some(SelfReport { repeat, report, eager_because: because })
    };
    let (eager, mut reports): (Vec<SelfReport>, Vec<SelfReport>) = repeats
        .iter()
        .map(|(repeat, result)| (repeat, *result))
        .filter_map(self_report)
        .partition(|report| report.eager_because.is_some());
    reports.drain(..reports.len().saturating_sub(1));
    reports.extend(eager);
    reports
}

/// All caps, largest first.
pub(crate) fn caps(shards: &[Shard]) -> Vec<CapComparison> {
    // Caps are in thousandths of a GiB, because `f64` is not `Ord`. The order is reversed, so that
    // larger caps come first.
    type Cap = std::cmp::Reverse<u64>;
    type Variants<'a> = BTreeMap<Rank, Repeats<'a, MemoryResult>>;
    let mut groups: BTreeMap<(Rank, Cap), (f64, Variants<'_>)> = BTreeMap::new();
    for shard in shards {
        let Some(Spec::Memory(spec)) = &shard.spec else { continue };
        let result = match &shard.result {
            Ok(ShardResult::Memory(result)) => Some(result),
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
    let lost = |result: &MemoryResult| u32::try_from(result.lost.len()).unwrap_or(u32::MAX);
    let (steps_lost, steps) =
        done.iter().fold((0, 0), |sum, result| (sum.0 + lost(result), sum.1 + result.steps_asked));
    let rate = |lost: u32, total: u32| (total > 0).then(|| f64::from(lost) / f64::from(total));
    let stats = |figure: &dyn Fn(&MemoryResult) -> f64| {
        Stats::from_samples(done.iter().map(|result| figure(result)))
    };
    MemoryRow {
        variant: variant.to_owned(),
        done: done.len(),
        failed: seeds.len() - done.len(),
        steps,
        steps_lost,
        oom_rate: rate(steps_lost, steps),
        oom_rate_by_seed: done
            .iter()
            .filter_map(|result| rate(lost(result), result.steps_asked))
            .collect(),
        tokens_per_s: stats(&|result| result.tokens_per_s),
        peak_gib: stats(&|result| result.peak_gib),
        reserved_gib: stats(&|result| result.reserved_gib),
        report: done.last().and_then(|result| result.report.clone()),
    }
}

/// The position of a name in a list of known names, and the name itself. Unknown names come after
/// all known names, in alphabetical order.
type Rank = (usize, String);

fn rank(name: &str, known: &[&str]) -> Rank {
    (known.iter().position(|known| *known == name).unwrap_or(known.len()), name.to_owned())
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
