//! Accuracy goals of the planner, and whether they are met.

use super::{ErrorStats, Score, ScoredRow};
use crate::gpu::Generation;
use crate::precision::Precision;

/// Error limits for a kind of row.
#[derive(Debug, Clone, Copy)]
pub(super) struct AccuracyGoal {
    pub(super) name: &'static str,
    /// Whether the rows are a subset of the rows of an earlier goal. The limits were set for that
    /// goal as a whole.
    pub(super) is_part: bool,
    pub(super) mean_max: f64,
    pub(super) p90_max: f64,
    has: fn(&ScoredRow) -> bool,
}

/// The rows of a goal and their errors.
#[derive(Debug)]
pub(super) struct GoalResult<'a> {
    pub(super) goal: AccuracyGoal,
    /// Worst first.
    pub(super) rows: Vec<&'a ScoredRow>,
    pub(super) stats: ErrorStats,
}

/// Minimum share of rows inside P10-P90.
pub(super) const INSIDE_MIN: f64 = 0.8;
/// Minimum share of complete rows that can be estimated.
pub(super) const COVERED_MIN: f64 = 0.95;
/// Minimum share of complete rows that must be predicted to fit. All of these runs did fit.
pub(super) const FITS_MIN: f64 = 0.95;
/// Maximum mean memory error.
pub(super) const MEMORY_MEAN_MAX: f64 = 0.08;

fn is_moe(scored: &ScoredRow) -> bool {
    scored.row.run.model.experts.is_some()
}

fn is_blackwell(scored: &ScoredRow) -> bool {
    scored.row.run.gpu.generation == Generation::Blackwell
}

fn is_half(scored: &ScoredRow) -> bool {
    matches!(scored.row.run.precision, Precision::Fp16 | Precision::Bf16)
}

/// Goals for dense models on Ampere and Hopper, and for all other rows. Each goal is followed by
/// its subsets.
const ACCURACY: [AccuracyGoal; 7] = [
    AccuracyGoal { name: "dense, Ampere and Hopper", is_part: false, ..DENSE },
    AccuracyGoal { name: "16-bit", has: |scored| (DENSE.has)(scored) && is_half(scored), ..DENSE },
    AccuracyGoal {
        name: "FP8, Hopper",
        has: |scored| (DENSE.has)(scored) && !is_half(scored),
        ..DENSE
    },
    AccuracyGoal { name: "MoE, and all on Blackwell", is_part: false, ..REST },
    AccuracyGoal {
        name: "dense, Blackwell",
        has: |scored| !is_moe(scored) && is_blackwell(scored),
        ..REST
    },
    AccuracyGoal {
        name: "MoE, Blackwell",
        has: |scored| is_moe(scored) && is_blackwell(scored),
        ..REST
    },
    AccuracyGoal {
        name: "MoE, Ampere and Hopper",
        has: |scored| is_moe(scored) && !is_blackwell(scored),
        ..REST
    },
];

const DENSE: AccuracyGoal = AccuracyGoal {
    name: "",
    is_part: true,
    mean_max: 0.05,
    p90_max: 0.10,
    has: |scored| !is_moe(scored) && !is_blackwell(scored),
};

const REST: AccuracyGoal = AccuracyGoal {
    name: "",
    is_part: true,
    mean_max: 0.10,
    p90_max: 0.20,
    has: |scored| is_moe(scored) || is_blackwell(scored),
};

impl AccuracyGoal {
    /// Row label in the goal table.
    pub(super) fn title(&self) -> String {
        if self.is_part { format!("- of which {}", self.name) } else { self.name.to_owned() }
    }
}

/// Evaluates all goals. Each complete row belongs to one goal and to one of its subsets.
pub(super) fn accuracy(score: &Score) -> Vec<GoalResult<'_>> {
    let complete = || score.rows.iter().filter(|scored| scored.row.assumed.is_empty());
    ACCURACY
        .into_iter()
        .map(|goal| {
            let rows: Vec<&ScoredRow> = complete().filter(|scored| (goal.has)(scored)).collect();
            let stats = ErrorStats::new(&rows);
            GoalResult { goal, rows, stats }
        })
        .filter(|reached| !reached.rows.is_empty())
        .collect()
}

impl GoalResult<'_> {
    /// Whether both limits are met.
    pub(super) fn is_met(&self) -> bool {
        let within = |found: Option<f64>, max: f64| found.is_some_and(|found| found <= max);
        within(self.stats.mean_abs_error, self.goal.mean_max)
            && within(self.stats.p90_abs_error, self.goal.p90_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Planner;
    use crate::published;
    use farrier_facts::FactSet;

    #[test]
    fn each_complete_row_is_in_one_goal_and_one_subset() {
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
    fn both_limits_must_be_met() {
        let result = |mean, p90| GoalResult {
            goal: ACCURACY[0],
            rows: Vec::new(),
            stats: ErrorStats {
                mean_abs_error: Some(mean),
                p90_abs_error: Some(p90),
                ..ErrorStats::default()
            },
        };
        assert!(result(0.05, 0.10).is_met());
        assert!(!result(0.051, 0.05).is_met());
        assert!(!result(0.03, 0.11).is_met());
    }
}
