//! Which GPU for a model: at equal numbers, equal money, equal time.

use serde::Serialize;

use crate::bound::Bound;
use crate::estimate::Planner;
use crate::flops::FlopsPerToken;
use crate::gpu::{Accelerator, Generation};
use crate::layout::Layout;
use crate::precision::Precision;
use crate::published::Published;
use crate::run::{Run, Stack};
use crate::search::{self, Axes, SearchError};

/// What is held equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Equal {
    /// The number of GPUs.
    Gpus(u32),
    /// Dollars an hour: the number of whole nodes within them that does most.
    UsdPerHour(f64),
    /// Days for the tokens: the fewest whole nodes that it takes.
    Days {
        /// So many days.
        days: f64,
        /// For so many tokens.
        tokens: f64,
    },
}

/// What each part is held to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// What products are computed in; without it what is usual of each generation.
    pub precision: Option<Precision>,
    /// By what program; without it what people use for the split.
    pub stack: Option<Stack>,
    /// Tokens to train on, if that was said.
    pub tokens: Option<f64>,
    /// What is equal.
    pub equal: Equal,
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
    /// Days for the tokens, if those were said.
    pub days: Option<f64>,
    /// Model FLOPs over the precision's peak, causal.
    pub mfu_causal: f64,
    /// What takes most of the step.
    pub bound: Bound,
    /// Whether `NVLink` joins GPUs of this kind; `PCIe` does where not.
    pub has_nvlink: bool,
    /// Dollars for a GPU and hour, if a price is known.
    pub usd_per_gpu_hour: Option<f64>,
    /// Whose price that is, as far as who asks knows it.
    pub price_source: Option<String>,
    /// Dollars for an hour of all of them.
    pub usd_per_hour: Option<f64>,
    /// Dollars for a million tokens.
    pub cost_per_million_tokens_usd: Option<f64>,
    /// Published runs of the model on the part or its kin.
    pub published: Vec<Sighting>,
}

/// A published run beside an offer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sighting {
    /// What was trained, as its source calls it.
    pub model: String,
    /// On what, as its source calls it.
    pub gpu: String,
    /// Whether that is the part which is offered, and not one of its kin with other power, memory or
    /// links.
    pub is_same_part: bool,
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

/// Why a part is not offered.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// Money decides, and the part has no price.
    #[error("no price is known: give one with `--prices`")]
    NoPrice,
    /// The money does not pay for one node.
    #[error("{usd} dollars an hour do not pay for a node of {node} at {price} each")]
    TooLittleMoney {
        /// Dollars an hour that there are.
        usd: f64,
        /// GPUs of a node.
        node: u32,
        /// Dollars an hour of a GPU.
        price: f64,
    },
    /// No number of GPUs is fast enough.
    #[error("no number of them does {wanted:.0} tokens/s: the most is {rate:.0}, on {gpus}")]
    TooSlow {
        /// Tokens a second that are wanted.
        wanted: f64,
        /// The most that was found.
        rate: f64,
        /// On so many.
        gpus: u32,
    },
    /// More GPUs would be needed than the batch can be divided over.
    #[error("no number of them does {wanted:.0} tokens/s with a batch of {global_batch} sequences")]
    BatchTooSmall {
        /// Tokens a second that are wanted.
        wanted: f64,
        /// The global batch.
        global_batch: u32,
    },
    /// No layout can be run.
    #[error(transparent)]
    Search(#[from] SearchError),
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
pub fn compare(planner: &Planner, run: &Run, parts: &[Accelerator], terms: &Terms) -> Comparison {
    let axes = Axes { stack: terms.stack, ..Axes::default() };
    let (mut offers, mut not_offered) = (Vec::new(), Vec::new());
    for part in parts {
        let mut wanted = run.clone();
        wanted.gpu = part.clone();
        wanted.precision = terms.precision.unwrap_or_else(|| usual_precision(part.generation));
        let question = Question { planner, run: &wanted, axes: &axes, tokens: terms.tokens };
        match question.offer(terms.equal) {
            Ok(offer) => offers.push(offer),
            Err(err) => {
                not_offered.push(NotOffered { gpu: part.id.clone(), why: err.to_string() });
            }
        }
    }
    offers.sort_by(|left, right| {
        let cost = |offer: &Offer| offer.cost_per_million_tokens_usd.unwrap_or(f64::INFINITY);
        cost(left).total_cmp(&cost(right)).then(right.tokens_per_s.total_cmp(&left.tokens_per_s))
    });
    Comparison { v: 1, offers, not_offered }
}

/// GPUs of fewer nodes do at most so many times what those of more do: less passes between them, and
/// a number may have no good split. With 1.1 the best was missed in one case of three, with 1.5 in
/// none of 120 (eight models and batches, three GPUs, five sums).
const ROOM: f64 = 1.5;
/// GPUs of more nodes do at most so many times what those of fewer do: more memory is free.
const MORE_OF_MORE: f64 = 2.0;
/// Where memory is short more nodes may do more yet: the next number is at most so many times this.
const NEXT_MOST: f64 = 1.5;
/// A whole search finds at most so many times what a quick one does.
const QUICK_SHORT: f64 = 1.03;
/// More GPUs than a run has had.
const MOST_GPUS: u32 = 1 << 18;
const DAY_S: f64 = 86_400.0;

/// What is asked of each part.
struct Question<'a> {
    planner: &'a Planner,
    run: &'a Run,
    axes: &'a Axes,
    tokens: Option<f64>,
}

