//! Result of a search: the best configs, alternatives to them, and why other configs were excluded.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::Serialize;

use super::{Candidate, Constraints, SearchError};
use crate::check::ImpossibleRun;
use crate::parallelism::{ParallelConfig, Recompute, Schedule, Sharding};
use crate::run::TrainingRun;

/// The configs that a search evaluated.
#[derive(Debug, Clone)]
pub struct SearchReport {
    /// Fastest first.
    pub best: Vec<Candidate>,
    /// Number of configs evaluated.
    pub tried: usize,
    /// Number of configs that fit.
    pub fit: usize,
    pub ruled_out: Vec<RuledOut>,
    /// For each axis value that the best config does not have: the fastest config that has it.
    pub alternatives: Vec<Alternative>,
    capacity_gib: f64,
    fitting: Vec<Candidate>,
    oversized: Vec<(ParallelConfig, f64)>,
    /// By rule: how many configs violate it, and the message if it is the same for all of them.
    impossible: BTreeMap<&'static str, (usize, Option<String>)>,
}

/// Configs excluded for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuledOut {
    pub count: usize,
    #[serde(rename = "why")]
    pub reason: String,
}

/// How the step time or memory changes if one axis has another value than in the best config.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// Axis and value, for example `TP 4`.
    pub change: String,
    /// Relative increase of the step time; `None` if no config with the value fits.
    pub slower: Option<f64>,
    /// If no config with the value fits: GiB that the config with the least memory needs.
    pub needs_gib: Option<f64>,
    #[serde(skip)]
    pub(super) value: AxisValue,
}

/// Number of best configs to report.
const BEST_COUNT: usize = 10;

/// A value of one axis of a parallelism config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AxisValue {
    Tensor(u32),
    Stages(u32),
    VirtualStages(u32),
    Context(u32),
    Experts(u32),
    MicroBatch(u32),
    Recompute(Recompute),
    Sharding(Sharding),
}

impl AxisValue {
    fn all(parallelism: &ParallelConfig) -> [Self; 8] {
        [
            Self::Tensor(parallelism.tp),
            Self::Stages(parallelism.pp),
            Self::VirtualStages(parallelism.vp),
            Self::Context(parallelism.cp),
            Self::Experts(parallelism.ep),
            Self::MicroBatch(parallelism.micro_batch),
            Self::Recompute(parallelism.recompute),
            Self::Sharding(parallelism.sharding),
        ]
    }

    fn describe(self) -> String {
        match self {
            Self::Tensor(tp) => format!("TP {tp}"),
            Self::Stages(pp) => format!("PP {pp}"),
            Self::VirtualStages(vp) => format!("VP {vp}"),
            Self::Context(cp) => format!("CP {cp}"),
            Self::Experts(ep) => format!("EP {ep}"),
            Self::MicroBatch(size) => format!("micro-batch {size}"),
            Self::Recompute(recompute) => format!("recompute {}", recompute.name()),
            Self::Sharding(sharding) => format!("ZeRO {}", sharding.zero_stage()),
        }
    }

    /// The constraints, with this value pinned in addition.
    pub(super) fn pin(self, constraints: &Constraints) -> Constraints {
        let mut constraints = constraints.clone();
        match self {
            Self::Tensor(tp) => constraints.tp = Some(tp),
            Self::Stages(pp) => constraints.pp = Some(pp),
            Self::VirtualStages(vp) => constraints.vp = Some(vp),
            Self::Context(cp) => constraints.cp = Some(cp),
            Self::Experts(ep) => constraints.ep = Some(ep),
            Self::MicroBatch(size) => constraints.micro_batch = Some(size),
            Self::Recompute(recompute) => constraints.recompute = Some(recompute),
            Self::Sharding(sharding) => constraints.sharding = Some(sharding),
        }
        constraints
    }
}

