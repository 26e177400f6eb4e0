//! What the planner is held to, and whether it is met.

use super::{Score, Scored, Tally};
use crate::gpu::Generation;
use crate::precision::Precision;

/// Bounds of the errors of a kind of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accuracy {
    /// Which rows.
    pub(super) name: &'static str,
    /// The mean is to be no more than this.
    pub(super) mean_max: f64,
    /// Nine in ten are to be no more than this.
    pub(super) p90_max: f64,
    has: fn(&Scored) -> bool,
}

/// The rows of an accuracy goal and what came out.
#[derive(Debug)]
pub(super) struct Reached<'a> {
    /// What it is held to.
    pub(super) goal: Accuracy,
    /// The rows, worst first.
    pub(super) rows: Vec<&'a Scored>,
    /// Their errors.
    pub(super) tally: Tally,
}

/// Share of rows that are to lie between P10 and P90.
pub(super) const INSIDE_MIN: f64 = 0.8;
/// Share of complete rows that are to be estimated.
pub(super) const COVERED_MIN: f64 = 0.95;
/// Mean error of memory.
pub(super) const MEMORY_MEAN_MAX: f64 = 0.08;

fn is_mixture(scored: &Scored) -> bool {
    scored.row.run.model.experts.is_some()
}

fn is_blackwell(scored: &Scored) -> bool {
    scored.row.run.gpu.generation == Generation::Blackwell
}

fn is_half(scored: &Scored) -> bool {
    matches!(scored.row.run.precision, Precision::Fp16 | Precision::Bf16)
}

const ACCURACY: [Accuracy; 5] = [
    Accuracy {
        name: "dense, 16 bits, Ampere and Hopper",
        mean_max: 0.05,
        p90_max: 0.10,
        has: |scored| !is_mixture(scored) && !is_blackwell(scored) && is_half(scored),
    },
    Accuracy {
        name: "dense, 8 bits, Hopper",
        mean_max: 0.05,
        p90_max: 0.10,
        has: |scored| !is_mixture(scored) && !is_blackwell(scored) && !is_half(scored),
    },
    Accuracy {
        name: "dense, Blackwell",
        mean_max: 0.10,
        p90_max: 0.20,
        has: |scored| !is_mixture(scored) && is_blackwell(scored),
    },
    Accuracy {
        name: "mixtures, Ampere and Hopper",
        mean_max: 0.10,
        p90_max: 0.20,
        has: |scored| is_mixture(scored) && !is_blackwell(scored),
    },
    Accuracy {
        name: "mixtures, Blackwell",
        mean_max: 0.10,
        p90_max: 0.20,
        has: |scored| is_mixture(scored) && is_blackwell(scored),
    },
];

/// Each complete row is in one of these.
pub(super) fn accuracy(score: &Score) -> Vec<Reached<'_>> {
    let complete = || score.rows.iter().filter(|scored| scored.row.assumed.is_empty());
    ACCURACY
        .into_iter()
        .map(|goal| {
            let rows: Vec<&Scored> = complete().filter(|scored| (goal.has)(scored)).collect();
            let tally = Tally::of(&rows);
            Reached { goal, rows, tally }
        })
        .filter(|reached| !reached.rows.is_empty())
        .collect()
}

impl Reached<'_> {
    /// Whether both bounds are kept.
    pub(super) fn is_met(&self) -> bool {
        let within = |found: Option<f64>, max: f64| found.is_some_and(|found| found <= max);
        within(self.tally.mean_abs_error, self.goal.mean_max)
            && within(self.tally.p90_abs_error, self.goal.p90_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Planner;
    use crate::published;
    use farrier_facts::FactSet;

    #[test]
    fn each_complete_row_is_in_one_goal() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let score = super::super::score(Planner::shipped(), table);
        let rows: usize = accuracy(&score).iter().map(|reached| reached.rows.len()).sum();
        assert_eq!(rows, score.overall.covered);
    }

    #[test]
    fn one_bound_that_is_passed_is_enough() {
        let of = |mean, p90| Reached {
            goal: ACCURACY[0],
            rows: Vec::new(),
            tally: Tally {
                mean_abs_error: Some(mean),
                p90_abs_error: Some(p90),
                ..Tally::default()
            },
        };
        assert!(of(0.05, 0.10).is_met());
        assert!(!of(0.051, 0.05).is_met());
        assert!(!of(0.03, 0.11).is_met());
    }
}