impl Question<'_> {
    fn offer(&self, equal: Equal) -> Result<Offer, OfferError> {
        match equal {
            Equal::Gpus(gpus) => self.at(gpus),
            Equal::UsdPerHour(usd) => self.for_money(usd),
            Equal::Days { days, tokens } => self.in_time(tokens / (days * DAY_S)),
        }
    }

    /// The number of whole nodes within the money that does most.
    fn for_money(&self, usd: f64) -> Result<Offer, OfferError> {
        let gpu = &self.run.gpu;
        let price = gpu.usd_per_hour.ok_or(OfferError::NoPrice)?;
        let node = gpu.gpus_of_node();
        let most = whole_nodes(usd / price, node);
        if most == 0 {
            return Err(OfferError::TooLittleMoney { usd, node, price });
        }
        let numbers = numbers(self.run, node, most);
        let mut found: Vec<(u32, f64)> = Vec::new();
        let (mut best, mut fastest) = (0.0_f64, 0.0_f64);
        for gpus in numbers.iter().rev().copied() {
            if ROOM * fastest * f64::from(gpus) < best {
                break;
            }
            let Some(rate) = self.tokens_per_s(gpus) else { continue };
            fastest = fastest.max(rate / f64::from(gpus));
            best = best.max(rate);
            found.push((gpus, rate));
        }
        // The whole search decides between those that come near.
        let near = found.iter().filter(|(_, rate)| rate * QUICK_SHORT >= best);
        let offers = near.filter_map(|(gpus, _)| self.at(*gpus).ok());
        let most_of_all =
            offers.max_by(|left, right| left.tokens_per_s.total_cmp(&right.tokens_per_s));
        // Where no number will do, the largest says why.
        most_of_all.map_or_else(|| self.at(numbers.last().copied().unwrap_or(most)), Ok)
    }

    /// The fewest whole nodes that do so many tokens a second.
    fn in_time(&self, wanted: f64) -> Result<Offer, OfferError> {
        let run = self.run;
        // At its peak, which no GPU keeps to.
        let peak = run.gpu.peak_flops(run.precision) / FlopsPerToken::of(run).causal;
        let mut fewest = wanted / peak;
        let mut fastest = 0.0_f64;
        let mut most: Option<(u32, f64)> = None;
        let numbers = numbers(run, run.gpu.gpus_of_node(), MOST_GPUS);
        let mut skipped = Vec::new();
        for gpus in numbers.iter().copied() {
            if f64::from(gpus) < fewest {
                skipped.push(gpus);
                continue;
            }
            let Some(rate) = self.tokens_per_s(gpus) else { continue };
            if let Some(offer) = self.enough(gpus, rate, wanted) {
                // Where memory is short, fewer may do it too.
                let fewer = skipped
                    .iter()
                    .find_map(|gpus| self.enough(*gpus, self.tokens_per_s(*gpus)?, wanted));
                return Ok(fewer.unwrap_or(offer));
            }
            skipped.clear();
            // A number without a good split says nothing of the next.
            fastest = fastest.max(rate / f64::from(gpus));
            fewest = (wanted / (fastest * MORE_OF_MORE)).min(f64::from(gpus) * NEXT_MOST);
            if most.is_none_or(|(_, most)| rate > most) {
                most = Some((gpus, rate));
            }
        }
        match most {
            Some((gpus, rate)) => Err(OfferError::TooSlow { wanted, rate, gpus }),
            None => match numbers.last() {
                // Not one of them can be run: the largest says why.
                Some(last) if f64::from(*last) >= fewest => self.at(*last),
                _ => Err(OfferError::BatchTooSmall { wanted, global_batch: run.global_batch }),
            },
        }
    }

    /// The offer of a number of GPUs, if it does so many tokens a second: by a quick search it does
    /// `rate`, and the whole one may find a little more.
    fn enough(&self, gpus: u32, rate: f64, wanted: f64) -> Option<Offer> {
        let may = rate * QUICK_SHORT >= wanted;
        may.then(|| self.at(gpus).ok()).flatten().filter(|offer| offer.tokens_per_s >= wanted)
    }

    /// What a number of GPUs does, if a split of it fits.
    fn tokens_per_s(&self, gpus: u32) -> Option<f64> {
        let best = search::quick(self.planner, self.run, gpus, self.axes)?;
        Some(self.run.tokens_per_step() / best.step_s)
    }

    fn at(&self, gpus: u32) -> Result<Offer, OfferError> {
        let Self { planner, run, axes, .. } = self;
        let found = search::search(planner, run, gpus, axes)?;
        let mut best = (*run).clone();
        axes.lay_out(&mut best, found.best[0].layout);
        let estimate = planner.estimate(&best);
        let price = run.gpu.usd_per_hour;
        let tokens_per_s = estimate.tokens_per_s_per_gpu * f64::from(gpus);
        Ok(Offer {
            gpu: run.gpu.id.clone(),
            gpus,
            precision: run.precision.name(),
            layout: best.layout,
            tokens_per_s_per_gpu: estimate.tokens_per_s_per_gpu,
            tokens_per_s_per_gpu_p10: estimate.tokens_per_s_per_gpu_p10,
            tokens_per_s_per_gpu_p90: estimate.tokens_per_s_per_gpu_p90,
            tokens_per_s,
            days: self.tokens.map(|tokens| tokens / tokens_per_s / DAY_S),
            mfu_causal: estimate.mfu_causal,
            bound: estimate.bound,
            has_nvlink: run.gpu.has_nvlink,
            usd_per_gpu_hour: price,
            price_source: None,
            usd_per_hour: price.map(|usd| usd * f64::from(gpus)),
            cost_per_million_tokens_usd: price
                .map(|usd| usd / 3600.0 / estimate.tokens_per_s_per_gpu * 1e6),
            published: sightings(planner, run),
        })
    }
}

