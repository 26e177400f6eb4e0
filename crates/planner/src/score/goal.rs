//! What the planner is held to, and whether it is met.

use super::{Score, Scored, Tally};
use crate::gpu::Generation;
use crate::precision::Precision;

/// Bounds of the errors of a kind of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accuracy {
    /// Which rows.
    pub(super) name: &'static str,
    /// Whether they are part of those before it, which the bounds were set for together.
    pub(super) is_part: bool,
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
/// Share of complete rows that are to be said to fit: all of them did.
pub(super) const FITS_MIN: f64 = 0.95;
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

/// What is asked of dense models that are well known, and of the rest, then of their parts.
const ACCURACY: [Accuracy; 7] = [
    Accuracy { name: "dense, Ampere and Hopper", is_part: false, ..DENSE },
    Accuracy { name: "16 bits", has: |scored| (DENSE.has)(scored) && is_half(scored), ..DENSE },
    Accuracy {
        name: "8 bits, Hopper",
        has: |scored| (DENSE.has)(scored) && !is_half(scored),
        ..DENSE
    },
    Accuracy { name: "mixtures, and all on Blackwell", is_part: false, ..REST },
    Accuracy {
        name: "dense, Blackwell",
        has: |scored| !is_mixture(scored) && is_blackwell(scored),
        ..REST
    },
    Accuracy {
        name: "mixtures, Blackwell",
        has: |scored| is_mixture(scored) && is_blackwell(scored),
        ..REST
    },
    Accuracy {
        name: "mixtures, Ampere and Hopper",
        has: |scored| is_mixture(scored) && !is_blackwell(scored),
        ..REST
    },
];

const DENSE: Accuracy = Accuracy {
    name: "",
    is_part: true,
    mean_max: 0.05,
    p90_max: 0.10,
    has: |scored| !is_mixture(scored) && !is_blackwell(scored),
};

const REST: Accuracy = Accuracy {
    name: "",
    is_part: true,
    mean_max: 0.10,
    p90_max: 0.20,
    has: |scored| is_mixture(scored) || is_blackwell(scored),
};

impl Accuracy {
    /// How the table calls it.
    pub(super) fn title(&self) -> String {
        if self.is_part { format!("- of these {}", self.name) } else { self.name.to_owned() }
    }
}

/// Each complete row is in one of the two, and in one of their parts.
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
    fn each_complete_row_is_in_one_goal_and_in_one_part() {
        let table = published::read(FactSet::embedded(), published::embedded()).unwrap();
        let score = super::super::score(Planner::shipped(), table);
        let reached = accuracy(&score);
        for is_part in [false, true] {
            let rows = reached.iter().filter(|reached| reached.goal.is_part == is_part);
            let rows: usize = rows.map(|reached| reached.rows.len()).sum();
            assert_eq!(rows, score.overall.covered);
        }
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
