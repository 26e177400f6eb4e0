//! What a search found, why that, and what ruled the others out.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::Serialize;

use super::{Axes, Candidate, SearchError};
use crate::check::ImpossibleRun;
use crate::layout::{Layout, Recompute, Schedule, Sharding};
use crate::run::Run;

/// The splits that a search tried.
#[derive(Debug, Clone)]
pub struct Report {
    /// The fastest first.
    pub best: Vec<Candidate>,
    /// How many were tried.
    pub tried: usize,
    /// How many fit.
    pub fit: usize,
    /// What ruled others out.
    pub ruled_out: Vec<RuledOut>,
    /// The best with one number changed, for each number: why the winner has the one that it has.
    pub others: Vec<Other>,
    capacity_gib: f64,
    everything: Vec<Candidate>,
    large: Vec<(Layout, f64)>,
    /// By rule: how many break it, and how, where all do alike.
    impossible: BTreeMap<&'static str, (usize, Option<String>)>,
}

/// A reason that ruled splits out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuledOut {
    /// How many.
    pub count: usize,
    /// Why.
    pub why: String,
}

/// What changing one number of the winner would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Other {
    /// The number and what it would be: `TP 4`.
    pub change: String,
    /// How much longer the best such split takes, as a share; nothing if none fits.
    pub slower: Option<f64>,
    /// What the leanest such split needs, GiB, where none fits.
    pub needs_gib: Option<f64>,
    #[serde(skip)]
    pub(super) value: Value,
}

/// So many of the best are kept.
const BEST: usize = 10;

/// A number of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Tensor(u32),
    Stages(u32),
    Pieces(u32),
    Context(u32),
    Experts(u32),
    MicroBatch(u32),
    Recompute(Recompute),
    Sharding(Sharding),
}

impl Value {
    /// Those of a split.
    fn of(layout: &Layout) -> [Self; 8] {
        [
            Self::Tensor(layout.tp),
            Self::Stages(layout.pp),
            Self::Pieces(layout.vp),
            Self::Context(layout.cp),
            Self::Experts(layout.ep),
            Self::MicroBatch(layout.micro_batch),
            Self::Recompute(layout.recompute),
            Self::Sharding(layout.sharding),
        ]
    }

    /// As people write it.
    fn text(self) -> String {
        match self {
            Self::Tensor(tp) => format!("TP {tp}"),
            Self::Stages(pp) => format!("PP {pp}"),
            Self::Pieces(vp) => format!("VP {vp}"),
            Self::Context(cp) => format!("CP {cp}"),
            Self::Experts(ep) => format!("EP {ep}"),
            Self::MicroBatch(size) => format!("micro-batch {size}"),
            Self::Recompute(recompute) => format!("recompute {}", recompute.name()),
            Self::Sharding(sharding) => format!("ZeRO {}", sharding.stage()),
        }
    }

    /// What was fixed, and this too.
    pub(super) fn fixed(self, axes: &Axes) -> Axes {
        let mut axes = axes.clone();
        match self {
            Self::Tensor(tp) => axes.tp = Some(tp),
            Self::Stages(pp) => axes.pp = Some(pp),
            Self::Pieces(vp) => axes.vp = Some(vp),
            Self::Context(cp) => axes.cp = Some(cp),
            Self::Experts(ep) => axes.ep = Some(ep),
            Self::MicroBatch(size) => axes.micro_batch = Some(size),
            Self::Recompute(recompute) => axes.recompute = Some(recompute),
            Self::Sharding(sharding) => axes.sharding = Some(sharding),
        }
        axes
    }
}

/// What a search found, for programs.
#[derive(Debug, Clone, Serialize)]
pub struct Summary<'a> {
    /// How many were tried.
    pub tried: usize,
    /// How many fit.
    pub fit: usize,
    /// The fastest first.
    pub best: &'a [Candidate],
    /// What ruled others out.
    pub ruled_out: &'a [RuledOut],
    /// The best with one number changed.
    pub others: &'a [Other],
}

