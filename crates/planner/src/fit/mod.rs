//! How the coefficients are found: least squares over the logarithms of step times, held near what
//! was expected, and tried on rows that had no part in it.

pub mod collectives;
pub mod linear;
pub mod products;
pub mod squares;

use std::collections::BTreeSet;
use std::thread;

use crate::coefficients::Coefficients;
use crate::local::{Likeness, Neighbours};
use crate::published::Published;
use crate::time;

/// How far a row that states all may be off (one standard deviation), and one that does not, or whose
/// mixture of experts runs on software that changes from release to release.
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
    from(rows, &Coefficients::expected())
}

/// Likewise, sought from where others were found.
fn from(rows: &[&Published], start: &Coefficients) -> Coefficients {
    coefficients(&squares::least(place(start), |at| residuals(rows, at)))
}

/// How far each coefficient is from what was expected, in its spread.
fn place(of: &Coefficients) -> Vec<f64> {
    let entries = Coefficients::ENTRIES.iter().zip(of.values());
    entries.map(|(entry, value)| (value / entry.prior).ln() / entry.spread).collect()
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
    let of_rows =
        rows.iter().map(|row| squares::robust(error(row, &fitted) / row_spread(row), ROBUST));
    of_rows.chain(at.iter().copied()).collect()
}

fn row_spread(row: &Published) -> f64 {
    if !row.assumed.is_empty() || row.run.model.experts.is_some() {
        OPEN_ROW_SPREAD
    } else {
        ROW_SPREAD
    }
}

/// Rows that tell nearly the same: one shape of model (whatever it is called), GPU, precision and
/// size of cluster.
pub fn group(row: &Published) -> String {
    let model = &row.run.model;
    format!(
        "{}|{}|{}|{}|{}|{}",
        model.layers,
        model.hidden,
        model.experts.map_or(0, |experts| experts.count),
        row.run.gpu.id,
        row.run.precision.name(),
        f64::from(row.run.layout.gpus()).log2().round()
    )
}

/// What a row that had no part in a fit shows of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// The logarithm of estimated over measured step time, by the coefficients alone.
    pub plain: f64,
    /// Likewise, corrected by the runs nearest to it.
    pub corrected: f64,
    /// One standard deviation of that, as the estimate says itself.
    pub deviation: f64,
}

impl Trial {
    /// A row by coefficients and neighbours.
    pub fn of(row: &Published, fitted: &Coefficients, neighbours: &Neighbours) -> Self {
        let plain = error(row, fitted);
        let correction = neighbours.correction(&row.run);
        Self { plain, corrected: plain + correction.shift, deviation: correction.deviation }
    }
}

/// Each of the rows tried, by a fit to what was learned from without the row's group. Fits are
/// sought from `start`, the one to all.
pub fn held_out(
    learned: &[Published],
    tried: &[&Published],
    start: &Coefficients,
    likeness: &Likeness,
) -> Vec<Trial> {
    let names: Vec<String> = tried.iter().map(|row| group(row)).collect();
    let groups: Vec<&String> = names.iter().collect::<BTreeSet<_>>().into_iter().collect();
    let learned: Vec<(String, &Published)> = learned.iter().map(|row| (group(row), row)).collect();
    let without = |name: &String| -> Vec<(usize, Trial)> {
        let others: Vec<&Published> =
            learned.iter().filter(|(of, _)| of != name).map(|(_, row)| *row).collect();
        let fitted = from(&others, start);
        let neighbours = Neighbours::of(&others, &fitted, likeness.clone());
        let held_out = names.iter().enumerate().filter(|(_, of)| *of == name);
        held_out.map(|(row, _)| (row, Trial::of(tried[row], &fitted, &neighbours))).collect()
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let share = groups.len().div_ceil(workers).max(1);
    let mut trials: Vec<(usize, Trial)> = thread::scope(|scope| {
        let parts = groups.chunks(share).map(|part| {
            scope.spawn(move || part.iter().flat_map(|name| without(name)).collect::<Vec<_>>())
        });
        // All are begun before one is waited for.
        let parts: Vec<_> = parts.collect();
        parts.into_iter().flat_map(|part| part.join().expect("a fit does not panic")).collect()
    });
    trials.sort_by_key(|(row, _)| *row);
    trials.into_iter().map(|(_, trial)| trial).collect()
}

#[cfg(test)]
mod tests {
    use farrier_facts::FactSet;

    use super::*;
    use crate::published;

    #[test]
    fn a_model_by_another_name_is_in_the_same_group() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<Published> = table.into_iter().flatten().collect();
        let found = |name: &str, gpu: &str, precision: &str, gpus: u32| {
            let is = |row: &&Published| {
                row.run.model.name == name
                    && row.gpu == gpu
                    && row.run.precision.name() == precision
                    && row.run.layout.gpus() == gpus
            };
            group(rows.iter().find(is).unwrap())
        };
        assert_eq!(
            found("Qwen3_30B_a3B (tokendrop)", "GB200", "mxfp8", 8),
            found("Qwen3_30B_a3B", "GB200", "mxfp8", 8)
        );
        let mut other = rows[0].clone();
        other.run.model.name = "another name".to_owned();
        other.run.model.mtp_layers += 1;
        assert_eq!(group(&other), group(&rows[0]));
        other.run.model.layers += 1;
        assert_ne!(group(&other), group(&rows[0]));
    }

    #[test]
    fn no_row_is_estimated_from_its_group() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<Published> = table.into_iter().flatten().collect();
        let row = rows.iter().find(|row| row.run.model.experts.is_some()).unwrap();
        let trial = |learned: &[Published]| {
            held_out(learned, &[row], &Coefficients::expected(), &Likeness::default())[0]
        };
        let mut twins_twice_as_slow = rows.clone();
        for twin in twins_twice_as_slow.iter_mut().filter(|other| group(other) == group(row)) {
            twin.step_s *= 2.0;
        }
        assert_eq!(trial(&rows), trial(&twins_twice_as_slow));
    }

    #[test]
    fn a_fit_is_found_from_anywhere() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let rows: Vec<Published> = table.into_iter().flatten().collect();
        let most: Vec<&Published> =
            rows.iter().filter(|row| group(row) != group(&rows[0])).collect();
        let (cold, warm) = (fit(&most), from(&most, &fit(&rows.iter().collect::<Vec<_>>())));
        for row in &rows {
            let apart = (error(row, &cold) - error(row, &warm)).abs();
            assert!(apart < 0.01, "{} on {}: {apart}", row.run.model.name, row.gpu);
        }
    }
}
