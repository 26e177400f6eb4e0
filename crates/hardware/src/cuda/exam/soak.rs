//! Minutes of load: does it stay fast, and does it stay right.

use std::collections::{BTreeMap, BTreeSet};

use farrier_facts::diag::Outcome;
use serde::{Deserialize, Serialize};

use super::super::edge::{Block, Edge, Precision, Product, Work, chain, mixed};
use super::super::error::CudaError;
use super::hold::Hold;
use super::{Effort, giga, measured, products};

/// What is told while a long test runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Seconds of work since the test began.
    pub at_s: f64,
    /// 10^12 operations a second just now; none of a test that measures none.
    pub tflops: Option<f64>,
}

/// A second or so of work is one beat.
const BEAT_S: f64 = 1.0;

/// The fastest product there is, over and over.
pub(super) fn soak(
    edge: &mut dyn Edge,
    effort: &Effort,
    tell: &mut dyn FnMut(Beat),
) -> Result<Outcome, CudaError> {
    let mut hold = Hold::of(edge);
    let Some((product, how)) = any_product(&mut hold, effort)? else {
        return Ok(Outcome::Unsupported {
            why: "this GPU has no tensor cores that we know".to_owned(),
        });
    };
    let once_s = hold.timed(&[Work::Multiply(product)])?;
    let runs = runs_in(BEAT_S, once_s);
    let work = vec![Work::Multiply(product); runs];
    let (mut spent_s, mut samples) = (0.0, Vec::new());
    while spent_s < effort.soak_s || samples.is_empty() {
        let seconds = hold.timed(&work)?;
        spent_s += seconds;
        let tflops = giga(product.operations() * runs as u64, seconds) / 1e3;
        samples.push(tflops);
        tell(Beat { at_s: spent_s, tflops: Some(tflops) });
    }
    let side = product.side;
    Ok(measured(samples, format!("{side} x {side} x {side} {how} for {spent_s:.0} s")))
}

fn any_product(
    hold: &mut Hold<'_>,
    effort: &Effort,
) -> Result<Option<(Product, String)>, CudaError> {
    for precision in [Precision::Bf16, Precision::Own] {
        if let Ok(product) = products::fitting(hold, precision, effort.side)? {
            return Ok(Some((product, format!("by {}", hold.library(precision)))));
        }
    }
    Ok(None)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between one and a few thousand"
)]
fn runs_in(seconds: f64, once_s: f64) -> usize {
    (seconds / once_s.max(1e-6)).clamp(1.0, 5000.0) as usize
}

/// Blocks for each multiprocessor: some wait, and so take another one's place.
const BLOCKS: u32 = 8;
/// Threads of a block in `hunt`.
const THREADS: u32 = 256;
const ROUNDS: u32 = 512;
const TENSOR_ROUNDS: u32 = 4096;

/// The same work on every multiprocessor, and one large product, again and again: whatever differs is corrupt.
pub(super) fn corruption(
    edge: &mut dyn Edge,
    effort: &Effort,
    tell: &mut dyn FnMut(Beat),
) -> Result<Outcome, CudaError> {
    let processors = edge.about().processors.max(1);
    let count = processors * BLOCKS;
    let has_tensor = edge.about().compute_capability >= (8, 0);
    let mut hold = Hold::of(edge);
    let bytes = u64::from(count) * 4;
    let (sums, places) = (hold.block(bytes)?, hold.block(bytes)?);
    let product = any_product(&mut hold, effort)?;
    let whole = (0..THREADS).map(|thread| mixed(chain(thread, ROUNDS) ^ thread));
    let expected = whole.fold(0_u32, u32::wrapping_add);
    let mut tally = Tally::default();
    let (mut spent_s, mut reference, mut tensor_reference) = (0.0, None, None);
    let mut told_s = 0.0;
    let mut hunted = vec!["whole numbers and floats".to_owned()];
    hunted.extend(has_tensor.then(|| "tensor cores".to_owned()));
    hunted.extend(product.as_ref().map(|(_, how)| format!("one large product {how}")));
    while spent_s < effort.soak_s || tally.rounds == 0 {
        spent_s += hold.timed(&[Work::Hunt(sums, places, ROUNDS)])?;
        tally.look(&mut hold, (sums, places), count, Some(expected), "whole numbers and floats")?;
        if has_tensor {
            spent_s += hold.timed(&[Work::HuntTensor(sums, places, TENSOR_ROUNDS)])?;
            let most =
                tally.look(&mut hold, (sums, places), count, tensor_reference, "tensor cores")?;
            tensor_reference = tensor_reference.or(Some(most));
        }
        if let Some((product, _)) = &product {
            spent_s += hold.timed(&[Work::Multiply(*product)])?;
            let digest = products::digest(&mut hold, *product)?;
            if *reference.get_or_insert(digest) != digest {
                tally.products += 1;
            }
        }
        tally.rounds += 1;
        if spent_s >= told_s + BEAT_S {
            told_s = spent_s;
            tell(Beat { at_s: spent_s, tflops: None });
        }
        if tally.is_enough() {
            break;
        }
    }
    Ok(tally.outcome(processors, spent_s, &hunted.join(", ")))
}

/// What was wrong so far.
#[derive(Default)]
struct Tally {
    rounds: u32,
    products: u32,
    /// By kind of work and multiprocessor.
    processors: BTreeMap<(&'static str, u32), u32>,
    seen: BTreeSet<u32>,
}

impl Tally {
    /// Compares what each block made of the same work, with `expected` or with what most of them made; that is returned.
    fn look(
        &mut self,
        hold: &mut Hold<'_>,
        (sums, places): (Block, Block),
        count: u32,
        expected: Option<u32>,
        kind: &'static str,
    ) -> Result<u32, CudaError> {
        let sums = hold.words(sums, count as usize)?;
        let places = hold.words(places, count as usize)?;
        let expected = expected.unwrap_or_else(|| most_frequent(&sums));
        for (sum, place) in sums.iter().zip(places) {
            self.seen.insert(place);
            if *sum != expected {
                *self.processors.entry((kind, place)).or_default() += 1;
            }
        }
        Ok(expected)
    }

    /// Ten wrong results say as much as a thousand.
    fn is_enough(&self) -> bool {
        self.products >= 10 || self.processors.values().sum::<u32>() >= 10
    }

    /// `hunted` are the kinds of work that were compared.
    fn outcome(&self, processors: u32, spent_s: f64, hunted: &str) -> Outcome {
        let mut what: Vec<String> = self
            .processors
            .iter()
            .map(|((kind, place), times)| {
                format!("multiprocessor {place} computed wrongly {times} times ({kind})")
            })
            .collect();
        if self.products > 0 {
            what.push(format!(
                "{} of {} runs of one product gave other bits",
                self.products, self.rounds
            ));
        }
        if !what.is_empty() {
            return Outcome::Wrong { what };
        }
        let seen = self.seen.len();
        if seen < processors as usize {
            let why = format!("only {seen} of {processors} multiprocessors did any of the work");
            return Outcome::NotRun { why };
        }
        super::right(format!(
            "{} rounds in {spent_s:.0} s on {seen} of {processors} multiprocessors, the same bits each time: {hunted}",
            self.rounds
        ))
    }
}

fn most_frequent(sums: &[u32]) -> u32 {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for sum in sums {
        *counts.entry(*sum).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(sum, _)| sum)
}