/// The most GPUs in whole nodes that so many, or a part of one, make.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by MOST_GPUS")]
fn whole_nodes(gpus: f64, node: u32) -> u32 {
    gpus.clamp(0.0, f64::from(MOST_GPUS)) as u32 / node * node
}

/// Numbers of GPUs in whole nodes, up to the most, that a split may have: copies that the batch
/// divides over, stages, and powers of two for what shares products and sequences.
fn numbers(run: &Run, node: u32, most: u32) -> Vec<u32> {
    const SHARE_MOST_LOG2: u32 = 10;
    let batch = run.global_batch;
    let copies: Vec<u32> = (1..=batch.isqrt())
        .filter(|copies| batch.is_multiple_of(*copies))
        .flat_map(|copies| [copies, batch / copies])
        .collect();
    let mut numbers: Vec<u32> = (1..=search::MOST_STAGES.min(run.model.layers))
        .flat_map(|stages| (0..=SHARE_MOST_LOG2).map(move |power| stages << power))
        .flat_map(|each| copies.iter().filter_map(move |copies| copies.checked_mul(each)))
        .filter(|gpus| gpus.is_multiple_of(node) && *gpus <= most)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Published runs of the model: those on the same part first, then those on its kin, whose own name
/// says what they are.
fn sightings(planner: &Planner, run: &Run) -> Vec<Sighting> {
    let same_model = |row: &&Published| {
        let model = &row.run.model;
        row.run.gpu.id == run.gpu.id
            && model.layers == run.model.layers
            && model.hidden == run.model.hidden
            && model.experts.is_some() == run.model.experts.is_some()
            && row.run.task == run.task
    };
    let mut rows: Vec<&Published> = planner.published.iter().filter(same_model).collect();
    rows.sort_by(|left, right| {
        let same = |row: &Published| is_same_part(&row.run.gpu, &run.gpu);
        same(right).cmp(&same(left)).then(right.date.cmp(&left.date))
    });
    rows.into_iter()
        .take(4)
        .map(|row| Sighting {
            model: row.run.model.name.clone(),
            gpu: row.gpu.clone(),
            is_same_part: is_same_part(&row.run.gpu, &run.gpu),
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

/// Whether a part is sold as another is: with its power, its memory and its links.
fn is_same_part(left: &Accelerator, right: &Accelerator) -> bool {
    let same = |of: fn(&Accelerator) -> f64| (of(left) / of(right) - 1.0).abs() < 0.01;
    left.id == right.id
        && same(|gpu| gpu.power_share)
        && same(|gpu| gpu.link_bytes_per_s)
        && same(|gpu| gpu.hbm_bytes)
        && same(|gpu| gpu.hbm_bytes_per_s)
}

#[cfg(test)]
mod tests;