/// JSON form of a search result.
#[derive(Debug, Clone, Serialize)]
pub struct SearchSummary<'a> {
    pub tried: usize,
    pub fit: usize,
    pub best: &'a [Candidate],
    pub ruled_out: &'a [RuledOut],
    #[serde(rename = "others")]
    pub alternatives: &'a [Alternative],
}

impl SearchReport {
    pub fn summary(&self) -> SearchSummary<'_> {
        SearchSummary {
            tried: self.tried,
            fit: self.fit,
            best: &self.best,
            ruled_out: &self.ruled_out,
            alternatives: &self.alternatives,
        }
    }

    pub(super) fn new(capacity_gib: f64) -> Self {
        Self {
            best: Vec::new(),
            tried: 0,
            fit: 0,
            ruled_out: Vec::new(),
            alternatives: Vec::new(),
            capacity_gib,
            fitting: Vec::new(),
            oversized: Vec::new(),
            impossible: BTreeMap::new(),
        }
    }

    pub(super) fn add_impossible(&mut self, err: &ImpossibleRun) {
        self.tried += 1;
        let text = err.to_string();
        let (count, common_text) =
            self.impossible.entry(err.rule()).or_insert_with(|| (0, Some(text.clone())));
        *count += 1;
        // Drop the message if it differs between configs, because then a value that the user pinned
        // is not the cause. Drop it for the batch rule too, because DP follows from the other axes.
        let is_batch_rule = matches!(err, ImpossibleRun::Batch { .. });
        if is_batch_rule || common_text.as_ref().is_some_and(|common| *common != text) {
            *common_text = None;
        }
    }

    pub(super) fn add_oversized(&mut self, parallelism: ParallelConfig, p95_gib: f64) {
        self.tried += 1;
        self.oversized.push((parallelism, p95_gib));
    }

    pub(super) fn add_fitting(&mut self, candidate: Candidate) {
        self.tried += 1;
        self.fit += 1;
        self.fitting.push(candidate);
    }

    /// All configs that fit, fastest first.
    pub fn fitting(&self) -> &[Candidate] {
        &self.fitting
    }

    /// The fastest config. If several configs are equally fast, the config that needs the least
    /// memory.
    pub(super) fn fastest(&self) -> Option<Candidate> {
        self.fitting.iter().copied().min_by(order)
    }

    /// Of the configs that do not fit, the config that needs the least memory.
    pub(super) fn leanest(&self) -> Option<(ParallelConfig, f64)> {
        self.oversized.iter().copied().min_by(|left, right| left.1.total_cmp(&right.1))
    }

    pub(super) fn finish(
        &mut self,
        run: &TrainingRun,
        gpus: u32,
        constraints: &Constraints,
    ) -> Result<(), SearchError> {
        self.fitting.sort_by(order);
        let Some(winner) = self.fitting.first().copied() else {
            return Err(match self.leanest() {
                Some((parallelism, p95_gib)) => SearchError::TooLarge {
                    model: run.model.name.clone(),
                    gpus,
                    gpu: run.gpu.id.clone(),
                    parallelism: describe(&parallelism),
                    p95_gib,
                    capacity_gib: self.capacity_gib,
                },
                None => SearchError::Impossible { gpus, reason: self.explain_none(constraints) },
            });
        };
        self.best = self.fitting.iter().take(BEST_COUNT).copied().collect();
        self.alternatives = self.alternatives(&winner);
        if !self.oversized.is_empty() {
            let reason = format!("need more than the {:.0} GiB of a GPU", self.capacity_gib);
            self.ruled_out.push(RuledOut { count: self.oversized.len(), reason });
        }
        for (rule, (count, _)) in &self.impossible {
            self.ruled_out.push(RuledOut { count: *count, reason: (*rule).to_owned() });
        }
        self.ruled_out.sort_by_key(|out| std::cmp::Reverse(out.count));
        Ok(())
    }

    /// Why no candidate is possible: the rules that the candidates violate.
    fn explain_none(&self, constraints: &Constraints) -> String {
        if let [(_, Some(text))] = self.impossible.values().collect::<Vec<_>>()[..] {
            return text.clone();
        }
        let mut rules: Vec<(usize, &str)> =
            self.impossible.iter().map(|(rule, (count, _))| (*count, *rule)).collect();
        rules.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        if rules.is_empty() {
            return explain_no_candidates(constraints);
        }
        let reasons: Vec<String> =
            rules.iter().map(|(count, rule)| format!("{rule} (in {count} configs)")).collect();
        reasons.join(", ")
    }

    /// For each axis value that the winner does not have: the fastest config that has it.
    fn alternatives(&self, winner: &Candidate) -> Vec<Alternative> {
        let mut values: BTreeMap<AxisValue, (Option<f64>, Option<f64>)> = BTreeMap::new();
        for candidate in &self.fitting {
            let slower = candidate.step_s / winner.step_s - 1.0;
            for value in AxisValue::all(&candidate.parallelism) {
                let entry = values.entry(value).or_default();
                entry.0 = Some(entry.0.map_or(slower, |least: f64| least.min(slower)));
            }
        }
        for (parallelism, gib) in &self.oversized {
            for value in AxisValue::all(parallelism) {
                let entry = values.entry(value).or_default();
                entry.1 = Some(entry.1.map_or(*gib, |least: f64| least.min(*gib)));
            }
        }
        let own = AxisValue::all(&winner.parallelism);
        values
            .into_iter()
            .filter(|(value, _)| !own.contains(value))
            .map(|(value, (slower, oversized))| Alternative {
                change: value.describe(),
                slower,
                needs_gib: if slower.is_some() { None } else { oversized },
                value,
            })
            .collect()
    }
}

