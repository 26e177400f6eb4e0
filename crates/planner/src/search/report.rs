//! What a search found, why that, and what ruled the others out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Candidate, SearchError};
use crate::check::ImpossibleRun;
use crate::layout::{Layout, Sharding};
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
    everything: Vec<Candidate>,
    large: Vec<(Layout, f64)>,
    impossible: BTreeMap<String, (usize, String)>,
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
}

/// So many of the best are kept.
const BEST: usize = 10;

/// A number of a split: its name, and its value.
type Axis = (&'static str, fn(&Layout) -> String);

const AXES: [Axis; 8] = [
    ("TP", |layout| layout.tp.to_string()),
    ("PP", |layout| layout.pp.to_string()),
    ("VP", |layout| layout.vp.to_string()),
    ("CP", |layout| layout.cp.to_string()),
    ("EP", |layout| layout.ep.to_string()),
    ("micro-batch", |layout| layout.micro_batch.to_string()),
    ("recompute", |layout| layout.recompute.name()),
    ("ZeRO", |layout| layout.sharding.stage().to_string()),
];

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

    pub(super) fn new() -> Self {
        Self {
            best: Vec::new(),
            tried: 0,
            fit: 0,
            ruled_out: Vec::new(),
            others: Vec::new(),
            everything: Vec::new(),
            large: Vec::new(),
            impossible: BTreeMap::new(),
        }
    }

    pub(super) fn impossible(&mut self, why: &ImpossibleRun) {
        self.tried += 1;
        let rule = why.rule().to_owned();
        self.impossible.entry(rule).or_insert_with(|| (0, why.to_string())).0 += 1;
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

    pub(super) fn finish(
        mut self,
        run: &Run,
        gpus: u32,
        capacity_gib: f64,
    ) -> Result<Self, SearchError> {
        self.everything.sort_by(|left, right| {
            // Of equals the one that leaves more memory.
            left.step_s.total_cmp(&right.step_s).then(left.p95_gib.total_cmp(&right.p95_gib))
        });
        let Some(winner) = self.everything.first().copied() else {
            let leanest = self.large.iter().min_by(|left, right| left.1.total_cmp(&right.1));
            return Err(match leanest {
                Some((layout, p95_gib)) => SearchError::TooLarge {
                    model: run.model.name.clone(),
                    gpus,
                    gpu: run.gpu.id.clone(),
                    layout: describe(layout),
                    p95_gib: *p95_gib,
                    capacity_gib,
                },
                None => SearchError::Impossible {
                    gpus,
                    most: self
                        .impossible
                        .iter()
                        .max_by_key(|(_, (count, _))| *count)
                        .map_or("the GPUs do not divide by what was asked for", |(_, (_, why))| why)
                        .to_owned(),
                },
            });
        };
        self.best = self.everything.iter().take(BEST).copied().collect();
        self.others = self.around(&winner);
        if !self.large.is_empty() {
            let why = format!("need more than the {capacity_gib:.0} GiB of a GPU");
            self.ruled_out.push(RuledOut { count: self.large.len(), why });
        }
        for (why, (count, _)) in std::mem::take(&mut self.impossible) {
            self.ruled_out.push(RuledOut { count, why });
        }
        self.ruled_out.sort_by_key(|out| std::cmp::Reverse(out.count));
        Ok(self)
    }

    /// The best split for each other value of each number.
    fn around(&self, winner: &Candidate) -> Vec<Other> {
        let mut others = Vec::new();
        for (name, value) in AXES {
            // Numbers by their size, not by their digits.
            let mut values: BTreeMap<(usize, String), (Option<f64>, Option<f64>)> = BTreeMap::new();
            let value = |layout: &Layout| {
                let text = value(layout);
                (text.len(), text)
            };
            let own = value(&winner.layout);
            for candidate in &self.everything {
                let slower = candidate.step_s / winner.step_s - 1.0;
                let entry = values.entry(value(&candidate.layout)).or_default();
                entry.0 = Some(entry.0.map_or(slower, |least: f64| least.min(slower)));
            }
            for (layout, gib) in &self.large {
                let entry = values.entry(value(layout)).or_default();
                entry.1 = Some(entry.1.map_or(*gib, |least: f64| least.min(*gib)));
            }
            values.remove(&own);
            others.extend(values.into_iter().map(|((_, value), (slower, large))| Other {
                change: format!("{name} {value}"),
                slower,
                needs_gib: if slower.is_some() { None } else { large },
            }));
        }
        others
    }
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
    parts.push(match layout.sharding {
        Sharding::None => "no sharding".to_owned(),
        sharding => format!("ZeRO {}", sharding.stage()),
    });
    parts.push(format!("micro-batch {}", layout.micro_batch));
    parts.push(format!("recompute {}", layout.recompute.name()));
    parts.join(" · ")
}
