//! Which GPU for a model: at equal numbers, equal money, equal time.

use serde::Serialize;

use crate::bound::Bound;
use crate::estimate::Planner;
use crate::gpu::{Accelerator, Generation};
use crate::layout::Layout;
use crate::precision::Precision;
use crate::published::Published;
use crate::run::{Run, Stack};
use crate::search::{self, Axes};

/// What is held equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Equal {
    /// The number of GPUs.
    Gpus(u32),
    /// Dollars an hour: as many GPUs as they pay for.
    UsdPerHour(f64),
    /// Days for the tokens: as many GPUs as it takes.
    Days {
        /// So many days.
        days: f64,
        /// For so many tokens.
        tokens: f64,
    },
}

/// A GPU and what it does with the model.
#[derive(Debug, Clone, Serialize)]
pub struct Offer {
    /// The part.
    pub gpu: String,
    /// So many of them.
    pub gpus: u32,
    /// What products are computed in.
    pub precision: &'static str,
    /// The best split.
    pub layout: Layout,
    /// Tokens a second for each.
    pub tokens_per_s_per_gpu: f64,
    /// One in ten is slower.
    pub tokens_per_s_per_gpu_p10: f64,
    /// One in ten is faster.
    pub tokens_per_s_per_gpu_p90: f64,
    /// Tokens a second of all.
    pub tokens_per_s: f64,
    /// Model FLOPs over the precision's peak, causal.
    pub mfu_causal: f64,
    /// What takes most of the step.
    pub bound: Bound,
    /// Dollars for a GPU and hour, if a price is known.
    pub usd_per_gpu_hour: Option<f64>,
    /// Dollars for an hour of all of them.
    pub usd_per_hour: Option<f64>,
    /// Dollars for a million tokens.
    pub cost_per_million_tokens_usd: Option<f64>,
    /// Published runs of the model on the part: precision, GPUs, tokens a second for each, source.
    pub published: Vec<Sighting>,
}

/// A published run beside an offer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sighting {
    /// What was trained, as its source calls it.
    pub model: String,
    /// What products were computed in.
    pub precision: &'static str,
    /// On how many GPUs.
    pub gpus: u32,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// What was measured.
    pub tokens_per_s_per_gpu: f64,
    /// When.
    pub date: String,
    /// Where.
    pub source: String,
}

/// A part that is not offered, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NotOffered {
    /// The part.
    pub gpu: String,
    /// Why not.
    pub why: String,
}

/// What was compared.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The form of this document.
    pub v: u32,
    /// Best first: cheapest where money is known, else fastest.
    pub offers: Vec<Offer>,
    /// What could not be compared.
    pub not_offered: Vec<NotOffered>,
}

/// The precision that people train in on a generation, where none is asked for.
pub fn usual_precision(generation: Generation) -> Precision {
    match generation {
        Generation::Ampere => Precision::Bf16,
        Generation::Hopper => Precision::Fp8,
        Generation::Blackwell => Precision::Mxfp8,
    }
}

/// Compares parts for a run whose model, sequence and batch are given; split, precision and GPU are
/// each part's best.
pub fn compare(
    planner: &Planner,
    run: &Run,
    parts: &[Accelerator],
    precision: Option<Precision>,
    stack: Option<Stack>,
    equal: Equal,
) -> Comparison {
    let axes = Axes { stack, ..Axes::default() };
    let (mut offers, mut not_offered) = (Vec::new(), Vec::new());
    for part in parts {
        let mut wanted = run.clone();
        wanted.gpu = part.clone();
        wanted.precision = precision.unwrap_or_else(|| usual_precision(part.generation));
        match offer(planner, &wanted, &axes, equal) {
            Ok(offer) => offers.push(offer),
            Err(why) => not_offered.push(NotOffered { gpu: part.id.clone(), why }),
        }
    }
    offers.sort_by(|left, right| {
        let cost = |offer: &Offer| offer.cost_per_million_tokens_usd.unwrap_or(f64::INFINITY);
        cost(left).total_cmp(&cost(right)).then(right.tokens_per_s.total_cmp(&left.tokens_per_s))
    });
    Comparison { v: 1, offers, not_offered }
}

fn offer(planner: &Planner, run: &Run, axes: &Axes, equal: Equal) -> Result<Offer, String> {
    match equal {
        Equal::Gpus(gpus) => at(planner, run, axes, gpus),
        Equal::UsdPerHour(usd) => for_money(planner, run, axes, usd),
        Equal::Days { days, tokens } => in_time(planner, run, axes, days, tokens),
    }
}