fn order(left: &Candidate, right: &Candidate) -> Ordering {
    left.step_s.total_cmp(&right.step_s).then(left.p95_gib.total_cmp(&right.p95_gib))
}

/// A parallelism config on one line: `DP 128 · TP 8 · PP 16`.
pub fn describe(parallelism: &ParallelConfig) -> String {
    let mut parts = vec![format!("DP {}", parallelism.dp)];
    let ranks = [
        ("TP", parallelism.tp),
        ("PP", parallelism.pp),
        ("VP", parallelism.vp),
        ("CP", parallelism.cp),
    ];
    for (name, count) in ranks.into_iter().chain([("EP", parallelism.ep)]) {
        if count > 1 {
            parts.push(format!("{name} {count}"));
        }
    }
    if parallelism.schedule != Schedule::OneForwardOneBackward {
        parts.push(parallelism.schedule.name().to_owned());
    }
    parts.push(match parallelism.sharding {
        Sharding::None => "no sharding".to_owned(),
        sharding => format!("ZeRO-{}", sharding.zero_stage()),
    });
    parts.push(format!("micro-batch {}", parallelism.micro_batch));
    parts.push(format!("recompute {}", parallelism.recompute.name()));
    parts.join(" · ")
}

/// Why there are no candidates: the pinned sizes do not divide the number of GPUs, or the framework
/// does not support the pinned values.
fn explain_no_candidates(constraints: &Constraints) -> String {
    let ranks = ["DP", "TP", "PP", "CP"];
    let fixed: Vec<(&str, u32)> =
        constraints.fixed_counts().into_iter().filter(|(name, _)| ranks.contains(name)).collect();
    let factors: Vec<String> =
        fixed.iter().map(|(name, number)| format!("{name} {number}")).collect();
    match factors.len() {
        0 => "the framework supports no config with the given values".to_owned(),
        all if all == ranks.len() => {
            let product: u64 = fixed.iter().map(|(_, number)| u64::from(*number)).product();
            format!("{} is {product}", factors.join(" × "))
        }
        _ => format!("the number of GPUs is not divisible by {}", factors.join(" × ")),
    }
}
