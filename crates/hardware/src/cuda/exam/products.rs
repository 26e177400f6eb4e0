//! Large matrix products: how fast, and whether they are right.

use farrier_facts::diag::Outcome;

use super::super::edge::{Edge, NoWay, Precision, Product, Work};
use super::super::error::CudaError;
use super::super::numbers;
use super::hold::Hold;
use super::{Effort, giga, measured};

/// Runs of the product in one timed piece.
const RUNS: usize = 5;

pub(super) fn product(
    edge: &mut dyn Edge,
    effort: &Effort,
    precision: Precision,
) -> Result<Outcome, CudaError> {
    let library = edge.library(precision);
    let mut hold = Hold::of(edge);
    let product = match fitting(&mut hold, precision, effort.side)? {
        Ok(product) => product,
        Err(no_way) => return Ok(not_run(no_way)),
    };
    hold.timed(&[Work::Multiply(product)])?;
    if let Some(what) = first_wrong(&mut hold, precision, product)? {
        return Ok(Outcome::Wrong { what: vec![what] });
    }
    let reference = digest(&mut hold, product)?;
    let mut samples = Vec::new();
    for repeat in 0..=effort.repeats {
        let seconds = hold.timed(&[Work::Multiply(product); RUNS])?;
        if repeat > 0 {
            samples.push(giga(product.operations() * RUNS as u64, seconds) / 1e3);
        }
    }
    if digest(&mut hold, product)? != reference {
        let what = "the same product gave other bits than before".to_owned();
        return Ok(Outcome::Wrong { what: vec![what] });
    }
    Ok(measured(samples, format!("{side} x {side} x {side} by {library}", side = product.side)))
}

fn not_run(NoWay { why, is_of_part }: NoWay) -> Outcome {
    if is_of_part { Outcome::Unsupported { why } } else { Outcome::NotRun { why } }
}

/// The largest product up to `side` for which there is memory.
pub(super) fn fitting(
    hold: &mut Hold<'_>,
    precision: Precision,
    side: u64,
) -> Result<Result<Product, NoWay>, CudaError> {
    let mut side = side;
    loop {
        match hold.ready(precision, side) {
            Err(CudaError::OutOfMemory) if side > 1024 => side /= 2,
            made => return made,
        }
    }
}

pub(super) fn digest(hold: &mut Hold<'_>, product: Product) -> Result<u64, CudaError> {
    hold.timed(&[Work::Digest(product.result)])?;
    hold.digest()
}

/// The first number of the result against what the host makes of the same row and column.
fn first_wrong(
    hold: &mut Hold<'_>,
    precision: Precision,
    product: Product,
) -> Result<Option<String>, CudaError> {
    let words = hold.words(product.result, 2)?;
    let found = numbers::first_of_result(precision, &words);
    let (expected, size) = numbers::first_expected(precision, product.side);
    let allowed = numbers::allowed(precision, expected, size);
    let is_right = (found - expected).abs() <= allowed;
    Ok((!is_right).then(|| {
        format!(
            "the product's first number is {found} in place of {expected} (within {allowed:.1e})"
        )
    }))
}
