//! How the coefficients are found: least squares over the logarithms of step times, held near what
//! was expected, and tried on rows that had no part in it.

pub mod linear;

use std::collections::BTreeMap;

use crate::coefficients::Coefficients;
use crate::published::Published;
use crate::time;

/// Parts that rows are put into for trying: each is estimated by a fit to the others.
pub const FOLDS: u64 = 10;

/// How far a row that states all may be off (one standard deviation), and one that does not.
const ROW_SPREAD: f64 = 0.035;
const OPEN_ROW_SPREAD: f64 = 0.10;

/// Where a row's error begins to count less: beyond so many deviations it is something that the
/// model does not know of.
const ROBUST: f64 = 2.0;

/// The logarithm of estimated over measured step time.
pub fn error(row: &Published, fitted: &Coefficients) -> f64 {
    (time::step(&row.run, fitted).total_s() / row.step_s).ln()
}

/// Fits the coefficients to rows.
pub fn fit(rows: &[&Published]) -> Coefficients {
    let count = Coefficients::ENTRIES.len();
    let mut at = vec![0.0; count];
    let mut damping = 1e-2;
    let mut errors = residuals(rows, &at);
    let mut cost = squares(&errors);
    for _ in 0..60 {
        let jacobian = slopes(rows, &at, &errors);
        let mut improved = false;
        for _ in 0..8 {
            let step = linear::damped_step(&jacobian, &errors, damping);
            let tried: Vec<f64> = at.iter().zip(&step).map(|(at, step)| at + step).collect();
            let tried_errors = residuals(rows, &tried);
            let tried_cost = squares(&tried_errors);
            if tried_cost < cost {
                improved = cost - tried_cost > 1e-6 * cost;
                (at, errors, cost) = (tried, tried_errors, tried_cost);
                damping = (damping * 0.4).max(1e-9);
                break;
            }
            damping *= 4.0;
        }
        if !improved {
            break;
        }
    }
    coefficients(&at)
}

fn squares(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum()
}

/// The coefficients at a place: each is what was expected, times e to the place in its spread.
fn coefficients(at: &[f64]) -> Coefficients {
    let values: Vec<f64> = Coefficients::ENTRIES
        .iter()
        .zip(at)
        .map(|(entry, at)| entry.prior * (at * entry.spread).exp())
        .collect();
    Coefficients::from_values(&values)
}

/// Errors of the rows and distances from what was expected, each in its deviations.
fn residuals(rows: &[&Published], at: &[f64]) -> Vec<f64> {
    let fitted = coefficients(at);
    let of_rows = rows.iter().map(|row| {
        let spread = if row.assumed.is_empty() { ROW_SPREAD } else { OPEN_ROW_SPREAD };
        robust(error(row, &fitted) / spread)
    });
    of_rows.chain(at.iter().copied()).collect()
}

/// The square of this grows as the logarithm beyond [`ROBUST`] deviations.
fn robust(deviations: f64) -> f64 {
    let scaled = deviations / ROBUST;
    ROBUST * (1.0 + scaled * scaled).ln().sqrt().copysign(scaled)
}

/// How each residual changes with each place: one column a coefficient.
fn slopes(rows: &[&Published], at: &[f64], errors: &[f64]) -> Vec<Vec<f64>> {
    const STEP: f64 = 1e-4;
    (0..at.len())
        .map(|column| {
            let mut moved = at.to_vec();
            moved[column] += STEP;
            let there = residuals(rows, &moved);
            there.iter().zip(errors).map(|(there, here)| (there - here) / STEP).collect()
        })
        .collect()
}

/// Which part a row is in: rows of one model, GPU, precision and size of cluster are in the same, so
/// that none is estimated from its twin.
pub fn fold(row: &Published) -> u64 {
    let size = f64::from(row.run.layout.gpus()).log2().round();
    let key = format!(
        "{}|{}|{}|{size}",
        farrier_facts::names::fold(&row.run.model.name),
        row.run.gpu.id,
        row.run.precision.name()
    );
    // FNV-1a: the same everywhere and for ever.
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) % FOLDS
}

/// Each row's error by coefficients that were fitted without its part.
pub fn cross_validate(rows: &[Published]) -> Vec<f64> {
    let mut by_fold: BTreeMap<u64, Coefficients> = BTreeMap::new();
    for part in 0..FOLDS {
        let others: Vec<&Published> = rows.iter().filter(|row| fold(row) != part).collect();
        by_fold.insert(part, fit(&others));
    }
    rows.iter().map(|row| error(row, &by_fold[&fold(row)])).collect()
}