/// As many whole nodes as the money pays for, in the largest number that the batch divides over.
fn for_money(planner: &Planner, run: &Run, axes: &Axes, usd: f64) -> Result<Offer, String> {
    let price = run.gpu.usd_per_hour.ok_or("no price is known: give one with `--prices`")?;
    let most = nodes(usd / price);
    let mut refused =
        format!("{usd} dollars an hour do not pay for a node of eight at {price} each");
    // A batch divides by powers of two and three times them, not by 13 nodes.
    let even = |nodes: &u32| nodes >> nodes.trailing_zeros() <= 3;
    for nodes in (1..=most).rev().filter(even) {
        match at(planner, run, axes, nodes * 8) {
            Ok(offer) => return Ok(offer),
            Err(why) => refused = why,
        }
    }
    Err(refused)
}

/// The fewest nodes, by doubling and then in steps of an eighth, that finish in time.
fn in_time(
    planner: &Planner,
    run: &Run,
    axes: &Axes,
    days: f64,
    tokens: f64,
) -> Result<Offer, String> {
    let wanted = tokens / (days * 86_400.0);
    let mut last = String::new();
    for power in 0..15 {
        let gpus = 8_u32 << power;
        match at(planner, run, axes, gpus) {
            Ok(offer) if offer.tokens_per_s >= wanted => {
                let between = (5..8).map(|eighths| gpus / 8 * eighths);
                let fewer = between.filter_map(|gpus| at(planner, run, axes, gpus).ok());
                let enough = |offer: &Offer| offer.tokens_per_s >= wanted;
                return Ok(fewer.into_iter().find(enough).unwrap_or(offer));
            }
            Ok(offer) => last = format!("{gpus} of them do {:.0} tokens/s", offer.tokens_per_s),
            Err(why) => last = why,
        }
    }
    Err(format!("no number of them does {wanted:.0} tokens/s: {last}"))
}

/// Whole nodes of eight.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded below 2^22")]
fn nodes(gpus: f64) -> u32 {
    (gpus / 8.0).floor().clamp(0.0, 524_288.0) as u32
}

fn at(planner: &Planner, run: &Run, axes: &Axes, gpus: u32) -> Result<Offer, String> {
    let found = search::search(planner, run, gpus, axes).map_err(|err| err.to_string())?;
    let mut best = run.clone();
    axes.lay_out(&mut best, found.best[0].layout);
    let estimate = planner.estimate(&best);
    let price = run.gpu.usd_per_hour;
    Ok(Offer {
        gpu: run.gpu.id.clone(),
        gpus,
        precision: run.precision.name(),
        layout: best.layout,
        tokens_per_s_per_gpu: estimate.tokens_per_s_per_gpu,
        tokens_per_s_per_gpu_p10: estimate.tokens_per_s_per_gpu_p10,
        tokens_per_s_per_gpu_p90: estimate.tokens_per_s_per_gpu_p90,
        tokens_per_s: estimate.tokens_per_s_per_gpu * f64::from(gpus),
        mfu_causal: estimate.mfu_causal,
        bound: estimate.bound,
        usd_per_gpu_hour: price,
        usd_per_hour: price.map(|usd| usd * f64::from(gpus)),
        cost_per_million_tokens_usd: price
            .map(|usd| usd / 3600.0 / estimate.tokens_per_s_per_gpu * 1e6),
        published: sightings(planner, run),
    })
}

/// Published runs of the model on the part: those with the same weights on the same part.
fn sightings(planner: &Planner, run: &Run) -> Vec<Sighting> {
    let same = |row: &&Published| {
        let model = &row.run.model;
        row.run.gpu.id == run.gpu.id
            && model.layers == run.model.layers
            && model.hidden == run.model.hidden
            && model.experts.is_some() == run.model.experts.is_some()
            && row.run.task == run.task
    };
    let mut rows: Vec<&Published> = planner.published.iter().filter(same).collect();
    rows.sort_by(|left, right| right.date.cmp(&left.date));
    rows.into_iter()
        .take(4)
        .map(|row| Sighting {
            model: row.run.model.name.clone(),
            precision: row.run.precision.name(),
            gpus: row.run.layout.gpus(),
            seq_len: row.run.seq_len,
            tokens_per_s_per_gpu: row.run.tokens_per_step()
                / row.step_s
                / f64::from(row.run.layout.gpus()),
            date: row.date.clone(),
            source: row.source.clone(),
        })
        .collect()
}