impl Report {
    /// For programs.
    pub fn summary(&self) -> Summary<'_> {
        Summary {
            tried: self.tried,
            fit: self.fit,
            best: &self.best,
            ruled_out: &self.ruled_out,
            others: &self.others,
        }
    }

    pub(super) fn new(capacity_gib: f64) -> Self {
        Self {
            best: Vec::new(),
            tried: 0,
            fit: 0,
            ruled_out: Vec::new(),
            others: Vec::new(),
            capacity_gib,
            everything: Vec::new(),
            large: Vec::new(),
            impossible: BTreeMap::new(),
        }
    }

    pub(super) fn impossible(&mut self, why: &ImpossibleRun) {
        self.tried += 1;
        let text = why.to_string();
        let (count, same) =
            self.impossible.entry(why.rule()).or_insert_with(|| (0, Some(text.clone())));
        *count += 1;
        // What differs from split to split is nothing that a person asked for, and DP is what the
        // others leave.
        let is_of_copies = matches!(why, ImpossibleRun::Batch { .. });
        if is_of_copies || same.as_ref().is_some_and(|same| *same != text) {
            *same = None;
        }
    }

    pub(super) fn too_large(&mut self, layout: Layout, p95_gib: f64) {
        self.tried += 1;
        self.large.push((layout, p95_gib));
    }

    pub(super) fn fits(&mut self, candidate: Candidate) {
        self.tried += 1;
        self.fit += 1;
        self.everything.push(candidate);
    }

    /// Everything that fits, the fastest first.
    pub fn fitting(&self) -> &[Candidate] {
        &self.everything
    }

    /// The fastest; of equals the one that leaves more memory.
    pub(super) fn fastest(&self) -> Option<Candidate> {
        self.everything.iter().copied().min_by(order)
    }

    /// The split that needs least of those that do not fit.
    pub(super) fn leanest(&self) -> Option<(Layout, f64)> {
        self.large.iter().copied().min_by(|left, right| left.1.total_cmp(&right.1))
    }

    pub(super) fn finish(&mut self, run: &Run, gpus: u32, axes: &Axes) -> Result<(), SearchError> {
        self.everything.sort_by(order);
        let Some(winner) = self.everything.first().copied() else {
            return Err(match self.leanest() {
                Some((layout, p95_gib)) => SearchError::TooLarge {
                    model: run.model.name.clone(),
                    gpus,
                    gpu: run.gpu.id.clone(),
                    layout: describe(&layout),
                    p95_gib,
                    capacity_gib: self.capacity_gib,
                },
                None => SearchError::Impossible { gpus, why: self.why_none(axes) },
            });
        };
        self.best = self.everything.iter().take(BEST).copied().collect();
        self.others = self.around(&winner);
        if !self.large.is_empty() {
            let why = format!("need more than the {:.0} GiB of a GPU", self.capacity_gib);
            self.ruled_out.push(RuledOut { count: self.large.len(), why });
        }
        for (why, (count, _)) in &self.impossible {
            self.ruled_out.push(RuledOut { count: *count, why: (*why).to_owned() });
        }
        self.ruled_out.sort_by_key(|out| std::cmp::Reverse(out.count));
        Ok(())
    }

    /// Why nothing that was tried is possible: the rule that each broke.
    fn why_none(&self, axes: &Axes) -> String {
        if let [(_, Some(text))] = self.impossible.values().collect::<Vec<_>>()[..] {
            return text.clone();
        }
        let mut rules: Vec<(usize, &str)> =
            self.impossible.iter().map(|(rule, (count, _))| (*count, *rule)).collect();
        rules.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        if rules.is_empty() {
            return not_divided(axes);
        }
        let each: Vec<String> =
            rules.iter().map(|(count, rule)| format!("{rule} (in {count} splits)")).collect();
        each.join(", ")
    }

    /// The best split for each other value of each number.
    fn around(&self, winner: &Candidate) -> Vec<Other> {
        let mut values: BTreeMap<Value, (Option<f64>, Option<f64>)> = BTreeMap::new();
        for candidate in &self.everything {
            let slower = candidate.step_s / winner.step_s - 1.0;
            for value in Value::of(&candidate.layout) {
                let entry = values.entry(value).or_default();
                entry.0 = Some(entry.0.map_or(slower, |least: f64| least.min(slower)));
            }
        }
        for (layout, gib) in &self.large {
            for value in Value::of(layout) {
                let entry = values.entry(value).or_default();
                entry.1 = Some(entry.1.map_or(*gib, |least: f64| least.min(*gib)));
            }
        }
        let own = Value::of(&winner.layout);
        values
            .into_iter()
            .filter(|(value, _)| !own.contains(value))
            .map(|(value, (slower, large))| Other {
                change: value.text(),
                slower,
                needs_gib: if slower.is_some() { None } else { large },
                value,
            })
            .collect()
    }
}

fn order(left: &Candidate, right: &Candidate) -> Ordering {
    left.step_s.total_cmp(&right.step_s).then(left.p95_gib.total_cmp(&right.p95_gib))
}

/// A split in a line: `DP 128 · TP 8 · PP 16`.
pub fn describe(layout: &Layout) -> String {
    let mut parts = vec![format!("DP {}", layout.dp)];
    let ranks = [("TP", layout.tp), ("PP", layout.pp), ("VP", layout.vp), ("CP", layout.cp)];
    for (name, count) in ranks.into_iter().chain([("EP", layout.ep)]) {
        if count > 1 {
            parts.push(format!("{name} {count}"));
        }
    }
    if layout.schedule != Schedule::OneForwardOneBackward {
        parts.push(layout.schedule.name().to_owned());
    }
    parts.push(match layout.sharding {
        Sharding::None => "no sharding".to_owned(),
        sharding => format!("ZeRO {}", sharding.stage()),
    });
    parts.push(format!("micro-batch {}", layout.micro_batch));
    parts.push(format!("recompute {}", layout.recompute.name()));
    parts.join(" · ")
}

/// Why there is nothing to try: the ranks that were asked for.
fn not_divided(axes: &Axes) -> String {
    let ranks = ["DP", "TP", "PP", "CP"];
    let asked: Vec<(&str, u32)> =
        axes.given().into_iter().filter(|(name, _)| ranks.contains(name)).collect();
    let each: Vec<String> = asked.iter().map(|(name, number)| format!("{name} {number}")).collect();
    match each.len() {
        0 => "the program has nothing of what was asked for".to_owned(),
        all if all == ranks.len() => {
            let product: u64 = asked.iter().map(|(_, number)| u64::from(*number)).product();
            format!("{} are {product}", each.join(" × "))
        }
        _ => format!("they do not divide by {}", each.join(" × ")),
    }
}
